"""Answer the signals that nobody receives: those to a swarm or a component that does not exist.

The bus drops a message that no queue is bound to, so its sender would wait for ever. A queue gets a copy of every
signal; orchestrators of several roots on one broker share it, so that each copy is answered once.
[test_a_signal_to_nobody_gets_one_error]
"""

from __future__ import annotations

from collections import OrderedDict

from farro.errors import FarroError, InputError
from farro.swarm.bus.port import Binding, Consumer, Delivery
from farro.swarm.controller.actions import ORIGIN as CONTROLLERS
from farro.swarm.files import controller_instance
from farro.swarm.ledger import CommandEnd, LedgerEntry
from farro.swarm.orchestrator.state import OrchestratorContext
from farro.swarm.wire import messages, names
from farro.swarm.wire.messages import SignalIds
from farro.swarm.wire.names import Scope, Signal

QUEUE = f"{names.CONTROL}.signals"
_REMEMBERED = 1000  # answered signals: one of them that comes again is a duplicate


class UnheardSignals:
    """Confirm as errors the signals whose target has no queue."""

    def __init__(self, context: OrchestratorContext) -> None:
        self._context = context
        self._answered: OrderedDict[str, LedgerEntry] = OrderedDict()  # by correlation id

    async def open(self) -> Consumer:
        """Declare the queue and consume it."""
        await self._context.bus.declare(QUEUE, [Binding(names.CONTROL, "sig.#")])
        return await self._context.bus.consume(QUEUE, prefetch=64)

    async def listen(self, consumer: Consumer) -> None:
        async for delivery in consumer:
            try:
                await self.receive(delivery)
            except InputError:  # not a signal of the document
                pass
            except FarroError as error:
                self._context.log("error", str(error), {})
            delivery.ack_soon()

    async def receive(self, delivery: Delivery) -> None:
        """Answer one signal if its target does not receive it."""
        key, ids = names.read_key(delivery.message.key), messages.ids(delivery.message.body)
        if key.signal is None or ids is None or self._is_known(ids):
            return
        if (why := await self._unheard(key.signal, key.scope)) is None:
            return
        correlation_id = ids.correlation_id
        known = self._answered.get(correlation_id)
        if known is not None:
            await self._context.publisher.duplicate(known, correlation_id)
            return
        entry = self._answered[correlation_id] = LedgerEntry(
            key=ids.idempotency_key,
            signal=str(key.signal),
            swarm=key.scope.swarm,
            role=key.scope.role,
            instance=key.scope.instance,
            correlations=[correlation_id],
            end=CommandEnd(good=False, code=messages.NO_TARGET, message=why),
        )
        if len(self._answered) > _REMEMBERED:
            self._answered.popitem(last=False)
        self._context.audit(None).note("unheard", correlation_id, signal=entry.signal, scope=entry.scope.words)
        await self._context.publisher.confirm(entry, correlation_id)

    def _is_known(self, ids: SignalIds) -> bool:
        """Return whether the sender is this orchestrator or a controller, which know whom they address. Their signals
        may be read here when their target has ended."""
        return ids.origin == CONTROLLERS or self._context.ledger.by_correlation(ids.correlation_id) is not None

    async def _unheard(self, signal: Signal, scope: Scope) -> str | None:
        """Return why a signal reaches nobody; None if it reaches its target."""
        if scope.swarm is not None:
            queue = names.control_queue(names.CONTROLLER, controller_instance(scope.swarm))
            return None if await self._exists(queue) else f"there is no swarm {scope.swarm}"
        role, instance = str(scope.role), str(scope.instance)
        if role == names.ORCHESTRATOR or await self._exists(names.control_queue(role, instance)):
            return None
        if not self._is_planned(role, instance):
            return f"there is no component {role} {instance}"
        # Its controller confirms an update of a component that is not up yet, but does not answer for it.
        return None if signal is Signal.CONFIG else f"the component {role} {instance} is not up"

    async def _exists(self, queue: str) -> bool:
        return await self._context.bus.depth(queue) is not None

    def _is_planned(self, role: str, instance: str) -> bool:
        plans = (self._context.files.plan(name) for name, swarm in self._context.swarms.items() if swarm.there)
        return any(
            (one.role, one.instance) == (role, instance) for plan in plans if plan is not None for one in plan.members()
        )
