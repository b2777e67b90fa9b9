"""What anyone may ask of swarms: commands, which the orchestrator carries out, and looking at what became of them.

Nobody here speaks on the bus. A command is written down (`ask`), the orchestrator takes it, and whoever waits for its
end reads the orchestrator's ledger (`wait`). `place` is the folder swarms/ of a root.

- What can be seen to be wrong at once is refused at once, and nothing is written. What depends on commands that are
  still on their way is decided by the orchestrator, in their order.
- The same idempotency key again is the same command: it gets the end of the first, and nothing is done. With other
  arguments it is refused: whoever asks would take the end of something else for his own.
  [test_a_key_that_is_used_again_for_something_else_is_refused]
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from typing import Any

from farro.errors import InputError
from farro.host import fs, leases
from farro.host.clock import Clock, SystemClock
from farro.jobs.times import timestamp
from farro.swarm import checks, ledger, timeouts
from farro.swarm.files import Place, check_swarm
from farro.swarm.ledger import Entry
from farro.swarm.lifecycle import SwarmState
from farro.swarm.views import Asked as Asked
from farro.swarm.views import CommandView as CommandView
from farro.swarm.views import ComponentView as ComponentView
from farro.swarm.views import Ended as Ended
from farro.swarm.views import SwarmView as SwarmView
from farro.swarm.views import command_view, swarm_view, waiting_view
from farro.swarm.wire import names
from farro.swarm.wire.messages import ControlSignal
from farro.swarm.wire.names import Scope, Signal

LOOK_S = 0.05


def ask(
    place: str,
    signal: Signal | str,
    swarm: str | None,
    *,
    args: Mapping[str, Any] | None = None,
    role: str | None = None,
    instance: str | None = None,
    idempotency_key: str | None = None,
    origin: str | None = None,
    durable: bool = True,
    clock: Clock | None = None,
) -> Asked:
    """Write a command down. `swarm` may be None for a component's: the one that has it is looked up. InputError and
    Refused: nothing was written."""
    files, clock = Place(place, durable=durable), clock or SystemClock()
    signal = Signal(signal)
    if signal.of_component and swarm is None:
        swarm = checks.swarm_of(files, str(role), str(instance))
    scope = Scope(swarm=swarm, role=role, instance=instance)
    if swarm is None:
        raise InputError(f"{signal} needs the name of a swarm")
    check_swarm(swarm)
    own = Scope(role=role, instance=instance) if signal.of_component else Scope(swarm=swarm)
    watch = {"successTopic": names.event_key("ready", signal, own), "errorTopic": names.event_key("error", signal, own)}
    if signal is Signal.STATUS:
        watch = {"successTopic": names.status_key("status-full", str(role), str(instance))}
    told = ControlSignal(
        correlation_id=str(uuid.uuid4()),
        idempotency_key=_key(idempotency_key),
        signal=signal.value,
        swarm_id=swarm,
        role=scope.role,
        instance=scope.instance,
        args=None if args is None else dict(args),
        timestamp=timestamp(clock.now()),
        origin=origin,
    )
    _check_key(files, told)
    if known(files, told) is None:
        _check(files, signal, told)
    wanted = checks.plan_of(told) if signal is Signal.TEMPLATE else files.plan(swarm)
    files.wish(told, int(clock.now().timestamp() * 1e9))
    return Asked(
        correlation_id=told.correlation_id,
        idempotency_key=told.idempotency_key,
        watch=watch,
        timeout_ms=int(timeouts.limit_s(signal, wanted) * 1000),
    )


def wait(place: str, correlation_id: str, timeout_s: float | None = None, clock: Clock | None = None) -> Ended | None:
    """The end of that command, when it has one; None when the time is over first."""
    clock = clock or SystemClock()
    until_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
    path, read = Place(place).ledger, None
    while True:
        now = _version(path)
        if now != read:
            read, found = now, command(place, correlation_id)
            if found is not None and found.result is not None:
                return found
        if until_s is not None and clock.monotonic_s() >= until_s:
            return None
        clock.sleep(LOOK_S)


def _version(path: str) -> tuple[int, ...]:
    """Changes with the file."""
    try:
        status = fs.lstat(path)
    except FileNotFoundError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def command(place: str, correlation_id: str) -> CommandView | None:
    """None: the orchestrator has not taken it yet, or has forgotten it."""
    for entry in reversed(list(ledger.read(Place(place).ledger).values())):
        if correlation_id in entry.correlations:
            return command_view(entry)
    return None


def commands(place: str, swarm: str) -> list[CommandView]:
    """Of one swarm and its components, the oldest first; those that nobody has taken yet at the end."""
    files = Place(place)
    entries = ledger.read(files.ledger).values()
    views = [command_view(entry) for entry in entries if entry.swarm == swarm]
    taken = {correlation for entry in entries for correlation in entry.correlations}
    for _, told in files.wished():
        if told is not None and told.swarm_id == swarm and told.correlation_id not in taken:
            views.append(waiting_view(told))
    return views


def look(place: str, swarm: str, clock: Clock | None = None) -> SwarmView:
    """InputError: there is no such swarm."""
    files, clock = Place(place), clock or SystemClock()
    desired = checks.desired(files, swarm)
    alive = leases.is_held(f"{files.of(swarm)}/.lease")
    return swarm_view(desired, files.plan(swarm), files.status(swarm) or {}, alive=alive, now=clock.now())


def list_(place: str, *, removed: bool = False, clock: Clock | None = None) -> list[SwarmView]:
    """By name; those that were removed only when they are asked for."""
    files = Place(place)
    views = []
    for name in files.swarms():
        with contextlib.suppress(InputError):  # its folder is there, and nobody has asked for it: no swarm
            views.append(look(place, name, clock))
    return [view for view in views if removed or view.state != SwarmState.REMOVED]


def running(place: str) -> bool:
    """Whether an orchestrator lives here."""
    return leases.is_held(Place(place).lease)


def known(files: Place, told: ControlSignal) -> Entry | None:
    """The command of that idempotency key, when it was asked for before."""
    for entry in ledger.read(files.ledger).values():
        same = (entry.key, entry.signal, entry.scope.words) == (told.idempotency_key, told.signal, told.scope.words)
        if same:
            return entry
    return None


def _check_key(files: Place, told: ControlSignal) -> None:
    """What bears that key already, in the ledger or on its way there, must be the same."""
    before = known(files, told)
    prints = [] if before is None or before.asked is None else [before.asked]
    own = (told.idempotency_key, told.signal, told.scope.words)
    for _, waiting in files.wished():
        if waiting is not None and (waiting.idempotency_key, waiting.signal, waiting.scope.words) == own:
            prints.append(ledger.fingerprint(waiting.args))
    if any(one != ledger.fingerprint(told.args) for one in prints):
        raise InputError(
            f"the idempotency key {told.idempotency_key} was used for {told.signal} of {told.scope.words} with other "
            f"arguments; take a new key for a new command"
        )


def _check(files: Place, signal: Signal, told: ControlSignal) -> None:
    swarm = str(told.swarm_id)
    if signal is Signal.TEMPLATE:
        checks.check_plan(files, swarm, checks.plan_of(told))
    busy = [other for other in commands(files.folder, swarm) if other.result is None]
    desired = files.desired(swarm)
    if not busy:
        checks.check_state(files, signal, swarm, SwarmState.NEW if desired is None else desired.state)
    if signal.of_component and not busy and (signal is Signal.CONFIG or told.role != names.CONTROLLER):
        checks.check_member(files, swarm, str(told.role), str(told.instance))


def _key(given: str | None) -> str:
    if given is None:
        return str(uuid.uuid4())
    try:
        return str(uuid.UUID(given))
    except ValueError:
        raise InputError(f"the idempotency key {ascii(given)[:64]} is no UUID") from None
