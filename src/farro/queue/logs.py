"""Read the output of a job's steps and its runner: find the files, their last lines, and follow them as the job moves.

No file is kept open between two polls (R4): a job's folder moves, so each poll finds it anew and continues where the
last one stopped. Invariant: the position in a file is kept by inode, because a retried step renames its first output to
stdout.1 and starts a new file. A job without a folder may be read from a new copy each time; there the position is kept
by name.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Hashable, Iterator, Sequence

from farro.errors import InputError
from farro.execution import progress
from farro.execution.progress import read_result, step_results
from farro.host import fs
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.queue import find_job
from farro.queue.history import attempt_numbers
from farro.store.port import JobView, Store

STREAMS = ("stdout", "stderr")
RUNNER = "runner"  # the output of the runner process itself: a tool's print, a crash
RUNNER_LOG = progress.RUNNER_LOG
BLOCK = 256 << 10
COUNTED = 256 << 20  # most bytes whose lines are counted
POLL_S = 0.2  # growing output is not in the change feed; a job that moves is


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFile:
    """One stream of one step of one attempt; `step` is None for the runner's own output."""

    attempt: int
    step: str | None
    stream: str
    path: str  # where it was when it was looked up


@dataclass(frozen=True, kw_only=True, slots=True)
class LogQuery:
    """The output to show."""

    step: str | None = None
    streams: Sequence[str] = STREAMS
    attempt: int | None = None  # None: the last attempt with output


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOutput:
    """The files to show, in the order in which their steps began."""

    view: JobView
    attempt: int | None  # None: the job has not run
    sources: tuple[LogFile, ...]


def output(store: Store, job_id: str, query: LogQuery) -> JobOutput:
    """Return the output files that exist now. InputError lists the attempts or steps there are if the query one is
    missing."""

    def read(view: JobView, folder: str) -> JobOutput:
        numbers = attempt_numbers(folder)
        if query.attempt is not None and query.attempt not in numbers:
            there = ", ".join(map(str, numbers)) or "none yet"
            raise InputError(f"{job_id} has no attempt {query.attempt}; known: {there}")
        if not numbers:
            return JobOutput(view=view, attempt=None, sources=())
        attempt = _last_with_output(folder, numbers) if query.attempt is None else query.attempt
        return JobOutput(view=view, attempt=attempt, sources=tuple(_sources(folder, attempt, query)))

    return find_job.read_folder(store, job_id, read)


def _last_with_output(folder: str, numbers: Sequence[int]) -> int:
    """Return the attempt to show by default. The manager's hops between two roles have no output."""
    return next((number for number in reversed(numbers) if progress.has_output(folder, number)), numbers[-1])


def check_step(store: Store, output: JobOutput, step: str) -> None:
    """Raise InputError, with the names there are, unless the attempt has that step."""
    if output.attempt is None:
        return
    folder = store.folder(output.view)
    names = _steps(folder, output.attempt)
    if step not in names:
        there = ", ".join(names) or "none"
        raise InputError(f"{output.view.job_id} has no step {step} in attempt {output.attempt}; known: {there}")


def _sources(folder: str, attempt: int, query: LogQuery) -> Iterator[LogFile]:
    for step in _steps(folder, attempt):
        if query.step in (None, step):
            for stream in query.streams:
                path = f"{folder}/attempts/{attempt:04d}/steps/{step}/{stream}"
                if _is_file(path):
                    yield LogFile(attempt=attempt, step=step, stream=stream, path=path)
    path = f"{folder}/attempts/{attempt:04d}/{RUNNER_LOG}"
    if query.step is None and tuple(query.streams) == STREAMS and _is_file(path):
        yield LogFile(attempt=attempt, step=None, stream=RUNNER, path=path)


def size_bytes(source: LogFile) -> int:
    """Return the size of the file; 0 when its job has been moved meanwhile."""
    try:
        return fs.lstat(source.path).st_size
    except FileNotFoundError:
        return 0


def _is_file(path: str) -> bool:
    """Return whether this is a regular file. A step may replace its output by a link or FIFO: that one is skipped."""
    try:
        return stat.S_ISREG(fs.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _steps(folder: str, attempt: int) -> list[str]:
    """Return the steps in the order in which they began, preferably as the result lists them."""
    began = progress.begun(folder, attempt)
    known = [str(item.get("id")) for item in step_results(read_result(folder, attempt))]
    places = {name: place for place, name in enumerate(known)}
    return sorted(began, key=lambda name: places.get(name, len(places)))  # a stable sort


@dataclass(frozen=True, kw_only=True, slots=True)
class TruncatedStream:
    """A stream whose end the store did not keep."""

    step: str
    stream: str
    whole_bytes: int


def truncated_streams(store: Store, output: JobOutput) -> list[TruncatedStream]:
    """Return the shown streams that a store for small files cut (redis.inline_bytes)."""
    if output.attempt is None or store.live_folders:
        return []
    shown = {(source.step, source.stream) for source in output.sources}
    found = []
    for item in step_results(read_result(store.folder(output.view), output.attempt)):
        sizes = item.get("truncated")
        for stream, size in sizes.items() if isinstance(sizes, dict) else ():
            if (str(item.get("id")), stream) in shown and isinstance(size, int):
                found.append(TruncatedStream(step=str(item.get("id")), stream=stream, whole_bytes=size))
    return found


def away(store: Store, view: JobView) -> str | None:
    """Return the agent that runs the job if its output cannot be read here yet, else None."""
    life = view.lifecycle
    if store.live_folders or life.status is not Status.IN_PROGRESS:
        return None
    return None if life.attempt in attempt_numbers(store.folder(view)) else life.agent


# --- reading -----------------------------------------------------------------------------------------------------


def read(path: str, offset: int, end: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of a file from `offset` on, in blocks, up to `end` or to its end."""
    fd = fs.open_read(path)
    try:
        while end is None or offset < end:
            block = fs.read_at(fd, BLOCK if end is None else min(BLOCK, end - offset), offset)
            if not block:
                return
            offset += len(block)
            yield block
    finally:
        os.close(fd)


def tail_offset(path: str, lines: int, most: int | None = None, end: int | None = None) -> tuple[int, int]:
    """Return where the last `lines` lines of a file (or of its first `end` bytes) begin, and how many there are.

    Reads from the end: a file of gigabytes costs as much as its last lines. `most` bounds the bytes read, because
    gigabytes may be one line.
    """
    fd = fs.open_read(path)
    try:
        size = os.fstat(fd).st_size
        end = size if end is None else min(end, size)
        if lines <= 0 or end == 0:
            return end, 0
        found = 0 if fs.read_at(fd, 1, end - 1) == b"\n" else 1  # an unfinished last line counts
        position, first = end, 0 if most is None else max(0, end - most)
        while position > first:
            start = max(first, position - BLOCK)
            block = fs.read_at(fd, position - start, start)
            at = len(block)
            while (at := block.rfind(b"\n", 0, at)) >= 0:
                if found == lines:
                    return start + at + 1, lines
                found += 1
            position = start
        return first, found
    finally:
        os.close(fd)


def last_lines(
    sources: Sequence[LogFile], lines: int, most: int | None = None, end: int | None = None
) -> list[tuple[LogFile, int]]:
    """Return where to begin in each file to show the last `lines` lines of all of them together.

    `most`: see `tail_offset`. `end`: use only so many bytes of the last file.
    """
    begin: list[tuple[LogFile, int]] = []
    for source in reversed(sources):
        offset, found = tail_offset(source.path, lines, most, end)
        lines -= found
        end = None
        begin.append((source, offset))
    return list(reversed(begin))


@dataclass(frozen=True, kw_only=True, slots=True)
class HiddenLines:
    """The output before the shown lines: all files before this one, and its first `offset` bytes."""

    source: LogFile
    offset: int
    size: int  # bytes
    lines: int | None  # None: too much to count


def hidden_lines(begin: Sequence[tuple[LogFile, int]]) -> HiddenLines | None:
    """Describe what is not shown, or return None if everything is. `begin`: where each file is shown from."""
    hidden = [(source, offset) for source, offset in begin if offset > 0]
    if not hidden:
        return None
    size = sum(offset for _, offset in hidden)
    counted = sum(_lines_before(source.path, offset) for source, offset in hidden) if size <= COUNTED else None
    return HiddenLines(source=hidden[-1][0], offset=hidden[-1][1], size=size, lines=counted)


def _lines_before(path: str, offset: int) -> int:
    count, last = 0, b"\n"
    for block in read(path, 0, offset):
        count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")  # an unfinished line counts


def whole(store: Store, job_id: str, query: LogQuery) -> Iterator[bytes]:
    """Yield all output so far in blocks. The job may move between two files; the next is found where it is by then."""
    found = output(store, job_id, query)
    fixed = LogQuery(step=query.step, streams=query.streams, attempt=found.attempt)
    return (block for source in found.sources for block in _found(store, job_id, fixed, source))


def _found(store: Store, job_id: str, query: LogQuery, source: LogFile) -> Iterator[bytes]:
    try:
        yield from read(source.path, 0)
    except FileNotFoundError:
        for other in output(store, job_id, query).sources:
            if (other.step, other.stream) == (source.step, source.stream):
                yield from read(other.path, 0)


# --- following ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A block of new output."""

    source: LogFile
    data: bytes


class LogFollower:
    """Read new output repeatedly. `run_once` polls once; `run` repeats it until the job has ended."""

    def __init__(self, store: Store, job_id: str, query: LogQuery) -> None:
        self._store = store
        self._job_id = job_id
        self._chosen = query
        self._copied = not store.live_folders
        self._read: dict[Hashable, int] = {}  # file → bytes already returned
        self._attempt = query.attempt

    def skip_to(self, begin: Sequence[tuple[LogFile, int]]) -> None:
        """Start at these positions instead of at the beginning (`--tail`)."""
        for source, offset in begin:
            with contextlib.suppress(OSError):
                self._read[self._key(source, source.path, fs.lstat(source.path).st_ino)] = offset

    def _key(self, source: LogFile, path: str, inode: int) -> Hashable:
        return (source.attempt, source.step, os.path.basename(path)) if self._copied else inode

    def run_once(self) -> tuple[Lifecycle, Iterator[Piece]]:
        """Return the job's lifecycle and the output since the last call.

        Read in this order: if the job has ended, all of its output is in this call.
        """
        view = find_job.find_view(self._store, self._job_id)
        return view.lifecycle, self._pieces(self._store.folder(view))

    def run(self, turn: Callable[[Lifecycle, Iterator[Piece]], None]) -> Lifecycle:
        """Call `turn` with new output until the job has ended."""
        cursor = self._store.changes(None).cursor
        while True:
            life, pieces = self.run_once()
            turn(life, pieces)
            if life.terminal:
                return life
            cursor = self._store.changes(cursor, timeout_s=POLL_S).cursor

    def _pieces(self, folder: str) -> Iterator[Piece]:
        try:
            numbers = attempt_numbers(folder)
        except FileNotFoundError:
            return  # the folder was moved: the next poll finds it
        if self._attempt is None and numbers:
            self._attempt = _last_with_output(folder, numbers)
        for number in numbers:
            if self._attempt is not None and number >= self._attempt:
                if self._chosen.attempt is None:
                    self._attempt = number
                elif number != self._chosen.attempt:
                    continue
                for source in _sources(folder, number, self._chosen):
                    yield from self._rest_of_earlier_tries(source)
                    yield from self._more(source, source.path)

    def _rest_of_earlier_tries(self, source: LogFile) -> Iterator[Piece]:
        home, name = source.path.rsplit("/", 1)
        with contextlib.suppress(OSError):
            for other in sorted(fs.listdir(home)):
                path = f"{home}/{other}"
                if other.startswith(f"{name}.") and self._key(source, path, fs.lstat(path).st_ino) in self._read:
                    yield from self._more(source, path)

    def _more(self, source: LogFile, path: str) -> Iterator[Piece]:
        try:
            fd = fs.open_read(path)
        except OSError:
            return  # the folder was moved: the next poll continues
        try:
            # The inode of the opened file: the name may belong to another file by now.
            key = self._key(source, path, os.fstat(fd).st_ino)
            while block := fs.read_at(fd, BLOCK, self._read.setdefault(key, 0)):
                self._read[key] += len(block)
                yield Piece(source=source, data=block)
        finally:
            os.close(fd)
