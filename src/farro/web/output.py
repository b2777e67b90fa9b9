"""What a job's steps said: the last lines, and those before them, page by page.

Finding and reading the files is operations.logs; output as it comes, and all of it to be saved, is `streams`.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from farro.documents.constraints import Bounds, Length
from farro.errors import InputError
from farro.host import fs
from farro.lazy_dataclass import dataclass
from farro.queue import logs
from farro.web import answers
from farro.web.endpoints import Asked, Endpoint, get
from farro.web.job_queries import found
from farro.web.state import House

LOG_BYTES = 1 << 20  # of one stream in one document
LOGS_BYTES = 16 << 20  # … and of all of them: a plan may have a thousand steps


@dataclass(frozen=True, kw_only=True)
class SaidQuery:
    attempt: Annotated[int, Bounds(at_least=1, at_most=9999)] | None = None
    step: str | None = None
    stream: Literal["stdout", "stderr"] | None = None

    @property
    def chosen(self) -> logs.LogQuery:
        streams = logs.STREAMS if self.stream is None else (self.stream,)
        return logs.LogQuery(step=self.step, streams=streams, attempt=self.attempt)


@dataclass(frozen=True, kw_only=True)
class FollowQuery(SaidQuery):
    tail: Annotated[int, Bounds(at_least=0, at_most=100_000)] | None = None


@dataclass(frozen=True, kw_only=True)
class LogsQuery(FollowQuery):
    before: Annotated[str, Length(400)] | None = None


def said(house: House, asked: Asked) -> Any:
    query: LogsQuery = asked.query
    view = found(house, asked.path["job"])
    told = logs.output(house.store, house.root, view.job_id, query.chosen)
    if query.step is not None:
        logs.check_step(house.store, told, query.step)
    sources, end = (told.sources, None) if query.before is None else _before(told, query.before)
    begin = (
        [(source, 0) for source in sources]
        if query.tail is None
        else logs.last_lines(sources, query.tail, LOG_BYTES + 1, end)  # one more: so that it is told as cut
    )
    output: list[dict[str, Any]] = []
    shown: list[tuple[logs.LogFile, int]] = []
    left = LOGS_BYTES
    for source, offset in reversed(begin):  # what was said last matters most
        size = fs.lstat(source.path).st_size if end is None else end
        end = None
        start = min(size, max(offset, size - min(LOG_BYTES, left)))
        data = b"".join(logs.read(source.path, start, size))
        left -= len(data)
        shown.append((source, start))
        output.append(
            {"step": source.step, "stream": source.stream, **text_or_base64(data), "truncated": start > offset}
        )
    output.reverse()
    life = told.view.lifecycle
    return {
        "job_id": life.job_id,
        "status": life.status,
        "attempt": told.attempt,
        "output": output,
        "earlier": earlier_data([*reversed(shown)]),
    }


def _before(told: logs.JobOutput, mark: str) -> tuple[tuple[logs.LogFile, ...], int]:
    """Those of which something lies before that mark, and where the last of them ends there."""
    with contextlib.suppress(ValueError, TypeError):
        stream, offset, step = base64.urlsafe_b64decode(mark + "=" * (-len(mark) % 4)).decode().split(" ", 2)
        for place, source in enumerate(told.sources):
            if (source.stream, source.step or "") == (stream, step) and offset.isdecimal() and len(offset) < 18:
                return told.sources[: place + 1], int(offset)
    raise InputError("before: this marks no place in what is asked for; begin without it")


def earlier_data(begin: Sequence[tuple[logs.LogFile, int]]) -> dict[str, Any] | None:
    """What lies before the lines that are told, each from there on."""
    hidden = logs.hidden_lines(begin)
    if hidden is None:
        return None
    mark = base64.urlsafe_b64encode(f"{hidden.source.stream} {hidden.offset} {hidden.source.step or ''}".encode())
    return {"before": mark.decode().rstrip("="), "lines": hidden.lines, "bytes": hidden.size}


def text_or_base64(data: bytes) -> dict[str, str]:
    """Text where it is text; else its bytes in base64, so that nothing is lost."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


ENDPOINTS: tuple[Endpoint, ...] = (
    get("/api/jobs/{job}/logs", said, "What a job's steps said.", answers.Logs, query=LogsQuery),
)
