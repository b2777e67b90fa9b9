"""Return the output of a job's steps: page by page, as a stream of events while it grows, or whole for download."""

from __future__ import annotations

import asyncio
import base64
import codecs
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Any, Literal

from starlette.requests import Request
from starlette.responses import Response

from farro.documents.constraints import Bounds, Length
from farro.errors import FarroError, InputError
from farro.host import fs
from farro.jobs.envelope import Lifecycle
from farro.lazy_dataclass import dataclass
from farro.queue import logs
from farro.queue.logs import LogFollower
from farro.web import errors, responses
from farro.web.events import HEARTBEAT, EventHub, StreamResponse, event
from farro.web.job_queries import find_view, safe_file_name
from farro.web.request_handling import ApiRequest, Routes, ThreadPool, WebState, read_query

routes = Routes("jobs")

LOG_BYTES = 1 << 20  # of one stream in one response
LOGS_BYTES = 16 << 20  # of all streams in one response: a plan may have a thousand steps
POLL_S = 0.25  # between two reads: the store has no feed of growing output
QUIET_S = 2.0  # without output, after which the pauses between reads grow and a heartbeat is sent
MAX_STREAMS = 200  # open at once
TURN_BYTES = 1 << 20  # to read in one turn


@dataclass(frozen=True, kw_only=True)
class OutputQuery:
    attempt: Annotated[int, Bounds(at_least=1, at_most=9999)] | None = None
    step: str | None = None
    stream: Literal["stdout", "stderr"] | None = None

    @property
    def log_query(self) -> logs.LogQuery:
        streams = logs.STREAMS if self.stream is None else (self.stream,)
        return logs.LogQuery(step=self.step, streams=streams, attempt=self.attempt)


@dataclass(frozen=True, kw_only=True)
class FollowQuery(OutputQuery):
    tail: Annotated[int, Bounds(at_least=0, at_most=100_000)] | None = None


@dataclass(frozen=True, kw_only=True)
class LogsQuery(FollowQuery):
    before: Annotated[str, Length(400)] | None = None


@routes.get("/api/jobs/{job}/logs", "The output of a job's steps.", responses.LogsResponse, query=LogsQuery)
def show_logs(state: WebState, request: ApiRequest) -> Any:
    query: LogsQuery = request.query
    view = find_view(state, request.path["job"])
    job_output = logs.output(state.store, view.job_id, query.log_query)
    if query.step is not None:
        logs.check_step(state.store, job_output, query.step)
    sources, end = (job_output.sources, None) if query.before is None else _sources_before(job_output, query.before)
    begin = (
        [(source, 0) for source in sources]
        if query.tail is None
        else logs.last_lines(sources, query.tail, LOG_BYTES + 1, end)  # one byte more shows that it is truncated
    )
    output: list[dict[str, Any]] = []
    shown: list[tuple[logs.LogFile, int]] = []
    left = LOGS_BYTES
    for source, offset in reversed(begin):  # the newest output matters most
        size = fs.lstat(source.path).st_size if end is None else end
        end = None
        start = min(size, max(offset, size - min(LOG_BYTES, left)))
        data = b"".join(logs.read(source.path, start, size))
        left -= len(data)
        shown.append((source, start))
        output.append(
            {"step": source.step, "stream": source.stream, **_text_or_base64(data), "truncated": start > offset}
        )
    output.reverse()
    life = job_output.view.lifecycle
    return {
        "job_id": life.job_id,
        "status": life.status,
        "attempt": job_output.attempt,
        "output": output,
        "earlier": _earlier_data([*reversed(shown)]),
    }


def _sources_before(job_output: logs.JobOutput, mark: str) -> tuple[tuple[logs.LogFile, ...], int]:
    """Return the files with output before the mark, and the offset of the mark in the last of them."""
    with contextlib.suppress(ValueError, TypeError):
        stream, offset, step = base64.urlsafe_b64decode(mark + "=" * (-len(mark) % 4)).decode().split(" ", 2)
        for place, source in enumerate(job_output.sources):
            if (source.stream, source.step or "") == (stream, step) and offset.isdecimal() and len(offset) < 18:
                return job_output.sources[: place + 1], int(offset)
    raise InputError("before: this marks no place in the requested output; begin without it")


def _earlier_data(begin: Sequence[tuple[logs.LogFile, int]]) -> dict[str, Any] | None:
    """Describe the output before the returned lines; `begin` has the first returned offset of each file."""
    hidden = logs.hidden_lines(begin)
    if hidden is None:
        return None
    mark = base64.urlsafe_b64encode(f"{hidden.source.stream} {hidden.offset} {hidden.source.step or ''}".encode())
    return {"before": mark.decode().rstrip("="), "lines": hidden.lines, "bytes": hidden.size}


def _text_or_base64(data: bytes) -> dict[str, str]:
    """Return UTF-8 as text, and any other bytes in base64."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


# --- streams ---------------------------------------------------------------------------------------------------------


class OutputStreams:
    """Open streams and downloads of output, up to a limit."""

    def __init__(self, state: WebState, pool: ThreadPool, hub: EventHub) -> None:
        self._state = state
        self._pool = pool
        self._hub = hub
        self._count = 0

    async def follow(self, request: Request) -> Response:
        try:
            query: FollowQuery = read_query(FollowQuery, request.query_params)
            self._check_count()
            follower, begin = await self._pool.run(lambda: self._open_follower(request.path_params["job"], query))
        except FarroError as error:
            return errors.response(error)
        self._count += 1
        return StreamResponse(self._events(follower, begin), on_end=self._stream_ended)

    async def download(self, request: Request) -> Response:
        """Send all output so far as a file. It is read block by block, so its size costs no memory."""
        try:
            query: OutputQuery = read_query(OutputQuery, request.query_params)
            self._check_count()
            view = await self._pool.run(lambda: find_view(self._state, request.path_params["job"]))
            state = self._state
            blocks = await self._pool.run(lambda: logs.whole(state.store, view.job_id, query.log_query))
        except FarroError as error:
            return errors.response(error)
        self._count += 1
        name = f"{safe_file_name(view.job_id)}.log"
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Security-Policy": "sandbox"}
        return StreamResponse(
            self._blocks(blocks),
            on_end=self._stream_ended,
            media_type="application/octet-stream",
            headers=headers,
        )

    async def _blocks(self, blocks: Iterator[bytes]) -> AsyncIterator[bytes]:
        while not self._hub.closed and (block := await self._pool.run(lambda: next(blocks, b""))):
            yield block

    def _check_count(self) -> None:
        if self._count >= MAX_STREAMS:
            raise errors.HttpError(503, "busy", f"{MAX_STREAMS} logs are followed already")

    def _stream_ended(self) -> None:
        self._count -= 1

    def _open_follower(self, job: str, query: FollowQuery) -> tuple[LogFollower, dict[str, Any]]:
        """Return a follower, and the data of the first event: the attempt, and what precedes the streamed lines."""
        view = find_view(self._state, job)
        job_output = logs.output(self._state.store, view.job_id, query.log_query)
        follower = LogFollower(self._state.store, view.job_id, query.log_query)
        earlier = None
        if query.tail is not None:
            begin = logs.last_lines(job_output.sources, query.tail, LOG_BYTES)
            follower.skip_to(begin)
            earlier = _earlier_data(begin)
        return follower, {"attempt": job_output.attempt, "earlier": earlier}

    async def _events(self, follower: LogFollower, begin: dict[str, Any]) -> AsyncIterator[bytes]:
        job_state: dict[str, Any] | None = None
        decoders: dict[tuple[int, str | None, str], codecs.IncrementalDecoder] = {}
        yield b"retry: 1000\n\n" + event("begin", begin)
        quiet_s = 0.0
        pause_s = POLL_S
        while not self._hub.closed:
            try:
                life, pieces, more = await self._pool.run(lambda: _read_new_output(follower))
            except (FarroError, OSError) as error:
                failure = errors.HttpError(503, "storage_trouble", str(error)) if isinstance(error, OSError) else error
                yield event("trouble", {"error": errors.error_data(failure)})
                return
            current = _state_data(life)
            if current != job_state:
                job_state = current
                yield event("state", job_state)
            for piece in pieces:
                yield _output_event(piece, decoders)
            if life.terminal and not more:
                yield event("end", job_state)
                return
            if more:
                continue
            if pieces:  # pause even after new output: each read costs the same, however little it finds
                quiet_s, pause_s = 0.0, POLL_S
            quiet_s += pause_s
            if quiet_s > QUIET_S:
                pause_s = min(2 * pause_s, 1.0)
                quiet_s = 0.0
                yield HEARTBEAT
            await asyncio.sleep(pause_s)


def _read_new_output(follower: LogFollower) -> tuple[Lifecycle, list[logs.Piece], bool]:
    """Read the output since the last call, at most about TURN_BYTES; the flag says whether there is more."""
    life, pieces = follower.run_once()
    new_pieces: list[logs.Piece] = []
    size = 0
    for piece in pieces:
        new_pieces.append(piece)
        size += len(piece.data)
        if size >= TURN_BYTES:
            return life, new_pieces, True
    return life, new_pieces, False


def _state_data(life: Lifecycle) -> dict[str, Any]:
    return {"job_id": life.job_id, "status": life.status, "attempt": life.attempt, "terminal": life.terminal}


def _output_event(piece: logs.Piece, decoders: dict[tuple[int, str | None, str], codecs.IncrementalDecoder]) -> bytes:
    """Encode a piece as text, or in base64 if it is not UTF-8.

    The decoder of a file keeps an incomplete character for the next piece.
    """
    source = piece.source
    key = (source.attempt, source.step, source.stream)
    decoder = decoders.setdefault(key, codecs.getincrementaldecoder("utf-8")())
    head = {"attempt": source.attempt, "step": source.step, "stream": source.stream}
    pending = decoder.getstate()[0]
    try:
        return event("output", {**head, "text": decoder.decode(piece.data)})
    except UnicodeDecodeError:
        decoder.reset()
        return event("output", {**head, **_text_or_base64(pending + piece.data)})
