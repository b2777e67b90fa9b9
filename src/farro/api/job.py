"""`farro.Job`: a handle of a job, to look at it, wait for it, and get its result and output."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from farro.errors import FarroError, UnknownJob
from farro.jobs.times import seconds_between
from farro.queue import logs, results
from farro.queue.logs import LogQuery
from farro.store.port import JobView

if TYPE_CHECKING:
    from farro.api.queue import Queue

V = TypeVar("V", covariant=True)


class Job(Generic[V]):
    """A handle of a job. It is cheap and keeps nothing but the id: each property and method looks the job up anew.

    Every method raises UnknownJob when the job is gone (`farro prune` removed it).
    """

    __slots__ = ("_id", "_queue")

    def __init__(self, queue: Queue, id: str) -> None:  # noqa: A002 - the job's own field
        self._queue, self._id = queue, id

    @property
    def id(self) -> str:
        return self._id

    @property
    def queue(self) -> Queue:
        return self._queue

    @property
    def view(self) -> JobView:
        """The contents of job.json at this moment."""
        view = self._queue.store.find(self._id)
        if view is None:
            raise UnknownJob(f"no job {self._id} in {self._queue.root}; it may have been pruned")
        return view

    @property
    def status(self) -> str:
        """queued, in_progress, succeeded, failed, stale or killed."""
        return str(self.view.status)

    @property
    def done(self) -> bool:
        """Whether it has ended for good, well or not."""
        return self.view.lifecycle.terminal

    @property
    def error(self) -> Mapping[str, Any] | None:
        """`{"category": …, "message": …}` of a job that failed."""
        return self.view.lifecycle.error

    @property
    def folder(self) -> str:
        """Its folder at this moment: a job moves when its status changes."""
        return self._queue.store.folder(self.view)

    def wait(self, timeout: float | None = None) -> Job[V]:
        """Return itself when it has ended, well or not. Raise StillRunning, a TimeoutError, after `timeout` seconds."""
        self._queue.wait(self, timeout=timeout)
        return self

    def result(self, timeout: float | None = None) -> V:
        """Wait, and return its value: of a task what the function returned; of an agent prompt the answer of its last
        role, an object of its form or text; of a plan the stdout of its last step as text. Raise JobFailed when it
        failed or was killed; StillRunning, a TimeoutError, after `timeout` seconds."""
        self.wait(timeout)
        value: V = results.value(self._answer())
        return value

    def __await__(self) -> Generator[Any, Any, V]:
        """`await job` under asyncio: as `result`, without blocking a thread. `asyncio.timeout` bounds it."""
        return self._queue._awaited(self._id).__await__()

    @property
    def result_json(self) -> Mapping[str, Any]:
        """result.json of its latest attempt, with a record of each step; empty before there is one."""
        return self._answer().result

    def stdout(self, step: str | None = None) -> str:
        """Return the stdout of its steps, or of one of them, so far, as text."""
        return self._output(step, ("stdout",))

    def stderr(self, step: str | None = None) -> str:
        """Return the stderr of its steps; of a task what the function printed, and the traceback."""
        return self._output(step, ("stderr",))

    def logs(self, step: str | None = None) -> str:
        """Return stdout and stderr, step after step, as `farro logs` prints them."""
        return self._output(step, logs.STREAMS)

    def kill(self, note: str | None = None) -> Job[V]:
        """Kill it with every process that it started. A job that has ended stays as it is."""
        self._queue.kill(self, note=note)
        return self

    def retry(self, *, from_step: str | None = None, from_start: bool = False) -> Job[V]:
        """Run it again as a new job, from its first failed step. Raise Refused while it has not ended."""
        again: Job[V] = self._queue.retry(self, from_step=from_step, from_start=from_start)
        return again

    def _answer(self) -> results.JobAnswer:
        return results.answer(self._queue.store, self._id)

    def _output(self, step: str | None, streams: tuple[str, ...]) -> str:
        store = self._queue.store
        for _ in range(4):
            told = logs.output(store, self._id, LogQuery(step=step, streams=streams))
            if step is not None:
                logs.check_step(store, told, step)
            try:
                blocks = [b"".join(logs.read(source.path, 0)) for source in told.sources]
            except FileNotFoundError:
                continue  # it moved while it was read
            return b"".join(blocks).decode("utf-8", "replace")
        raise UnknownJob(f"{self._id} moves faster than it can be read; try again")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and (self._id, self._queue.root) == (other._id, other._queue.root)

    def __hash__(self) -> int:
        return hash((self._id, self._queue.root))

    def __repr__(self) -> str:
        return f"<farro.Job {self._id} {self._status_or_why_not()}>"

    def _repr_html_(self) -> str:
        return _jobs_table([self])

    def _status_or_why_not(self) -> str:
        try:
            return self.status
        except UnknownJob:
            return "gone"
        except (FarroError, OSError):
            return "closed" if self._queue.closed else "unreadable"


class Jobs(list[Job[Any]]):
    """A list of jobs that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return _jobs_table(self)


# --- HTML tables for notebooks. All text of a job is escaped, so that it cannot inject HTML. ---

_SHOWN = 200  # jobs
_LONGEST = 200  # characters of a cell


def _jobs_table(found: Sequence[Job[Any]]) -> str:
    rows = [_row(job) for job in found[:_SHOWN]]
    more = f"<p>and {len(found) - _SHOWN} more</p>" if len(found) > _SHOWN else ""
    return _table(("job", "status", "role", "try", "seconds", "error"), rows) + more


def counts_table(root: str, found: Mapping[str, int]) -> str:
    return f"<p>farro.Queue <code>{escape(root)}</code></p>" + _table(tuple(found), [tuple(found.values())])


def _table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{_cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"


def _cells(tag: str, cells: Iterable[object]) -> str:
    return "".join(f"<{tag}>{escape(_short(str(cell)))}</{tag}>" for cell in cells)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _row(job: Job[Any]) -> tuple[object, ...]:
    try:
        life = job.view.lifecycle
    except UnknownJob:
        return job.id, "gone", "", "", "", ""
    except (FarroError, OSError) as error:
        return job.id, "?", "", "", "", error
    took_s = seconds_between(life.first_claimed_at, life.finalized_at)
    message = (life.error or {}).get("message") or ""
    return job.id, life.status, life.role, life.attempt, "" if took_s is None else f"{took_s:.2f}", message
