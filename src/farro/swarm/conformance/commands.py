"""Rules of commands: a signal, its one confirmation, and what happens when either comes again.

The order in which components are asked lives in walking.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from farro.swarm.conformance.messages import Heard, Violation
from farro.swarm.conformance.trace import CONTROLLER_ORIGIN, Known, told
from farro.swarm.wire import messages
from farro.swarm.wire.messages import ControlSignal, Duplicate, Error, Ready, Status
from farro.swarm.wire.names import Scope, Signal


def resent(heard: Sequence[Heard]) -> Iterator[Violation]:
    first: dict[str, Heard] = {}
    for one in heard:
        before = first.setdefault(one.message_id, one)
        if before is one:
            continue
        if before.name != one.name or _timeless(before) != _timeless(one):
            yield told("resent", one, f"message {one.message_id} was sent before and said otherwise ({before.name})")


def _timeless(one: Heard) -> Any:
    """What it says, but for when."""
    if isinstance(one.body, ControlSignal | Status):
        return replace(one.body, timestamp=_EPOCH) if one.body.timestamp is not None else one.body
    return replace(one.body, ts=_EPOCH)


_EPOCH = "1970-01-01T00:00:00Z"


def correlations(known: Known) -> Iterator[Violation]:
    for one in known.repeated:
        yield told("correlation", one, "its correlation id is that of another signal: it is new per attempt")
    repeated = _repeated(known)
    for correlation, ends in known.ends.items():
        asked = known.signals.get(correlation)
        for end in ends:
            assert isinstance(end.body, Ready | Error)
            if asked is None:
                if correlation not in repeated and not _done_without_a_signal(end):
                    yield told("correlation", end, f"confirms {correlation}, which nobody sent")
                continue
            assert isinstance(asked.body, ControlSignal)
            if asked.body.origin == CONTROLLER_ORIGIN:
                yield told("correlation", end, "confirms a controller's own signal")
            if end.body.signal != asked.body.signal or end.body.idempotency_key != asked.body.idempotency_key:
                yield told("correlation", end, f"does not echo the signal {asked.name} that it confirms")
            elif end.key.scope != asked.key.scope or (asked.swarm is not None and end.swarm != asked.swarm):
                yield told("correlation", end, f"is about another than the signal {asked.name} that it confirms")


def _done_without_a_signal(end: Heard) -> bool:
    """The orchestrator creates by itself, removes what has no controller any more, and refuses before it sends."""
    return end.key.signal in (Signal.CREATE, Signal.REMOVE) or isinstance(end.body, Error)


def _repeated(known: Known) -> set[str]:
    return {one.body.correlation_id for one in known.duplicates if isinstance(one.body, Duplicate)}


def confirmed(known: Known, complete: bool) -> Iterator[Violation]:
    for one, body in known.commands():
        if one.key.signal is Signal.STATUS:  # a look, not a command: one that comes twice is looked at twice
            answered = known.answers[body.correlation_id] or known.ends[body.correlation_id]
            later = [said for said in known.statuses[str(body.instance)] if said.at_s >= one.at_s]
            if complete and later and not answered:  # who says nothing any more is dead, and told so elsewhere
                yield told("confirmed", one, f"was answered by no status-full ({body.correlation_id})")
            continue
        count = len(known.ends[body.correlation_id])
        if count > 1 or (complete and count == 0):
            yield told("confirmed", one, f"has {count} distinct confirmations, not 1 ({body.correlation_id})")
    for correlation, ends in known.ends.items():
        if correlation not in known.signals and len(ends) > 1:
            yield told("confirmed", ends[0], f"is one of {len(ends)} distinct confirmations ({correlation})")


def idempotency(known: Known, complete: bool) -> Iterator[Violation]:
    """A command is known by its signal, its scope and its idempotency key. The orchestrator answers one that comes
    again by itself: then there is no second signal, but a second confirmation."""
    attempts: dict[_Command, set[str]] = defaultdict(set)
    results: dict[_Command, set[tuple[str, str]]] = defaultdict(set)
    first: dict[_Command, Heard] = {}
    for one, body in known.commands():
        if one.key.signal is not Signal.STATUS:
            attempts[_command(one)].add(body.correlation_id)
            first.setdefault(_command(one), one)
    for correlation, ends in known.ends.items():
        for end in ends:
            attempts[_command(end)].add(correlation)
            results[_command(end)].add(_result(end))
            first.setdefault(_command(end), end)
    repeated = _repeated(known)
    for command, again in attempts.items():
        if len(results[command]) > 1:
            yield told("idempotency", first[command], "was confirmed in different ways, though it is one command")
        if complete and len(again - repeated) > 1:
            yield told("idempotency", first[command], "came again, and no ev.duplicate tells so")
    for one in known.duplicates:
        assert isinstance(one.body, Duplicate)
        if one.body.correlation_id not in attempts[_command(one)] and complete:
            yield told("idempotency", one, "tells of a command that nobody gave")
        elif one.body.original_correlation_id not in {None, *attempts[_command(one)]}:
            yield told("idempotency", one, "names an original that is another command")


_Command = tuple[str, str, Scope]


def _command(one: Heard) -> _Command:
    assert isinstance(one.body, ControlSignal | Ready | Error | Duplicate)
    return (one.body.signal, one.body.idempotency_key, one.key.scope)


def _result(end: Heard) -> tuple[str, str]:
    assert isinstance(end.body, Ready | Error)
    return (end.body.result, end.body.state if isinstance(end.body, Ready) else end.body.code)


def states(known: Known) -> Iterator[Violation]:
    for ends in known.ends.values():
        for end in ends:
            if isinstance(end.body, Ready):
                wanted = messages.state_of(Signal(end.body.signal))
                states = ("Running", "Stopped") if wanted is None else (str(wanted),)
                if end.key.signal is Signal.CREATE:
                    states = (*states, "Ready")  # the seed's example; Creating is what its lifecycle calls it
                if end.body.state not in states:
                    yield told("state", end, f"{end.body.state} is no state of a {end.body.signal} that succeeded")


def origins(known: Known) -> Iterator[Violation]:
    for one in known.signals.values():
        assert isinstance(one.body, ControlSignal)
        if one.body.origin == CONTROLLER_ORIGIN and one.key.signal is not None and not one.key.signal.of_component:
            yield told("origin", one, "only the orchestrator asks for a swarm's lifecycle")


def handshakes(heard: Sequence[Heard], skew_s: float) -> Iterator[Violation]:
    up: dict[str | None, float] = {}
    for one in heard:
        if one.key.kind == "controller-up":
            up.setdefault(one.swarm, one.at_s)
    for one in heard:
        created = one.key.outcome == "ready" and one.key.signal is Signal.CREATE
        if created and (one.swarm not in up or up[one.swarm] > one.at_s + skew_s):
            yield told("handshake", one, "no controller had said that it is up")
