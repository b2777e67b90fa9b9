"""The Runner port: how a claimed job is executed. Every adapter passes tests/contracts/test_runner.py.

With every runner, only the worker claims, heartbeats and commits.

- The result of the work is an outcome, whatever the job's code does. [test_a_successful_plan_returns_its_report,
  test_a_step_that_fails_is_a_failed_outcome]
- When `wait` has returned or raised, no process of the attempt lives (R6). [test_no_process_outlives_the_wait]
- `tick` is called at least every second, on the caller's thread; what it raises (the job was taken away) goes through
  after everything was ended at once. [test_a_job_that_was_taken_away_is_ended_at_once]
- A stop gives running steps its grace, then the work is `Released`. [test_a_stop_releases_the_work,
  test_a_step_that_ends_in_the_grace_of_a_stop_counts]
- `terminate` may be called from any thread. [test_terminate_ends_a_run_from_another_thread]
- `process` only: the job's code may end its process in any way, and the worker lives; the outcome is then Failed with
  the category `runner_died`, retryable. [test_every_death_of_a_runner_is_an_outcome]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Generic, Literal, Protocol, TypeVar

from farro.config.settings import SecuritySettings
from farro.execution.stop import Stop
from farro.jobs.outcomes import Outcome
from farro.lazy_dataclass import dataclass, field
from farro.plans.model import AHEAD_BYTES

R = TypeVar("R")

TICK_S = 1.0  # how soon a lost claim is noticed: its processes are ended within two seconds of a kill


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarding:
    """The rules for confining jobs with allowed_paths (the config's `security`)."""

    sandbox: Literal["auto", "A", "B", "none"] = "auto"
    required: bool = False  # run nothing without a sandbox
    paths_required: bool = False  # run nothing without allowed_paths
    absolute: bool = False  # allowed paths may be absolute
    network: bool | tuple[str, ...] = False  # or these hosts
    processes: int = 512  # at once
    memory_bytes: int | None = None
    free_bytes: int = 0  # of the root's disk: a step that leaves less is ended

    @classmethod
    def of(cls, security: SecuritySettings) -> Guarding:
        return cls(
            sandbox=security.sandbox,
            required=security.require_sandbox,
            paths_required=security.require_allowed_paths,
            absolute=security.allow_absolute_paths,
            network=security.network,
            processes=security.max_processes,
            memory_bytes=security.max_memory_bytes,
            free_bytes=security.min_free_bytes,
        )


DEFAULTS = Guarding()  # a job with allowed_paths is confined as well as this machine can


def already() -> None:
    """Do nothing, for a folder that exists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One attempt with all that is needed to run it, in this process or another: it can be written as JSON."""

    job_id: str
    prompt: Mapping[str, Any]
    folder: str  # the attempt's own (R6)
    marker: str  # FARRO_CLAIM of every process of it
    env: Mapping[str, str]  # the base of its steps' environment
    cwd: str
    root: str
    step_timeout_s: float  # of a step that names none
    earlier: tuple[str, ...] = ()  # folders of earlier attempts of this hop, oldest first
    durable: bool = True  # successes of steps survive a power cut
    ahead_bytes: int = AHEAD_BYTES  # a step that has written more and goes on is piped to its reader
    role: str = "Runner"  # the queue that it was claimed from
    attempt: int = 1
    previous: tuple[tuple[str, str], ...] = ()  # earlier hops: the role, and the folder of the attempt that ended it
    step: int | None = None  # in its task's workflow, if the manager routed it there
    note: str = ""  # why it came back: a review's findings, or a person's answer
    max_bytes: int | None = None  # of the job's folder while it runs; None: unlimited
    guarding: Guarding = DEFAULTS
    # Makes the folder, which may not exist yet: the runner calls it before it needs the folder. Not part of the JSON.
    make: Callable[[], None] = field(default=already, compare=False)

    def to_json(self) -> dict[str, Any]:
        names = (name for name in self.__slots__ if name != "make")
        return {name: getattr(self, name) for name in names} | {"guarding": asdict(self.guarding)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Work:
        previous = tuple((role, folder) for role, folder in data["previous"])
        network = data["guarding"]["network"]
        network = tuple(network) if isinstance(network, list) else network  # JSON has no tuples
        guarding = Guarding(**{**data["guarding"], "network": network})
        return cls(**{**data, "earlier": tuple(data["earlier"]), "previous": previous, "guarding": guarding})


class Runner(Protocol, Generic[R]):
    """Execute work. `R` is the adapter's handle of one run, which belongs to the thread that spawned it, except for
    `is_alive` and `terminate`."""

    def run(self, batch: Sequence[Work]) -> list[Outcome | R]:
        """Run the first works of a batch as far as they are over in a moment. Returns for each begun work its outcome,
        or its run, for which the caller waits; the others were not begun. An empty list: the first takes longer, and
        the caller spawns it. [test_a_function_in_a_batch_is_reported_like_any_other]"""

    def spawn(self, work: Work, *, tick: Callable[[], None], stop: Stop) -> R:
        """Begin. Where the number of runners is bounded, wait for a free slot, ticking meanwhile; if a stop came
        first, the run is already over. Raises what `tick` does, and NoFolder if the attempt's folder cannot be made;
        `wait` reports whatever else kept it from starting."""

    def is_alive(self, run: R) -> bool:
        """Return whether it is running."""

    def terminate(self, run: R) -> None:
        """End it with all that it started, by force, within two seconds. The outcome is then a failed one. No effect
        on a run that is over."""

    def wait(self, run: R, *, tick: Callable[[], None], stop: Stop) -> Outcome:
        """Return the outcome; call it once for each run. SyncFailed: a sync failed, and the worker stops (R7)."""
