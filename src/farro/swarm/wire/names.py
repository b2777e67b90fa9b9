"""Names on the wire (seed 003 §3): exchanges, queues, routing keys, and the matching of bindings.

    ph.control                              topic exchange of all signals and events
    ph.<swarm>.hive                         exchange of a swarm's work
    ph.<swarm>.<suffix>                     queue of a swarm's work
    sig.<signal>.<swarm>                    swarm-template, swarm-start, swarm-stop, swarm-remove
    sig.<signal>.<role>.<instance>          config-update, status-request
    ev.ready.<signal>.<scope>               and ev.error.<signal>.<scope>, ev.duplicate.<signal>.<scope>
    ev.ready.swarm-controller.<instance>    the controller listens on its control queue
    ev.warning.<signal>.<swarm>             the command succeeded, with a note for people
    ev.status-full.<role>.<instance>        and ev.status-delta.<role>.<instance>

A name is one word of a routing key: it has no dot, which would make two words, and no * or #, which would make a
pattern. [test_a_name_is_one_word_of_a_key]
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import Literal

from farro.errors import BadName
from farro.lazy_dataclass import dataclass

CONTROL = "ph.control"
CONTROLLER = "swarm-controller"  # the role of every controller
ORCHESTRATOR = "orchestrator"  # the role of the orchestrator; its instance is that of the controller that it talks to
NAME_PATTERN = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(NAME_PATTERN)


class Signal(StrEnum):
    """The commands. `CREATE` is never sent: the orchestrator does it itself and publishes its confirmation."""

    CREATE = "swarm-create"
    TEMPLATE = "swarm-template"
    START = "swarm-start"
    STOP = "swarm-stop"
    REMOVE = "swarm-remove"
    CONFIG = "config-update"
    STATUS = "status-request"

    @property
    def of_component(self) -> bool:
        return self in (Signal.CONFIG, Signal.STATUS)

    @property
    def phase(self) -> str:
        """Return how the error of a failed command names it: swarm-start is `start`, config-update is `runtime`."""
        return "runtime" if self.of_component else self.value.removeprefix("swarm-")


Outcome = Literal["ready", "error", "duplicate", "warning"]
_OUTCOMES: tuple[Outcome, ...] = ("ready", "error", "duplicate", "warning")
StatusKind = Literal["status-full", "status-delta"]
_STATUSES: tuple[StatusKind, ...] = ("status-full", "status-delta")


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def check_name(text: str, what: str) -> str:
    """Return a valid name of a swarm, role, instance or queue, or raise BadName."""
    if not is_name(text):
        raise BadName(
            f"{ascii(text)[:100]} is not a valid {what}: lower-case letters, digits and -, at most 63, no - at the ends"
        )
    return text


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """The subject of a message: a whole swarm, or one component."""

    swarm: str | None = None
    role: str | None = None
    instance: str | None = None

    def __post_init__(self) -> None:
        for value, what in ((self.swarm, "swarm"), (self.role, "role"), (self.instance, "instance")):
            if value is not None:
                check_name(value, what)
        if (self.role is None) != (self.instance is None):
            raise BadName("a component is named by its role and its instance together")
        if self.swarm is None and self.role is None:
            raise BadName("a message is about a swarm or a component")

    @property
    def words(self) -> str:
        """Return the scope as routing keys spell it."""
        return f"{self.role}.{self.instance}" if self.role is not None else str(self.swarm)


def work_exchange(swarm: str) -> str:
    return f"ph.{check_name(swarm, 'swarm')}.hive"


def work_queue(swarm: str, suffix: str) -> str:
    if check_name(suffix, "queue") == "hive":
        raise BadName("hive is the name of a swarm's exchange; use another name for the queue")
    return f"ph.{check_name(swarm, 'swarm')}.{suffix}"


def dead_letters(queue: str) -> str:
    """Return the queue of items that components failed to process."""
    return f"{queue}.dlq"


def control_queue(role: str, instance: str) -> str:
    """Return the queue in which a component or controller receives signals and events."""
    return f"{CONTROL}.{check_name(role, 'role')}.{check_name(instance, 'instance')}"


def controller_keys(swarm: str, instance: str) -> list[str]:
    """Return the routing keys that a controller always receives: commands of its swarm, status requests, and the
    orchestrator's answers."""
    lifecycle = (Signal.TEMPLATE, Signal.START, Signal.STOP, Signal.REMOVE)
    keys = [signal_key(one, Scope(swarm=swarm)) for one in lifecycle]
    keys.append(signal_key(Signal.STATUS, Scope(role=CONTROLLER, instance=instance)))
    return [*keys, status_key("status-full", ORCHESTRATOR, instance)]


def question_key(controller: str) -> str:
    """Return the routing key by which a controller asks the orchestrator whether a signal is the orchestrator's."""
    return signal_key(Signal.STATUS, Scope(role=ORCHESTRATOR, instance=controller))


def component_keys(role: str, instance: str) -> tuple[str, ...]:
    """Return the routing keys about a component that its controller receives: config updates, and its status."""
    scope = Scope(role=role, instance=instance)
    return (
        signal_key(Signal.CONFIG, scope),
        status_key("status-full", role, instance),
        status_key("status-delta", role, instance),
    )


def signal_key(signal: Signal, scope: Scope) -> str:
    if signal is Signal.CREATE:
        raise BadName("swarm-create is not a signal: the orchestrator creates a swarm itself")
    return f"sig.{signal}.{_fitting(signal, scope)}"


def event_key(outcome: Outcome, signal: Signal, scope: Scope) -> str:
    return f"ev.{outcome}.{signal}.{_fitting(signal, scope)}"


def controller_up_key(instance: str) -> str:
    return f"ev.ready.{CONTROLLER}.{check_name(instance, 'instance')}"


def status_key(kind: StatusKind, role: str, instance: str) -> str:
    return f"ev.{kind}.{check_name(role, 'role')}.{check_name(instance, 'instance')}"


def _fitting(signal: Signal, scope: Scope) -> str:
    if signal.of_component and scope.role is None:
        raise BadName(f"{signal} is about a component, and needs its role and instance")
    if not signal.of_component and scope.role is not None:
        raise BadName(f"{signal} is about a whole swarm, not about {scope.role}.{scope.instance}")
    return scope.words


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """A parsed routing key."""

    kind: Literal["signal", "outcome", "status", "controller-up"]
    scope: Scope
    signal: Signal | None = None
    outcome: Outcome | None = None
    status: StatusKind | None = None


@lru_cache(4096)
def read_key(text: str) -> Key:
    """Parse a routing key. Raises BadName if the seed has no such key."""
    words = text.split(".")
    if words[0] == "sig" and len(words) >= 3:
        signal = _signal(words[1], text)
        if signal is not Signal.CREATE:
            return Key(kind="signal", signal=signal, scope=_about(signal, words[2:], text))
    if words[0] == "ev" and len(words) >= 3:
        for status in _STATUSES:
            if words[1] == status and len(words) == 4:
                return Key(kind="status", status=status, scope=Scope(role=words[2], instance=words[3]))
        if words[1:3] == ["ready", CONTROLLER] and len(words) == 4:
            return Key(kind="controller-up", scope=Scope(role=CONTROLLER, instance=words[3]))
        for outcome in _OUTCOMES:
            if words[1] == outcome:
                signal = _signal(words[2], text)
                return Key(kind="outcome", outcome=outcome, signal=signal, scope=_about(signal, words[3:], text))
    raise BadName(f"{ascii(text)[:200]} is not a routing key of a swarm")


def _signal(word: str, text: str) -> Signal:
    try:
        return Signal(word)
    except ValueError:
        raise BadName(f"{ascii(text)[:200]}: there is no signal {ascii(word)[:64]}") from None


def _about(signal: Signal, words: list[str], text: str) -> Scope:
    if signal.of_component and len(words) == 2:
        return Scope(role=words[0], instance=words[1])
    if not signal.of_component and len(words) == 1:
        return Scope(swarm=words[0])
    raise BadName(f"{ascii(text)[:200]} does not name what {signal} is about")


def matches(binding: str, key: str) -> bool:
    """Return whether a topic exchange routes `key` by `binding`: * is one word, # any number of words."""
    if "*" not in binding and "#" not in binding:
        return binding == key  # the usual case: a controller has three such bindings per component
    wanted, words = binding.split("."), key.split(".")
    ends = {0}  # how many words of the key the pattern so far may match
    for word in wanted:
        if word == "#":
            ends = {end for start in ends for end in range(start, len(words) + 1)}
        else:
            ends = {start + 1 for start in ends if start < len(words) and word in ("*", words[start])}
    return len(words) in ends
