"""Show jobs and queues as HTML tables in a notebook. All text of a job is escaped, so that it cannot inject HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from farro.errors import FarroError, UnknownJob
from farro.jobs.times import seconds_between

if TYPE_CHECKING:
    from farro.api.job import Job

_SHOWN = 200
_LONGEST = 200


def jobs(found: Sequence[Job[Any]]) -> str:
    rows = [_row(job) for job in found[:_SHOWN]]
    more = f"<p>and {len(found) - _SHOWN} more</p>" if len(found) > _SHOWN else ""
    return table(("job", "status", "role", "try", "seconds", "error"), rows) + more


def counts(root: str, found: Mapping[str, int]) -> str:
    return f"<p>farro.Queue <code>{escape(root)}</code></p>" + table(tuple(found), [tuple(found.values())])


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
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
