"""Request commands of swarms, and wait for their end. The orchestrator carries the commands out.

A command is written to a file (`submit`); the orchestrator takes it into its ledger; `wait` reads that ledger. Nothing
here uses the bus. `folder` is the folder swarms/ of a root.

- A request that is visibly wrong is refused at once, and nothing is written. What depends on commands still in progress
  is decided by the orchestrator, which checks again in the order of the commands.
- The same idempotency key again is the same command: it gets the outcome of the first, and nothing runs. With other
  arguments the key is refused: the caller would mistake the outcome of another command for its own.
  [test_an_idempotency_key_reused_with_other_arguments_is_refused]
"""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Mapping
from typing import Any

from farro.documents import Document
from farro.errors import IllegalTransition, InputError
from farro.host import fs
from farro.host.clock import Clock, SystemClock
from farro.jobs.times import timestamp
from farro.lazy_dataclass import dataclass
from farro.swarm import ledger, lifecycle, reconcile, views
from farro.swarm import plan as plans
from farro.swarm.files import SwarmFiles, check_swarm, controller_instance
from farro.swarm.ledger import LedgerEntry
from farro.swarm.lifecycle import SwarmState
from farro.swarm.plan import SwarmPlan
from farro.swarm.views import CommandView
from farro.swarm.wire import names
from farro.swarm.wire.messages import ControlSignal
from farro.swarm.wire.names import Scope, Signal

POLL_S = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandRequest:
    """A command that a caller wants. `swarm` may be None for a command of a component: its swarm is looked up."""

    signal: Signal | str
    swarm: str | None
    args: Mapping[str, Any] | None = None
    role: str | None = None
    instance: str | None = None
    idempotency_key: str | None = None  # a UUID; None makes a new one
    origin: str | None = None  # who asked, for the audit log


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandReceipt:
    """A command that was written. `watch` holds the routing keys of its confirmations."""

    correlation_id: str
    idempotency_key: str
    watch: dict[str, str]
    timeout_ms: int


def submit(folder: str, request: CommandRequest, *, durable: bool = True, clock: Clock | None = None) -> CommandReceipt:
    """Write a command. When this raises InputError or Refused, nothing was written."""
    files, clock = SwarmFiles(folder, durable=durable), clock or SystemClock()
    signal = _control_signal(files, request, clock)
    kind, swarm = Signal(request.signal), str(signal.swarm_id)
    watch = _confirmation_keys(kind, signal)
    _check_key(files, signal)
    if known(files, signal) is None:
        _check(files, kind, signal)
    plan = plan_of(signal) if kind is Signal.TEMPLATE else files.plan(swarm)
    files.add_request(signal, int(clock.now().timestamp() * 1e9))
    return CommandReceipt(
        correlation_id=signal.correlation_id,
        idempotency_key=signal.idempotency_key,
        watch=watch,
        timeout_ms=int(reconcile.limit_s(kind, plan) * 1000),
    )


def wait(
    folder: str, correlation_id: str, timeout_s: float | None = None, clock: Clock | None = None
) -> CommandView | None:
    """Wait until a command has ended and return it; None if the time is over first."""
    clock = clock or SystemClock()
    until_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
    path, read = SwarmFiles(folder).ledger, None
    while True:
        now = _version(path)
        if now != read:
            read, found = now, views.command(folder, correlation_id)
            if found is not None and found.result is not None:
                return found
        if until_s is not None and clock.monotonic_s() >= until_s:
            return None
        clock.sleep(POLL_S)


def _version(path: str) -> tuple[int, ...]:
    """Return a value that changes with the file."""
    try:
        status = fs.lstat(path)
    except FileNotFoundError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _control_signal(files: SwarmFiles, request: CommandRequest, clock: Clock) -> ControlSignal:
    signal, swarm = Signal(request.signal), request.swarm
    if signal.of_component and swarm is None:
        swarm = swarm_of(files, str(request.role), str(request.instance))
    scope = Scope(swarm=swarm, role=request.role, instance=request.instance)
    if swarm is None:
        raise InputError(f"{signal} needs the name of a swarm")
    check_swarm(swarm)
    return ControlSignal(
        correlation_id=str(uuid.uuid4()),
        idempotency_key=_key(request.idempotency_key),
        signal=signal.value,
        swarm_id=swarm,
        role=scope.role,
        instance=scope.instance,
        args=None if request.args is None else dict(request.args),
        timestamp=timestamp(clock.now()),
        origin=request.origin,
    )


def _confirmation_keys(kind: Signal, signal: ControlSignal) -> dict[str, str]:
    if kind is Signal.STATUS:
        return {"successTopic": names.status_key("status-full", str(signal.role), str(signal.instance))}
    scope = Scope(role=signal.role, instance=signal.instance) if kind.of_component else Scope(swarm=signal.swarm_id)
    return {
        "successTopic": names.event_key("ready", kind, scope),
        "errorTopic": names.event_key("error", kind, scope),
    }


def _key(given: str | None) -> str:
    if given is None:
        return str(uuid.uuid4())
    try:
        return str(uuid.UUID(given))
    except ValueError:
        raise InputError(f"the idempotency key {ascii(given)[:64]} is not a UUID") from None


# --- idempotency ---


def known(files: SwarmFiles, signal: ControlSignal) -> LedgerEntry | None:
    """Return the earlier command with the same idempotency key, if there is one."""
    return ledger.read(files.ledger).get(ledger.key_of(signal))


def _check_key(files: SwarmFiles, signal: ControlSignal) -> None:
    """Refuse a key that a command in the ledger, or on its way there, has with other arguments."""
    before = known(files, signal)
    prints = [] if before is None or before.asked is None else [before.asked]
    for _, waiting in files.pending_requests():
        if waiting is not None and ledger.key_of(waiting) == ledger.key_of(signal):
            prints.append(ledger.fingerprint(waiting.args))
    if any(one != ledger.fingerprint(signal.args) for one in prints):
        raise InputError(
            f"the idempotency key {signal.idempotency_key} was used for {signal.signal} of {signal.scope.words} with "
            f"other arguments; use a new key for a new command"
        )


# --- checks ---


def _check(files: SwarmFiles, kind: Signal, signal: ControlSignal) -> None:
    swarm = str(signal.swarm_id)
    if kind is Signal.TEMPLATE:
        check_plan(files, swarm, plan_of(signal))
    if any(other.result is None for other in views.commands(files.folder, swarm)):
        return  # a command in progress may change what is allowed: the orchestrator decides
    desired = files.desired(swarm)
    check_state(files, kind, swarm, SwarmState.NEW if desired is None else desired.state)
    if kind.of_component and (kind is Signal.CONFIG or signal.role != names.CONTROLLER):
        check_member(files, swarm, str(signal.role), str(signal.instance))


def check_state(files: SwarmFiles, signal: Signal, swarm: str, state: SwarmState) -> None:
    """Raise IllegalTransition if that command is not allowed for a swarm in that state."""
    if state in (SwarmState.NEW, SwarmState.REMOVED) and signal is not Signal.CREATE:
        raise IllegalTransition(views.unknown_swarm(files, swarm))
    if signal is Signal.CREATE and state not in lifecycle.ALLOWED[signal]:
        raise IllegalTransition(
            f"swarm {swarm} exists already and is {state}; see it with `farro swarm status {swarm}`, give it another "
            f"plan with `farro swarm apply`, or remove it first"
        )
    lifecycle.check_allowed(signal, state, swarm)


def check_plan(files: SwarmFiles, swarm: str, plan: SwarmPlan) -> None:
    """Raise InputError if the plan is another swarm's, or a component's name is used in another swarm of the root."""
    if plan.id != swarm:
        raise InputError(f"the plan is for swarm {plan.id}, not {swarm}")
    own = {member.instance for member in plan.members()}
    for other in {*files.swarms(), swarm}:
        if other != swarm and not views.is_there(files, other):
            continue
        others = files.plan(other) if other != swarm else None
        taken = {controller_instance(other)} | ({member.instance for member in others.members()} if others else set())
        if both := sorted(own & taken):
            raise InputError(f"{both[0]} would be a component of {swarm} and is one of swarm {other}: rename a role")


def check_member(files: SwarmFiles, swarm: str, role: str, instance: str) -> None:
    """Raise InputError if the swarm's plan has no such component."""
    plan = files.plan(swarm)
    members = [] if plan is None else list(plan.members())
    if not any((one.role, one.instance) == (role, instance) for one in members):
        there = ", ".join(f"{one.role} {one.instance}" for one in members[:20]) or "none yet"
        raise InputError(f"swarm {swarm} has no component {role} {instance}; it has {there}")


def plan_of(signal: ControlSignal) -> SwarmPlan:
    args = signal.args or {}
    return read_plan(args.get("plan", args))


def read_plan(data: Any) -> SwarmPlan:
    return plans.load(Document(data, "plan"))


def swarm_of(files: SwarmFiles, role: str, instance: str) -> str:
    """Return the swarm of a component. Raises InputError if no swarm has it."""
    Scope(role=role, instance=instance)  # raises BadName
    if role == names.CONTROLLER:
        for name in files.swarms():
            if controller_instance(name) == instance:
                return name
    there: dict[str, str] = {}
    for name in files.swarms():
        plan = files.plan(name)
        for one in () if plan is None else plan.members():
            if (one.role, one.instance) == (role, instance):
                return name
            there[one.instance] = one.role
    if instance in there:
        raise InputError(f"{instance} is not a {role}: its role is {there[instance]}")
    similar = difflib.get_close_matches(instance, there, n=1)
    hint = f"did you mean {there[similar[0]]} {similar[0]}? " if similar else ""
    raise InputError(f"no swarm here has a component {role} {instance}; {hint}`farro ps` lists them")


# --- applying a plan ---


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanChanges:
    """The changes of a new plan."""

    lines: list[str]  # for people
    steps: list[Signal]  # the commands that apply it, in order; empty if the swarm is already as the plan says


def plan_changes(folder: str, plan: SwarmPlan) -> PlanChanges:
    """Compare the last requested plan of a swarm with `plan`."""
    files = SwarmFiles(folder)
    desired = files.desired(plan.id)
    missing = desired is None or desired.state is SwarmState.REMOVED
    before = None if missing else files.plan(plan.id)
    lines = [f"+ swarm {plan.id}"] if missing else []
    lines += _component_changes(before, plan)
    if before is not None and before != plan and not lines:
        lines.append(f"~ swarm {plan.id}: timeouts, or the order of its parts")
    if missing or desired is None or not desired.there:
        return PlanChanges(lines=lines or [f"+ swarm {plan.id}"], steps=[Signal.CREATE, Signal.TEMPLATE])
    if before == plan and desired.state is not SwarmState.FAILED:
        return PlanChanges(lines=[], steps=[])
    if desired.state in (SwarmState.RUNNING, SwarmState.STARTING):
        return PlanChanges(lines=lines, steps=[Signal.STOP, Signal.TEMPLATE, Signal.START])
    return PlanChanges(lines=lines or [f"~ swarm {plan.id}: again, it failed"], steps=[Signal.TEMPLATE])


def _component_changes(before: SwarmPlan | None, plan: SwarmPlan) -> list[str]:
    old = {} if before is None else plans.runs(before)
    new = plans.runs(plan)
    lines = [f"- {name}" for name in old if name not in new]
    lines += [f"+ {name}" for name in new if name not in old]
    return lines + [f"~ {name}: restarted" for name in new if name in old and old[name] != new[name]]
