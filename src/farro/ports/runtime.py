"""The Runtime port: what starts long-running components and ends them. Guarantees in words; every adapter passes
tests/contracts/test_runtime.py.

Which components there are lives in operations (`farro start`) and, later, in a swarm's controller; this knows none.

- A component that was launched goes on when its launcher ends, and whoever comes later finds it: nothing is known only
  in memory. [test_a_component_outlives_its_launcher_and_is_adopted_by_the_next]
- A launcher may die at any moment: what it had started is found and can be stopped; what it had not is not there.
  [test_a_launcher_that_dies_before_it_wrote_the_number_leaves_nothing_unknown]
- One name is one component: launching one that lives is refused, also when two launch at once.
  [test_one_name_is_one_component, test_two_launchers_at_once_start_it_once]
- It lives when exactly that process does: number, start time and boot together, never a number alone.
  [test_a_number_that_is_anothers_now_is_not_it]
- Stopping is SIGTERM to its group, the grace, then SIGKILL to everything that it started, also what left its group.
  [test_a_component_that_is_deaf_is_killed_with_its_whole_tree, test_what_a_component_left_is_ended_with_it]
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

STOP_S = 10.0

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # of an instance: part of file names, queues and host names


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """What to launch."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    log: str  # the file that its stdout and stderr are appended to


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """A component as it was last launched, and whether it lives."""

    name: str
    alive: bool
    pid: int | None  # None: it is not known, because its launcher died, and it is not there
    argv: tuple[str, ...]
    log: str
    launched_at: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopped:
    name: str
    how: Literal["stopped", "killed", "was gone"]


class Runtime(Protocol):
    def launch(self, component: Component) -> Seen:
        """Start it, detached. AlreadyRunning when it lives; InputError when it cannot be executed, and then nothing is
        left of it."""

    def look(self, name: str) -> Seen | None:
        """None: never launched here, or stopped since."""

    def list(self) -> Sequence[Seen]:
        """Every component that was launched and not stopped, dead ones also, by name."""

    def stop(self, names: Sequence[str], grace_s: float = STOP_S) -> Sequence[Stopped]:
        """End them, all at once, in `grace_s`; after that by force. Their records go. Names that are unknown are left
        out of the answer."""
