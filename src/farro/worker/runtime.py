"""The Runtime port: start and stop long-running components. Every adapter passes tests/contracts/test_runtime.py.

The caller, such as a swarm's controller, decides which components run and when one is started again. Guarantees:

- A launched component outlives its launcher, and later launchers find it: no state is kept in memory alone.
  [test_a_component_outlives_its_launcher_and_is_adopted_by_the_next]
- A launcher may die at any moment: a component that it had started is found and can be stopped; if not, none exists.
  [test_a_launcher_that_dies_before_it_wrote_the_number_leaves_nothing_unknown]
- One name is one component: launching a live one is refused, also if two launch it at once.
  [test_one_name_is_one_component, test_two_launchers_at_once_start_it_once]
- A component is alive if exactly its process is: PID, start time and boot id are compared, never a PID alone.
  [test_a_reused_process_id_is_not_the_component]
- Stopping sends SIGTERM to its group, and after the grace SIGKILL to all that it started, also outside its group.
  [test_a_component_that_ignores_signals_is_killed_with_its_process_tree,
  test_leftover_processes_end_with_their_component]
- The leftover processes of a dead component are ended before it is launched again.
  [test_leftover_processes_end_before_the_next_launch]
- Its exit code is known only if its launcher saw it; it is never guessed. [test_the_exit_of_a_component_is_reported]
- Limits apply to it and to all that it starts. [test_memory_is_limited, test_processor_time_is_limited]
- Its log is kept, and bounded: `tidy`. [test_a_log_is_bounded_while_its_component_writes]

A container runtime can implement the same port: it uses `image` instead of `argv`, the environment and the limits, and
copies the container's output to `log`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from farro.host.clock import Clock
from farro.jobs.times import parse_timestamp
from farro.lazy_dataclass import dataclass

STOP_S = 10.0

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # of an instance: part of file names, queues and host names


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentLimits:
    """The limits of a component; None: the launcher's own limit."""

    memory_bytes: int | None = None  # of all of its processes together where the machine can tell, else of each
    cpu_s: int | None = None  # seconds of CPU of a process; then it is ended


NO_LIMITS = ComponentLimits()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessSpec:
    """A component to launch."""

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
    log_offset: int = 0  # where its output begins in the log
    exit_code: int | None = None  # of one that ended, a signal's number negative; None: it lives, or it is unknown


def uptime_s(seen: ProcessView, clock: Clock) -> float:
    """Return how long a live component has been running."""
    return round(max(0.0, (clock.now() - parse_timestamp(seen.launched_at)).total_seconds()), 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopped:
    name: str
    how: Literal["stopped", "killed", "was gone"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentProcess:
    """A service of a root, or a component of a swarm, as `farro ps` lists it."""

    name: str
    role: str
    swarm: str  # `farro` for the services of `farro up`
    state: str  # Provisioning, Healthy, Running, Stopped, Failed
    enabled: bool
    pid: int | None  # None if it does not run
    uptime_s: float | None
    restarts: int
    log: str
    failure: str | None = None
    last_end: dict[str, str] | None = None  # at, how, words: of the earlier process, or of a dead one


class Runtime(Protocol):
    def launch(self, component: ProcessSpec) -> ProcessView:
        """Start it, detached. AlreadyRunning: it is alive. InputError: it cannot be executed here, or its limits cannot
        be set; then nothing of it is left."""

    def look(self, name: str) -> ProcessView | None:
        """Return the component; None if it was never launched here, or was stopped since."""

    def list(self) -> Sequence[ProcessView]:
        """Return every component that was launched and not stopped, dead ones included, sorted by name."""

    def stop(self, names: Sequence[str], grace_s: float = STOP_S) -> Sequence[Stopped]:
        """Stop them all at once, after `grace_s` by force, and remove their records. The answer omits unknown names."""

    def kill(self, name: str) -> bool:
        """Kill a component that hangs, with all that it started; return whether it was alive. Its record stays, so that
        its next launch is counted. [test_a_killed_component_is_seen_as_dead]"""

    def end_alone(self, name: str, grace_s: float) -> bool:
        """End a component that launched others, and leave those: SIGTERM, and after `grace_s` SIGKILL. Return whether
        it was alive. Its record stays. [test_a_component_is_ended_without_those_that_it_launched]"""

    def tidy(self) -> None:
        """Bound the size of the logs. Call it now and then, from any number of processes."""
