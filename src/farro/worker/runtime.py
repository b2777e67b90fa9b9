"""The Runtime port: what starts long-running components and ends them. Guarantees in words; every adapter passes
tests/contracts/test_runtime.py.

Which components there are lives in a swarm's controller; when one is started again, in swarm.restarts. This knows none.

- A component that was launched goes on when its launcher ends, and later launchers find it: nothing is known only
  in memory. [test_a_component_outlives_its_launcher_and_is_adopted_by_the_next]
- A launcher may die at any moment: what it had started is found and can be stopped; what it had not is not there.
  [test_a_launcher_that_dies_before_it_wrote_the_number_leaves_nothing_unknown]
- One name is one component: launching one that lives is refused, also when two launch at once.
  [test_one_name_is_one_component, test_two_launchers_at_once_start_it_once]
- It lives when exactly that process does: number, start time and boot together, never a number alone.
  [test_a_reused_process_id_is_not_the_component]
- Stopping is SIGTERM to its group, the grace, then SIGKILL to everything that it started, also what left its group.
  [test_a_component_that_ignores_signals_is_killed_with_its_process_tree,
  test_leftover_processes_end_with_their_component]
- What one that died had started is ended before it is launched again.
  [test_leftover_processes_end_before_the_next_launch]
- How it ended is known if its launcher saw it; it is never guessed. [test_the_exit_of_a_component_is_reported]
- Limits hold for it and for what it starts. [test_memory_is_limited, test_processor_time_is_limited]
- Its log is kept, and bounded: `tidy`. [test_a_log_is_bounded_while_its_component_writes]

A runtime of containers needs no more than this: `image` instead of `argv`, the environment, the limits; `log` is then
where it copies what the container says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from farro.lazy_dataclass import dataclass

STOP_S = 10.0

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # of an instance: part of file names, queues and host names


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentLimits:
    """What a component may use; None: what its launcher may."""

    memory_bytes: int | None = None  # of all of its processes together where the machine can tell, else of each
    cpu_s: int | None = None  # seconds of CPU of a process; then it is ended


NO_LIMITS = ComponentLimits()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessSpec:
    """What to launch."""

    name: str
    argv: tuple[str, ...]  # may be empty where `image` says what runs
    env: Mapping[str, str]
    cwd: str
    log: str  # the file that its stdout and stderr are appended to
    image: str | None = None  # for runtimes of containers
    limits: ComponentLimits = NO_LIMITS


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessView:
    """A component as it was last launched, and whether it lives."""

    name: str
    alive: bool
    pid: int | None  # None: it is not known, because its launcher died, and it is not there
    argv: tuple[str, ...]
    log: str
    launched_at: str
    launches: int = 1  # how often it was launched since it was last stopped
    exit_code: int | None = None  # of one that ended, a signal's number negative; None: it lives, or it is unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopped:
    name: str
    how: Literal["stopped", "killed", "was gone"]


class Runtime(Protocol):
    def launch(self, component: ProcessSpec) -> ProcessView:
        """Start it, detached. AlreadyRunning when it lives; InputError when it cannot be executed here, or its limits
        cannot be set, and then nothing is left of it."""

    def look(self, name: str) -> ProcessView | None:
        """None: never launched here, or stopped since."""

    def list(self) -> Sequence[ProcessView]:
        """Every component that was launched and not stopped, dead ones also, by name."""

    def stop(self, names: Sequence[str], grace_s: float = STOP_S) -> Sequence[Stopped]:
        """End them, all at once, in `grace_s`; after that by force. Their records go. Names that are unknown are left
        out of the answer."""

    def kill(self, name: str) -> bool:
        """End one that hangs, by force, with all that it started; whether it lived. Its record stays, as of any that
        died: its next launch is counted. [test_a_killed_component_is_seen_as_dead]"""

    def tidy(self) -> None:
        """Keep the logs within bounds. Call it now and then; any number of processes may."""
