"""Whether a trace of the wire keeps the promises of seed 003: a function from what was heard to what was wrong with it.

Order and lifecycles are those of ordering and lifecycle; who captures what is heard is up to the caller.

    envelope, key, agree   a message of a known key, whole, and its body says what its key says
    confirmed              each signal has exactly one distinct confirmation; a status-request, a status-full
    resent                 what is sent again under the same message id says the same
    correlation            a confirmation echoes its signal; a correlation id is of one attempt
    idempotency            a command that comes again gets the stored confirmation, and ev.duplicate
    order, observed        enabled as the work flows, disabled in reverse, each stage when the one before was seen to be
    namespace              nobody speaks for another swarm, nor for a component that no plan has
    status, watermark      status messages have all their fields, and these can be
    handshake              ev.ready.swarm-create comes after the controller's ev.ready.swarm-controller
    state, origin          a success tells the state of its signal; only the orchestrator asks for a swarm's lifecycle

Things are ordered by the times that the messages tell: what two senders say may be heard in another order. So clocks
of several machines must agree to `skew_s`. [test_a_good_trace_has_no_violations, test_every_mutation_is_found]
"""

from __future__ import annotations

from collections.abc import Iterable

from farro.swarm.conformance import commands, order, senders
from farro.swarm.conformance.messages import Captured as Captured
from farro.swarm.conformance.messages import Violation as Violation
from farro.swarm.conformance.messages import read
from farro.swarm.conformance.trace import Known


def check(
    trace: Iterable[Captured], *, complete: bool = True, swarms: Iterable[str] | None = None, skew_s: float = 0.0
) -> list[Violation]:
    """`complete`: every command was given the time to end. `swarms`: those that there are; None: whoever speaks."""
    heard, items, wrong = read(trace)
    known = Known.of(heard)
    return [
        *wrong,
        *commands.resent(heard),
        *commands.correlations(known),
        *commands.confirmed(known, complete),
        *commands.idempotency(known, complete),
        *commands.states(known),
        *commands.origins(known),
        *commands.handshakes(heard, skew_s),
        *senders.namespaces(heard, items, known, None if swarms is None else set(swarms)),
        *senders.statuses(heard),
        *order.orders(known, skew_s),
    ]
