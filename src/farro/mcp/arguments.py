"""Define the arguments of each tool as dataclasses with descriptions. The schemas are generated from these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from farro.documents.constraints import Bounds, Size
from farro.lazy_dataclass import dataclass, field

MOST_BYTES = 200_000  # of one text in an answer
MOST_JOBS = 500
LONGEST_WAIT_S = 600


@dataclass(frozen=True, eq=False)
class Described:
    """The description of a field, for the agent that fills it in."""

    text: str
    bounds: Mapping[str, float] = field(default_factory=dict)  # in the schema only: `queue.submit` checks them

    def fault(self, value: Any, /) -> str | None:
        return None

    def schema(self) -> dict[str, Any]:
        return {**self.bounds, "description": self.text}


_JOB = Described("A job's id, its name, or the beginning of an id that no other job shares.")
JobName = Annotated[str, _JOB]
Note = Annotated[str | None, Described("Why; kept in the job's history.")]
Bytes = Annotated[
    int,
    Bounds(at_least=1, at_most=MOST_BYTES),
    Described("At most so many bytes of each text; the rest is cut."),
]
StatusName = Literal["queued", "in_progress", "succeeded", "failed", "stale", "killed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NoArguments:
    """A tool without arguments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OneJob:
    job: JobName


@dataclass(frozen=True, kw_only=True, slots=True)
class JobsAsked:
    roles: Annotated[tuple[str, ...], Described("Only jobs of these roles (queues).")] = ()
    statuses: Annotated[tuple[StatusName, ...], Described("Only jobs of these statuses.")] = ()
    tags: Annotated[tuple[str, ...], Described("Only jobs that need all of these tags.")] = ()
    limit: Annotated[int, Bounds(at_least=1, at_most=MOST_JOBS), Described("At most so many, the newest first.")] = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    job: JobName
    max_bytes: Bytes = 8_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultAsked:
    job: JobName
    max_bytes: Bytes = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class LogAsked:
    job: JobName
    step: Annotated[str | None, Described("Only this step.")] = None
    stream: Annotated[Literal["stdout", "stderr"] | None, Described("Only this stream; else both.")] = None
    attempt: Annotated[int | None, Described("This attempt; else the last that has output.")] = None
    tail: Annotated[
        int, Bounds(at_least=1, at_most=10_000), Described("The last so many lines of all streams together.")
    ] = 200
    max_bytes: Bytes = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class FileAsked:
    job: JobName
    name: Annotated[str, Described("A file of the job, as show_job lists it, such as attempts/0001/result.json.")]
    offset: Annotated[int, Bounds(at_least=0), Described("The byte to begin at.")] = 0
    max_bytes: Bytes = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitAsked:
    jobs: Annotated[tuple[str, ...], Size(at_least=1, at_most=MOST_JOBS), Described("The jobs, by id or name.")]
    timeout_s: Annotated[
        float,
        Bounds(at_least=0, at_most=LONGEST_WAIT_S),
        Described("Give up after so many seconds; say what is left."),
    ] = 60.0
    first: Annotated[bool, Described("Return when the first of them has ended.")] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StatsAsked:
    roles: Annotated[tuple[str, ...], Described("Only these roles.")] = ()
    window_s: Annotated[float, Bounds(more_than=0), Described("How far back, in seconds.")] = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersAsked:
    everyone: Annotated[bool, Described("Also watchdogs, managers and commands that hold a job.")] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanNamed:
    plan_id: Annotated[str, Described("A kept plan, as list_plans tells it.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanArguments:
    plan: Annotated[dict[str, Any], Described("The plan, as enqueue_plan takes it.")]


# --- tools that change something ---

Role = Annotated[str | None, Described("The queue; else the plan's own, else Runner.")]
JobId = Annotated[
    str | None,
    Described("The job's id, chosen by you: the same id and content again is the same job."),
]
Tags = Annotated[tuple[str, ...], Described("Only a worker that offers all of these tags takes it.")]
Priority = Annotated[Literal["P0", "P1", "P2", "P3"] | None, Described("P0 first, P3 last; else P2.")]
After = Annotated[tuple[str, ...], Described("Run only when these jobs have succeeded.")]
AfterAny = Annotated[tuple[str, ...], Described("Run when these jobs have ended, however.")]
Delay = Annotated[float | None, Described("Not before so many seconds from now.", {"minimum": 0})]


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueArguments:
    """Arguments of every tool that queues a job."""

    role: Role = None
    id: JobId = None
    tags: Tags = ()
    priority: Priority = None
    after: After = ()
    after_any: AfterAny = ()
    delay_s: Delay = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandWanted(QueueArguments):
    command: Annotated[
        tuple[str, ...],
        Size(at_least=1),
        Described('The program and its arguments, such as ["make", "test"]. No shell: for one say ["sh", "-c", "…"].'),
    ]
    cwd: Annotated[str | None, Described("The folder where it runs; else where this server was started.")] = None
    env: Annotated[dict[str, str], Described("Variables for its environment.")] = field(default_factory=dict)
    timeout_s: Annotated[float | None, Described("End it after so many seconds.", {"exclusiveMinimum": 0})] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanWanted(QueueArguments):
    plan: Annotated[
        dict[str, Any] | None,
        Described(
            'The plan: {"name": …, "steps": [{"id": "build", "command": "make", "args": [], "needs": [],'
            ' "timeout": 600, "cwd": …, "env": {}, "input_from_step": …, "retries": 0, "retry_delay": 0}],'
            ' "parallel": 1, "allowed_paths": [], "metadata": {}}. check_plan tells all that is wrong with one.'
        ),
    ] = None
    plan_id: Annotated[str | None, Described("Instead of a plan: one that is kept, as list_plans tells it.")] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentWanted(QueueArguments):
    role: Annotated[str, Described("Who shall do it, such as SeniorEngineer, CodeReviewer or DocWriter.")]
    rubric: Annotated[str, Described("What to do, and how it is judged.")]
    success: Annotated[str, Described("When the work is done.")]
    allowed_paths: Annotated[
        tuple[str, ...], Size(at_least=1), Described('Paths that may be written, such as ["src/", "tests/"].')
    ]
    next_role: Annotated[str | None, Described("Who gets it next; else the manager decides.")] = None
    task: Annotated[str | None, Described("The task that it belongs to: an id in tasks/.")] = None
    inputs: Annotated[dict[str, Any], Described("Anything that the agent shall know.")] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSteered:
    job: JobName
    note: Note = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryWanted:
    job: JobName
    from_step: Annotated[str | None, Described("Run this step again, and what came after it.")] = None
    from_start: Annotated[bool, Described("Run every step again; else those that succeeded are kept.")] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountNamed:
    account: Annotated[str, Described("The account, as explain_job tells it, or a provider that uses it.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    job: JobName
    note: Annotated[str, Described("What is wrong; the role that gets it back is told.")]
