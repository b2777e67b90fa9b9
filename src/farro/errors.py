"""The whole exception tree of farro, split by what the caller can do about it.

A failed step is an outcome (`jobs.outcomes`), not an exception.

    FarroError
    ├── InputError            fix the input                       exit 2
    │   ├── BadDocument       a file or text is wrong, with all places at once
    │   ├── BadArgument       a task's arguments do not fit its function, or are not JSON; a TypeError too
    │   ├── BadName           an id, role, agent or tag does not match its pattern
    │   ├── NotARoot          no farro root here; `farro init` makes one
    │   ├── UnknownJob        no job of that id
    │   ├── UnknownRole       no such role in this root
    │   ├── IdConflict        that id was submitted before with other content
    │   ├── NoTask            the job's task is not in tasks/
    │   └── NameTaken         that name means another job
    ├── Refused               not allowed now                     exit 3
    │   ├── IllegalTransition the job's state does not permit it
    │   ├── CapacityReached   a queue is full
    │   ├── NotPermitted      the config does not permit it to this user
    │   ├── BudgetExceeded    a call would cost more than its budget has left
    │   └── AlreadyRunning    a component of that name runs
    ├── ProviderTrouble       a provider gave no answer (agents.providers.port): tried again, elsewhere, or reported
    ├── TryAgain              nothing changed; the same call may succeed later
    │   ├── StorageTrouble    the filesystem failed (full, I/O error, too many files)
    │   │   ├── DiskFull      … because there is no room: nothing was accepted, and it works when there is
    │   │   └── NoFolder      … to the folder of an attempt that has not begun: this machine's fault, not the job's
    │   └── BusTrouble        the broker does not answer, or refused
    ├── NotReplicated         done on the master of a Redis store, but not on as many replicas as configured
    ├── Lost                  another process owns it now: stop, write nothing
    │   ├── ClaimLost         the job was taken from this agent
    │   └── AgentLost         the agent itself was declared dead
    ├── JobFailed             raised for the result of a job that failed or was killed (Python API)
    ├── StillRunning          the job had not ended when the caller's time was over; a TimeoutError too
    ├── Interrupted           a plan was stopped on request (execution.stop): its job is released
    └── Damaged               what is stored contradicts itself; shown, never guessed over
        ├── UnknownSchema     written by another version of farro
        ├── Unreadable        something else is where a job's file belongs
        └── SyncFailed        the disk did not confirm; no write of that group is acknowledged
"""

from __future__ import annotations

from farro.lazy_dataclass import dataclass


class FarroError(Exception):
    """An error that farro can explain. The message says what, which id, and what to do next."""

    exit_code = 1


class InputError(FarroError):
    """The request is wrong: correct it and ask again. Nothing was written."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A problem in a document, and where it is: `source:line:column: path: message`."""

    path: str  # "steps[2].input_from_step"; empty for the document itself
    message: str  # what is wrong and what would be right
    line: int | None = None
    column: int | None = None

    def render(self, source: str) -> str:
        place = source if self.line is None else f"{source}:{self.line}:{self.column}"
        return f"{place}: {self.path}: {self.message}" if self.path else f"{place}: {self.message}"


class BadDocument(InputError):
    """A document was refused; every problem found is in it, in the order of the text."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.source = source
        self.problems = problems
        super().__init__("\n".join(problem.render(source) for problem in problems))


class BadArgument(InputError, TypeError):
    """The arguments of a task do not fit its function, or are not JSON. Nothing was queued."""


class BadName(InputError):
    """An id, role, agent name or tag does not match its pattern; no path was built from it."""


class NotARoot(InputError):
    """The folder is not a farro root."""


class UnknownJob(InputError):
    """No job of that id is in this root."""


class UnknownRole(InputError):
    """The role is not one of this root's."""


class NoTask(InputError):
    """A job names a task, and there is no file of it."""


class IdConflict(InputError):
    """A caller-chosen id was submitted before with other content. The first job is untouched."""


class NameTaken(InputError):
    """A name belongs to another job than the caller expected, or to no job. Nothing was queued."""

    def __init__(self, name: str, job_id: str | None) -> None:
        self.name = name
        self.job_id = job_id  # None: no job has it
        super().__init__(
            f"no job has the name {name}; `farro job list` lists the names"
            if job_id is None
            else f"the name {name} is taken, by {job_id}; see it with `farro status --job {name}`, run it again with "
            f"`farro reset --job {name}`, or choose another name"
        )


class Refused(FarroError):
    """Policy, capacity or the job's state does not permit it. Nothing changed."""

    exit_code = 3


class IllegalTransition(Refused):
    """The job's state does not permit the transition (`jobs.states`). Nothing changed."""


class CapacityReached(Refused):
    """A role, or all of them together, has as many jobs as its cap allows. Nothing was queued."""


class NotPermitted(Refused):
    """The config does not permit this to this user. Nothing changed."""


class BudgetExceeded(Refused):
    """The call would exceed the budget of its job, its role or the day. It was not made."""


class AlreadyRunning(Refused):
    """A component of that name runs already. Nothing was started."""


class TryAgain(FarroError):
    """A temporary failure: nothing changed, and the same call may succeed later."""


class StorageTrouble(TryAgain):
    """The filesystem refused a call, also after retries on new temporary files. Existing state is intact."""


class DiskFull(StorageTrouble):
    """There is no room on the disk. Nothing was accepted, so the caller may repeat the call until there is room."""


class NotReplicated(FarroError):
    """Done, but on fewer replicas than configured: it is lost if the master is."""


class NoFolder(StorageTrouble):
    """This machine cannot make a folder for an attempt. The attempt has not begun, and another machine may run it."""


class BusTrouble(TryAgain):
    """The message bus of a swarm did not answer, or refused. The message may or may not have been sent."""


class Lost(FarroError):
    """Another process owns it now. The receiver of this exception stops and writes nothing."""


class ClaimLost(Lost):
    """The job was taken from this agent: recovered by a watchdog, or killed by an operator."""


class AgentLost(Lost):
    """The agent itself was declared dead; it needs a new name before it can claim again."""


class JobFailed(FarroError):
    """The job failed or was killed, so it has no result."""

    def __init__(
        self,
        job_id: str,
        *,
        status: str,
        message: str,
        category: str | None = None,
        error_type: str | None = None,
        step: str | None = None,
        last_words: str = "",
    ) -> None:
        self.job_id = job_id
        self.status = status  # failed or killed
        self.message = message  # of the exception that the task raised, else of the job's error
        self.category = category  # step_failed, timeout, missing_tool, …
        self.error_type = error_type  # "ValueError", "shop.errors.SoldOut": where a task raised it
        self.step = step
        self.last_words = last_words  # the end of the step's output
        kind = "" if error_type is None else f"{error_type}: "
        super().__init__(f"{job_id} {status}: {kind}{message} (`farro logs {job_id}` has what it said)")

    def __reduce__(self) -> tuple[object, ...]:
        return _job_failed, (self.job_id, {name: value for name, value in vars(self).items() if name != "job_id"})


def _job_failed(job_id: str, fields: dict[str, str]) -> JobFailed:
    return JobFailed(job_id, **fields)  # an exception's own __reduce__ cannot pass keyword arguments


class StillRunning(FarroError, TimeoutError):
    """The job has not ended within the caller's timeout. It goes on."""


class Damaged(FarroError):
    """What is stored contradicts itself. It is reported and kept, never overwritten by a guess."""


class UnknownSchema(Damaged):
    """The job was written with a schema version that this program does not know."""


class Unreadable(Damaged):
    """In place of a job's file is a folder, a link or a pipe, or a file that this user may not read."""


class SyncFailed(Damaged):
    """A sync failed, so it is unknown what reached the disk: nothing is acknowledged, the worker stops, recovery
    decides."""
