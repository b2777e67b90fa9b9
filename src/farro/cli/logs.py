"""`farro logs`: print the output of a job's steps, once or while it runs.

A pipe or a file gets the bytes as the steps wrote them, and nothing else. At a terminal each step has a headline,
colours are kept, and every other control sequence is shown escaped.
"""

from __future__ import annotations

import base64
import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from farro.cli.options import open_root
from farro.cli.terminal import answer, at_terminal, note, raw, say, usage_error
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass, field
from farro.log.structured import printable
from farro.queue import find_job
from farro.queue import logs as outputs
from farro.queue.logs import JobOutput, LogFile, LogFollower, LogQuery, Piece

NAMED_TAIL = 50  # lines that `--job` shows, as Air-Executor does
JSON_LIMIT = 1 << 20  # bytes of each stream in one JSON document; the files hold the whole

_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
_HALF_COLOUR = re.compile(r"\x1b(?:\[[0-9;]*)?\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The part of a job's output to print."""

    step: str | None
    only_stdout: bool
    only_stderr: bool
    attempt: int | None

    def parsed(self) -> LogQuery:
        if self.only_stdout and self.only_stderr:
            raise usage_error("--stdout and --stderr exclude each other; leave both out to see both")
        streams = ("stdout",) if self.only_stdout else ("stderr",) if self.only_stderr else outputs.STREAMS
        return LogQuery(step=self.step, streams=streams, attempt=self.attempt)


def logs(
    job: str | None,
    name: str | None,
    follow: bool,
    tail: int | None,
    selection: Selection,
    root: str | None,
    as_json: bool,
) -> None:
    """Print the output of a job's steps, step after step, stdout before stderr; then its runner's own, if it had a
    process of its own.

    JOB is an id, a name, or the beginning of an id that no other job shares. With --follow it ends when the job has
    ended; with --json too it prints a JSON object per line.
    """
    chosen = selection.parsed()
    if (job is None) == (name is None):
        raise usage_error("name one job: `farro logs JOB`, or `farro logs --job NAME` for its last lines")
    store, _ = open_root(root)
    if name is not None:
        job_id, tail = find_job.by_name(store, name), NAMED_TAIL if tail is None else tail
    else:
        job_id = find_job.resolve(store, job or "")
    told = outputs.output(store, job_id, chosen)
    if chosen.step is not None and not (follow and not told.view.lifecycle.terminal):
        outputs.check_step(store, told, chosen.step)
    begin = [(source, 0) for source in told.sources] if tail is None else outputs.last_lines(told.sources, tail)
    if (agent := outputs.away(store, told.view)) is not None:
        note(f"{job_id} runs on another machine ({agent}); its output is seen here when the attempt ends")
    if follow:
        _follow(LogFollower(store, job_id, chosen), told, begin, as_json)
        _tell_cuts(outputs.truncated_streams(store, outputs.output(store, job_id, chosen)))
        store.close()
    elif as_json:
        answer(_document(told, begin))
    else:
        if told.attempt is None and agent is None:
            note(
                f"{job_id} is {told.view.status} and has not run yet; `farro explain {job_id}` says why, --follow waits"
            )
        _print(begin)
        error = told.view.lifecycle.error
        if error is not None and not any(map(outputs.size_bytes, told.sources)):
            where = "" if chosen == LogQuery() else f" to {' and '.join(chosen.streams)}"
            note(f"{job_id} wrote nothing{where}; it failed: {error.get('category')}: {error.get('message')}")
        _tell_cuts(outputs.truncated_streams(store, told))


def logs_of(job: str, follow: bool, tail: int | None, root: str | None, as_json: bool) -> None:
    """Print all output of one job, as `farro logs JOB` does."""
    everything = Selection(step=None, only_stdout=False, only_stderr=False, attempt=None)
    logs(job, None, follow, tail, everything, root, as_json)


def _print(begin: list[tuple[LogFile, int]]) -> None:
    screen = _Screen()
    for source, offset in begin:
        screen.show(source, outputs.read(source.path, offset))
    screen.end()


def _tell_cuts(cuts: Iterable[outputs.TruncatedStream]) -> None:
    for cut in cuts:
        note(
            f"step {cut.step} said {cut.whole_bytes:,} bytes on {cut.stream}: only the beginning was kept "
            "(redis.inline_bytes). With `redis.shared`, a folder that every machine has, all of it is"
        )


def _follow(follower: LogFollower, told: JobOutput, begin: list[tuple[LogFile, int]], as_json: bool) -> None:
    follower.skip_to(begin)
    screen: _Screen | _Lines = _Lines() if as_json else _Screen()
    waits: Status | None = None

    def turn(life: Lifecycle, pieces: Iterator[Piece]) -> None:
        nonlocal waits
        if life.status is not waits and life.status in (Status.QUEUED, Status.STALE):
            note(f"{life.job_id} is {life.status}; waiting (`farro explain {life.job_id}` says why)")
        waits = life.status
        for piece in pieces:
            screen.show(piece.source, [piece.data])

    end = follower.run(turn)
    screen.end()
    if end.status is not Status.SUCCEEDED:
        note(f"{end.job_id} is {end.status}")


@dataclass
class _Screen:
    """Write to stdout: remembers whose output came last, and keeps the half of a character until the rest comes."""

    safe: bool = field(default_factory=at_terminal)
    last: LogFile | None = None
    decoder: codecs.IncrementalDecoder = field(default_factory=codecs.getincrementaldecoder("utf-8"))
    kept: str = ""
    open_line: bool = False
    coloured: bool = False

    def show(self, source: LogFile, blocks: Iterable[bytes]) -> None:
        for block in blocks:
            if not self.safe:
                raw(block)
                continue
            self._headline(source)
            self._write(self.kept + self.decoder.decode(block))

    def end(self) -> None:
        if self.safe and self.last is not None:
            self._write(self.kept + self.decoder.decode(b"", final=True), final=True)
            raw((b"\x1b[0m" if self.coloured else b"") + (b"\n" if self.open_line else b""))

    def _headline(self, source: LogFile) -> None:
        last = self.last
        if last is not None and (last.attempt, last.step, last.stream) == (source.attempt, source.step, source.stream):
            return
        self.end()
        self.decoder, self.kept = codecs.getincrementaldecoder("utf-8")(errors="replace"), ""
        again = f"attempt {source.attempt}, " if source.attempt > 1 else ""
        say(f"==> {again}{source.stream if source.step is None else f'step {source.step}: {source.stream}'} <==")
        self.last, self.open_line, self.coloured = source, False, False

    def _write(self, text: str, final: bool = False) -> None:
        half = None if final else _HALF_COLOUR.search(text)
        self.kept = text[half.start() :] if half else ""
        text = text[: half.start()] if half else text
        if text:
            parts = _COLOUR.split(text)
            self.coloured |= len(parts) > 1
            shown = (part if place % 2 else printable(part, keep="\n\t\r") for place, part in enumerate(parts))
            raw("".join(shown).encode("utf-8", "backslashreplace"))
            self.open_line = not text.endswith("\n")


@dataclass
class _Lines:
    """Write a JSON object for each piece of output; half a character waits for its second half."""

    halves: dict[tuple[int, str | None, str], bytes] = field(default_factory=dict)

    def show(self, source: LogFile, blocks: Iterable[bytes]) -> None:
        who = (source.attempt, source.step, source.stream)
        for block in blocks:
            data, self.halves[who] = _whole(self.halves.get(who, b"") + block)
            self._write(who, data)

    def end(self) -> None:
        for who, data in self.halves.items():
            self._write(who, data)

    def _write(self, who: tuple[int, str | None, str], data: bytes) -> None:
        if data:
            told = {**dict(zip(("attempt", "step", "stream"), who, strict=True)), **_text(data)}
            raw(json.dumps(told, ensure_ascii=False).encode() + b"\n")


def _whole(data: bytes) -> tuple[bytes, bytes]:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            return data[: error.start], data[error.start :]
    return data, b""


def _document(told: JobOutput, begin: list[tuple[LogFile, int]]) -> dict[str, Any]:
    shown = []
    for source, offset in begin:
        data = b"".join(outputs.read(source.path, offset, offset + JSON_LIMIT + 1))
        cut = len(data) > JSON_LIMIT
        shown.append({"step": source.step, "stream": source.stream, **_text(data[:JSON_LIMIT]), "truncated": cut})
    life = told.view.lifecycle
    return {"job_id": life.job_id, "status": life.status, "attempt": told.attempt, "output": shown}


def _text(data: bytes) -> dict[str, str]:
    """Return output as text, or in base64 where it is no UTF-8, so that no byte is lost."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
