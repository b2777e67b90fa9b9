"""What a job's steps, and its runner, said: which files hold it, their last lines, and following them as the job moves.

Printing lives in cli; how a step writes its files lives in execution.

Nothing is kept open between two looks (R4): a job's folder moves, so each look finds it anew and reads on from where it
was. Invariant: what was read of a file is counted by its inode, for a step that is tried again renames its first
output to stdout.1 and begins a new one. Of a job without a folder each look may be at another copy: there it is counted
by its name.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Hashable, Iterator, Sequence

from farro.errors import InputError, UnknownJob
from farro.execution import progress
from farro.execution.progress import read_result
from farro.host import fs
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.queue import tree
from farro.queue.history import attempt_numbers
from farro.store.port import JobView, Store

STREAMS = ("stdout", "stderr")
RUNNER = "runner"  # what a runner of its own said itself: a tool's print, a crash
RUNNER_LOG = progress.RUNNER_LOG
BLOCK = 256 << 10
COUNTED = 256 << 20  # bytes whose lines are counted
POLL_S = 0.2  # output that grows tells nobody; a job that moves on does


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One stream of one step of one attempt; or of none, what its runner said."""

    attempt: int
    step: str | None
    stream: str
    path: str  # as it lay when it was looked up


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """What a person asked to see."""

    step: str | None = None
    streams: Sequence[str] = STREAMS
    attempt: int | None = None  # None: the last that has output


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """The files to show, in the order in which their steps began."""

    view: JobView
    attempt: int | None  # None: it has not run
    sources: tuple[Source, ...]


def output(store: Store, root: str, job_id: str, chosen: Chosen) -> Output:
    """What there is now. InputError names the attempts or steps that there are when the chosen one is not."""
    for _ in range(4):
        view = _find(store, root, job_id)
        folder = store.folder(view)
        with contextlib.suppress(FileNotFoundError):  # it moved on while we looked
            numbers = attempt_numbers(folder)
            if chosen.attempt is not None and chosen.attempt not in numbers:
                there = ", ".join(map(str, numbers)) or "none yet"
                raise InputError(f"{job_id} has no attempt {chosen.attempt}; there is {there}")
            if not numbers:
                return Output(view=view, attempt=None, sources=())
            attempt = _last_with_output(folder, numbers) if chosen.attempt is None else chosen.attempt
            return Output(view=view, attempt=attempt, sources=tuple(_sources(folder, attempt, chosen)))
    raise UnknownJob(f"{job_id} moves faster than it can be read; try again")


def _last_with_output(folder: str, numbers: Sequence[int]) -> int:
    """What a person asks for who names no attempt: the hops of the manager between two roles have nothing to show."""
    return next((number for number in reversed(numbers) if progress.has_output(folder, number)), numbers[-1])


def check_step(store: Store, told: Output, step: str) -> None:
    """InputError unless that attempt has that step; its names are told."""
    if told.attempt is None:
        return
    folder = store.folder(told.view)
    names = _steps(folder, told.attempt)
    if step not in names:
        there = ", ".join(names) or "none"
        raise InputError(f"{told.view.job_id} has no step {step} in attempt {told.attempt}; there is {there}")


def _find(store: Store, root: str, job_id: str) -> JobView:
    view = store.find(job_id)
    if view is None:
        raise UnknownJob(f"no job {job_id} in {root}; `farro ls` lists what there is")
    return view


def _sources(folder: str, attempt: int, chosen: Chosen) -> Iterator[Source]:
    for step in _steps(folder, attempt):
        if chosen.step in (None, step):
            for stream in chosen.streams:
                path = f"{folder}/attempts/{attempt:04d}/steps/{step}/{stream}"
                if _is_file(path):
                    yield Source(attempt=attempt, step=step, stream=stream, path=path)
    path = f"{folder}/attempts/{attempt:04d}/{RUNNER_LOG}"
    if chosen.step is None and tuple(chosen.streams) == STREAMS and _is_file(path):
        yield Source(attempt=attempt, step=None, stream=RUNNER, path=path)


def _is_file(path: str) -> bool:
    """A step may leave a link or a FIFO in the place of its output: nobody reads that, and the others' are shown."""
    try:
        return stat.S_ISREG(fs.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _steps(folder: str, attempt: int) -> list[str]:
    """In the order in which they began; the result knows it best."""
    began = progress.begun(folder, attempt)
    told = read_result(folder, attempt).get("step_results")
    known = [str(item.get("id")) for item in told if isinstance(item, dict)] if isinstance(told, list) else []
    places = {name: place for place, name in enumerate(known)}
    return sorted(began, key=lambda name: places.get(name, len(places)))  # a stable sort


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A stream of which only the beginning was kept."""

    step: str
    stream: str
    whole_bytes: int


def cuts(store: Store, told: Output) -> list[Cut]:
    """What a store that keeps no large files left out of what is shown (redis.inline_bytes)."""
    if told.attempt is None or tree.in_folders(store):
        return []
    shown = {(source.step, source.stream) for source in told.sources}
    results = read_result(store.folder(told.view), told.attempt).get("step_results")
    found = []
    for item in results if isinstance(results, list) else []:
        sizes = item.get("truncated") if isinstance(item, dict) else None
        for stream, size in sizes.items() if isinstance(sizes, dict) else ():
            if (str(item.get("id")), stream) in shown and isinstance(size, int):
                found.append(Cut(step=str(item.get("id")), stream=stream, whole_bytes=size))
    return found


def away(store: Store, view: JobView) -> str | None:
    """The agent that works on it where nobody here can look over its shoulder; None: what it says is seen here."""
    life = view.lifecycle
    if tree.in_folders(store) or life.status is not Status.IN_PROGRESS:
        return None
    return None if life.attempt in attempt_numbers(store.folder(view)) else life.agent


# --- reading -----------------------------------------------------------------------------------------------------


def read(path: str, offset: int, end: int | None = None) -> Iterator[bytes]:
    """The bytes of a file from `offset` on, in blocks, to `end` or to what is its end by then."""
    fd = fs.open_read(path)
    try:
        while end is None or offset < end:
            block = os.pread(fd, BLOCK if end is None else min(BLOCK, end - offset), offset)
            if not block:
                return
            offset += len(block)
            yield block
    finally:
        os.close(fd)


def tail_offset(path: str, lines: int, most: int | None = None, end: int | None = None) -> tuple[int, int]:
    """Where the last `lines` lines of a file, or of its first `end` bytes, begin, and how many there are (fewer when it
    is short). Read from the end: a file of gigabytes costs as much as its last lines do. `most`: bytes that are looked
    at, at the most: gigabytes may be one line."""
    fd = fs.open_read(path)
    try:
        size = os.fstat(fd).st_size
        end = size if end is None else min(end, size)
        if lines <= 0 or end == 0:
            return end, 0
        found = 0 if os.pread(fd, 1, end - 1) == b"\n" else 1  # an unfinished last line is a line too
        position, first = end, 0 if most is None else max(0, end - most)
        while position > first:
            start = max(first, position - BLOCK)
            block = os.pread(fd, position - start, start)
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
    sources: Sequence[Source], lines: int, most: int | None = None, end: int | None = None
) -> list[tuple[Source, int]]:
    """The last `lines` lines of all of them together, as one reads them: where to begin in each. `most`: see
    `tail_offset`; `end`: of the last of them only so many bytes are there."""
    begin: list[tuple[Source, int]] = []
    for source in reversed(sources):
        offset, found = tail_offset(source.path, lines, most, end)
        lines -= found
        end = None
        begin.append((source, offset))
    return list(reversed(begin))


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """What lies before the lines that are shown: all of the sources before this one, and its first `offset` bytes."""

    source: Source
    offset: int
    size: int  # bytes
    lines: int | None  # None: there is too much to count


def earlier(begin: Sequence[tuple[Source, int]]) -> Earlier | None:
    """None: all of it is shown. `begin` is where each is shown from."""
    hidden = [(source, offset) for source, offset in begin if offset > 0]
    if not hidden:
        return None
    size = sum(offset for _, offset in hidden)
    counted = sum(_lines_before(source.path, offset) for source, offset in hidden) if size <= COUNTED else None
    return Earlier(source=hidden[-1][0], offset=hidden[-1][1], size=size, lines=counted)


def _lines_before(path: str, offset: int) -> int:
    count, last = 0, b"\n"
    for block in read(path, 0, offset):
        count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")  # an unfinished line is a line too


def whole(store: Store, root: str, job_id: str, chosen: Chosen) -> Iterator[bytes]:
    """All that was said so far, as `farro logs` writes it into a pipe, in blocks. A job may move on between two files:
    the next is found where it lies by then."""
    told = output(store, root, job_id, chosen)
    fixed = Chosen(step=chosen.step, streams=chosen.streams, attempt=told.attempt)
    return (block for source in told.sources for block in _found(store, root, job_id, fixed, source))


def _found(store: Store, root: str, job_id: str, chosen: Chosen, source: Source) -> Iterator[bytes]:
    try:
        yield from read(source.path, 0)
    except FileNotFoundError:
        for other in output(store, root, job_id, chosen).sources:
            if (other.step, other.stream) == (source.step, source.stream):
                yield from read(other.path, 0)


# --- following ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Something that a step said just now."""

    source: Source
    data: bytes


class Follower:
    """Reads on where it was. `run_once` is one look; `run` repeats it until the job has ended."""

    def __init__(self, store: Store, root: str, job_id: str, chosen: Chosen) -> None:
        self._store = store
        self._root = root
        self._job_id = job_id
        self._chosen = chosen
        self._copied = not tree.in_folders(store)
        self._read: dict[Hashable, int] = {}  # file → bytes of it that were given out
        self._attempt = chosen.attempt

    def skip_to(self, begin: Sequence[tuple[Source, int]]) -> None:
        """Begin there, not at the start: `--tail`."""
        for source, offset in begin:
            with contextlib.suppress(OSError):
                self._read[self._key(source, source.path, fs.lstat(source.path).st_ino)] = offset

    def _key(self, source: Source, path: str, inode: int) -> Hashable:
        return (source.attempt, source.step, os.path.basename(path)) if self._copied else inode

    def run_once(self) -> tuple[Lifecycle, Iterator[Piece]]:
        """What the job is, and what came since the last look. Looked at in this order: of a job that has ended, all of
        its output is in this look."""
        view = _find(self._store, self._root, self._job_id)
        return view.lifecycle, self._pieces(self._store.folder(view))

    def run(self, turn: Callable[[Lifecycle, Iterator[Piece]], None]) -> Lifecycle:
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
            return  # it moved on: the next look finds it
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

    def _rest_of_earlier_tries(self, source: Source) -> Iterator[Piece]:
        home, name = source.path.rsplit("/", 1)
        with contextlib.suppress(OSError):
            for other in sorted(fs.listdir(home)):
                path = f"{home}/{other}"
                if other.startswith(f"{name}.") and self._key(source, path, fs.lstat(path).st_ino) in self._read:
                    yield from self._more(source, path)

    def _more(self, source: Source, path: str) -> Iterator[Piece]:
        try:
            fd = fs.open_read(path)
        except OSError:
            return  # it moved on: the next look reads on
        try:
            # The inode of what was opened: the name may be another file's by now.
            key = self._key(source, path, os.fstat(fd).st_ino)
            while block := os.pread(fd, BLOCK, self._read.setdefault(key, 0)):
                self._read[key] += len(block)
                yield Piece(source=source, data=block)
        finally:
            os.close(fd)
