"""`farro.Queue`: queue plans, commands and tasks of a root, find their jobs and wait for them."""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from farro.api import sources
from farro.api.job import Job, Jobs, counts_table
from farro.api.options import (
    NO_OPTIONS,
    CallOptions,
    EnqueueOptions,
    JobName,
    JobNames,
    TaskRetries,
    job_id_of,
    request,
)
from farro.api.sources import PlanSource
from farro.api.task import TaskCall
from farro.app import App
from farro.config import reader
from farro.config.settings import Settings
from farro.doctor import root as roots
from farro.documents import Document
from farro.errors import InputError, StillRunning
from farro.execution import function_calls
from farro.host.clock import SystemClock
from farro.jobs.request import Duration, JobRequest
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass, replace
from farro.log.structured import grave_only
from farro.queue import admission, find_job, jobs, submit
from farro.queue import retry as retrying
from farro.queue import wait as waiting
from farro.queue.submit import SubmitPolicy
from farro.store.port import Store, Submission

if TYPE_CHECKING:
    from farro.api.awaiting import JobAwaiter

V = TypeVar("V")
Source = PlanSource | Sequence[str | os.PathLike[str]] | TaskCall[Any]

_CLOCK = SystemClock()
_REMEMBERED = 1_000  # functions


@dataclass(frozen=True, slots=True)
class _CheckedCall:
    options: JobRequest  # compared by identity: a task keeps its own object, which never changes
    retries: TaskRetries
    role: str
    prompt: Mapping[str, Any]


class CheckedCalls:
    """Remember checked calls of tasks, by function: the next call differs in its arguments alone, which are JSON.

    Checking a call costs as much as queueing it. Calls with options of one job only (its id, when it starts, what it
    runs after) are not remembered.
    """

    def __init__(self) -> None:
        self._known: dict[str, _CheckedCall] = {}

    def submission(self, call: Source, options: JobRequest) -> Submission | None:
        known = self._known.get(call.reference) if isinstance(call, TaskCall) else None
        if (
            known is None
            or not isinstance(call, TaskCall)
            or known.options is not call.options
            or known.retries != call.retries
            or options is not NO_OPTIONS
        ):
            return None
        step = {**known.prompt["steps"][0], "args": list(call.args)}
        return Submission(role=known.role, prompt={**known.prompt, "steps": [step]})

    def remember(self, call: TaskCall[Any], options: JobRequest, checked: Submission) -> None:
        own = call.options
        alone = own.id is None and not own.after and not own.after_any and not own.force
        if options is NO_OPTIONS and alone and checked.not_before is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[call.reference] = _CheckedCall(own, call.retries, checked.role, checked.prompt)


class Queue:
    """An open root; `farro.open` makes one.

    Safe to use from many threads, and after a fork. Close it, or leave its `with` block, when no thread uses it any
    more; the end of the program closes a queue that was left open.
    """

    def __init__(self, root: str, settings: Settings) -> None:
        self._root, self._settings = root, settings
        self._stores: dict[int, Store] = {}  # by process id: a fork must not use its parent's descriptors and threads
        self._awaiting: dict[int, JobAwaiter] = {}  # likewise
        self._closed = False
        self._known = CheckedCalls()
        self._policy = SubmitPolicy.of(root, settings, user=admission.current_user())
        self._stores[os.getpid()] = self._open()
        self._closing = weakref.finalize(self, _close, self._stores)

    @property
    def root(self) -> str:
        return self._root

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def store(self) -> Store:
        """The store behind it, for what this class does not offer."""
        if self._closed:
            raise InputError(f"this queue of {self._root} is closed; open another: farro.open({self._root!r})")
        store = self._stores.get(os.getpid())
        if store is None:
            opened = self._open()
            store = self._stores.setdefault(os.getpid(), opened)
            if store is not opened:  # another thread was faster
                opened.close()
        return store

    def _open(self) -> Store:
        return App().open_store(
            self._root, self._settings, log=grave_only(sys.stderr), actor=admission.operator_name("py")
        )

    def close(self) -> None:
        """Write what is buffered and release all resources. Jobs go on. Safe to repeat."""
        self._closed = True
        if (awaiting := self._awaiting.pop(os.getpid(), None)) is not None:
            awaiting.close()
        self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- queueing ---

    @overload
    def enqueue(self, plan: TaskCall[V], **options: Unpack[CallOptions]) -> Job[V]: ...
    @overload
    def enqueue(
        self, plan: PlanSource | Sequence[str | os.PathLike[str]], **options: Unpack[EnqueueOptions]
    ) -> Job[Any]: ...
    def enqueue(self, plan: Source, **options: Unpack[EnqueueOptions]) -> Job[Any]:
        """Queue one job, and return it once it is stored as durably as the root's config says.

        `plan` is a plan (a dict, a Plan, or the path of a plan file), a command (`["make", "test"]`, which runs in the
        working folder), or the call of a task (`send.call("ann")`).

        - `id`: chosen by you; the same id and plan again are the same job. IdConflict: another plan has it.
        - `role`, `priority` (P0 first, P3 last), `tags` (which a worker must offer).
        - `delay`: seconds, "10m" or a timedelta. `at`: a datetime (local unless it has a zone), or "tomorrow 09:30".
        - `after`: jobs that must have succeeded, `after_any`: that must have ended; ids or Jobs, one or several.
        - `timeout`, `cwd`, `env`: of the whole plan, or of the call.
        - `force`: beyond a cap, for users whom the config permits it.

        InputError (BadDocument, BadName, UnknownJob, UnknownRole): fix it; nothing was queued. CapacityReached,
        NotPermitted: refused for now. StorageTrouble: the disk failed.
        """
        return self._enqueue([(plan, "plan")], request(EnqueueOptions, "enqueue", options))[0]

    def enqueue_many(
        self,
        plans: Iterable[Source],
        *,
        role: str | None = None,
        delay: Duration | None = None,
        at: datetime | str | None = None,
        after: JobNames = (),
        after_any: JobNames = (),
        priority: str | None = None,
        tags: Iterable[str] = (),
        force: bool = False,
    ) -> Jobs:
        """Queue many jobs, in their order, with their syncs merged: several times as fast as one by one. Everything is
        checked before anything is queued. Not one transaction: a crash may keep some."""
        given = {
            "role": role,
            "delay": delay,
            "at": at,
            "after": after,
            "after_any": after_any,
            "priority": priority,
            "tags": tags,
            "force": force,
        }
        asked = request(EnqueueOptions, "enqueue_many", given)
        return self._enqueue([(plan, f"plans[{index}]") for index, plan in enumerate(plans)], asked)

    def _enqueue(self, plans: Sequence[tuple[Source, str]], options: JobRequest) -> Jobs:
        store = self.store
        asked = [self._known.submission(plan, options) or _request(plan, source, options) for plan, source in plans]
        wanted = submit.prepare(store, asked, self._policy)
        for (plan, _), one, item in zip(plans, asked, wanted, strict=True):
            if isinstance(plan, TaskCall) and isinstance(one, JobRequest):
                self._known.remember(plan, options, item)
        forced = any(isinstance(one, JobRequest) and one.force for one in asked)
        policy = self._policy.forced() if forced else self._policy
        return Jobs(Job(self, job.id) for job in submit.submit(store, wanted, policy))

    # --- queries ---

    def job(self, id: str) -> Job[Any]:  # noqa: A002 - the job's own field
        """Return the job of that id, or of the only id that begins so. Raise UnknownJob when there is none."""
        return Job(self, find_job.resolve(self.store, job_id_of(id)))

    def jobs(
        self,
        *,
        status: str | Iterable[str] = (),
        role: str | Iterable[str] = (),
        tags: str | Iterable[str] = (),
        limit: int | None = None,
    ) -> Jobs:
        """List jobs of these statuses and roles that have all of these tags, the last changed first."""
        try:
            statuses = [Status(name) for name in _several(status)]
        except ValueError as error:
            raise InputError(f"status: {error}; known: {', '.join(Status)}") from error
        asked = jobs.JobQuery(
            roles=_several(role), statuses=statuses, tags=_several(tags), last=sys.maxsize if limit is None else limit
        )
        return Jobs(Job(self, view.job_id) for view in jobs.ls(self.store, asked))

    def counts(self) -> dict[str, int]:
        """Count the jobs of each status."""
        return {str(status): count for status, count in self.store.count().items()}

    def result(self, job: JobName, timeout: float | None = None) -> Any:
        """As `Job.result`."""
        return self._job(job).result(timeout)

    def logs(self, job: JobName, step: str | None = None) -> str:
        """As `Job.logs`."""
        return self._job(job).logs(step)

    # --- waiting ---

    def wait(self, *jobs: JobName, timeout: float | None = None) -> None:
        """Wait until all have ended, well or not. Raise StillRunning, a TimeoutError, after `timeout` seconds."""
        for _ in self.as_completed(jobs, timeout=timeout):
            pass

    def as_completed(self, jobs: Iterable[JobName], timeout: float | None = None) -> Iterator[Job[Any]]:
        """Yield each job as it ends, well or not. Raise StillRunning, a TimeoutError, after `timeout` seconds."""
        store = self.store
        left = dict.fromkeys(job if isinstance(job, Job) else self.job(job_id_of(job)) for job in jobs)
        by_id = {job.id: job for job in left}
        for ended in waiting.ends(store, list(by_id), clock=_CLOCK, timeout_s=timeout):
            job = by_id[ended.job_id]
            del left[job]
            yield job
        if left:
            named = ", ".join(job.id for job in list(left)[:3]) + (
                f" and {len(left) - 3} more" if len(left) > 3 else ""
            )
            first = next(iter(left)).id
            raise StillRunning(f"not ended after {timeout:g} s: {named}; `farro explain {first}` says why")

    async def _awaited(self, job_id: str) -> Any:
        from farro.api.awaiting import JobAwaiter  # here: asyncio is slow to import, and few programs await jobs

        return await self._awaiting.setdefault(os.getpid(), JobAwaiter(self.store)).value(job_id)

    # --- commands ---

    def kill(self, job: JobName, note: str | None = None) -> Job[Any]:
        """Kill a job with every process that it started. A job that has ended stays as it is."""
        job_id = job_id_of(job)
        if isinstance(job, str):
            job_id = find_job.resolve(self.store, job_id, shortest=find_job.SHORTEST_TO_END)
        jobs.kill(self.store, job_id, by=admission.operator_name("py"), note=note)
        return Job(self, job_id)

    def retry(self, job: JobName, *, from_step: str | None = None, from_start: bool = False) -> Job[Any]:
        """Run a finished job again as a new one, from its first failed step. Raise Refused while it has not ended."""
        made = retrying.retry(
            self.store,
            self._job(job).id,
            from_step=from_step,
            from_start=from_start,
            durable=self._settings.durability == "power",
            gate=self._policy.gate,
        )
        return Job(self, made.job_id)

    def _job(self, job: JobName) -> Job[Any]:
        return job if isinstance(job, Job) else self.job(job_id_of(job))

    def __repr__(self) -> str:
        return f"<farro.Queue {self._root}{' closed' if self._closed else ''}>"

    def _repr_html_(self) -> str:
        return counts_table(self._root, {} if self._closed else self.counts())


def _request(plan: Source, source: str, options: JobRequest) -> JobRequest:
    """Return the request of a plan, a command or a call."""
    if isinstance(plan, TaskCall):
        whole = plan.within(options)
        # The step has the timeout already.
        return replace(whole.options, document=Document(whole.plan(), whole.reference), timeout=None)
    command = sources.as_command(plan)
    if command is not None:
        return replace(options, command=command, folder=os.getcwd())
    return replace(options, document=sources.document(plan, source))


def _close(stores: dict[int, Store]) -> None:
    store = stores.pop(os.getpid(), None)  # a store that a fork inherited is closed by its parent
    if store is not None:
        store.close()


def _several(named: str | Iterable[str]) -> tuple[str, ...]:
    return (named,) if isinstance(named, str) else tuple(named)


def open(root: str | os.PathLike[str] | None = None, *, make: bool = False, store: str | None = None) -> Queue:  # noqa: A001 - as gzip.open
    """Open the queue of a root: the named one, else FARRO_ROOT, else the nearest upwards from the working folder, else
    the user's own. Raise NotARoot when there is none; with `make` it is made, as `farro init` does. `store`: where the
    jobs are kept, redis://HOST:PORT/DB or "files"; default: FARRO_STORE, else the config's."""
    given = _named_root() if root is None else os.fspath(root)
    if given == "":
        raise InputError("root: it is empty; name a folder, or leave it out")
    found = None if given is None or not make else os.path.abspath(given)
    path = found or reader.find_root(given, own=True, make=make)
    settings = reader.load(path, warn=lambda text: warnings.warn(text, stacklevel=4))
    if make and not os.path.isdir(f"{path}/jobs"):
        roots.init(path, settings)
    return Queue(path, reader.with_store(settings, store))


_defaults: dict[str, Queue] = {}


def default() -> Queue:
    """Return the queue of tasks that name none. It is opened once and kept."""
    named = _named_root()
    place = named or os.getcwd()
    queue = _defaults.get(place)
    if queue is None or queue.closed:
        root = reader.find_root(named, own=True)
        queue = _defaults.get(root)
        if queue is None or queue.closed:
            queue = open(root)
        _defaults[place] = _defaults[root] = queue
    return queue


def _named_root() -> str | None:
    """Return FARRO_ROOT. Inside a task it is the step's own: a task may run on a thread of a worker, whose environment
    differs."""
    call = function_calls.current()
    return (os.environ if call is None else call.env).get("FARRO_ROOT")
