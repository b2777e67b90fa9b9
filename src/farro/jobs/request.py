"""A job as a caller asks for it. Every way in decodes its input into a `JobRequest`; `queue.submit` checks it.

Every process that runs a Python task imports this module with the module of the task, so what only a submitter needs is
imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from farro.errors import InputError
from farro.lazy_dataclass import dataclass, field

if TYPE_CHECKING:
    from farro.documents import Document

Duration = float | str | timedelta  # seconds, or "10m", or a timedelta
Spelling = Callable[[str], str]  # a field of JobRequest → the caller's own word for it, such as `--after-any`

MAX_DELAY_S = 3650 * 86_400.0
MAX_TIMEOUT_S = 365 * 86_400.0  # as plans.model has it


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachments:
    """What comes with a job beside its plan. All but `input` and `workspace` come with an agent prompt."""

    folder: str | None = None  # of the prompt's file: where the file is that the prompt names as `context_md`
    context_md: str | None = None  # path of the narrative
    narrative: str | None = None  # the narrative itself
    payload: Sequence[str] = ()  # paths
    task: str | None = None  # id, or path of its file
    workspace: str | None = None  # folder of a git repository, whose state is attached
    input: bytes | None = None  # for the first step that reads from no other step


NO_ATTACHMENTS = Attachments()


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest:
    """One job: a document or a command, and its options. None or empty: not given, so the plan's own value applies."""

    document: Document | None = None  # a plan or an agent prompt
    command: Sequence[str] = ()  # instead of a document
    agent: bool = False  # the document must be an agent prompt
    id: str | None = None
    name: str | None = None  # a free name that the job gets; such a request is submitted alone
    role: str | None = None
    tags: Sequence[str] = ()
    priority: str | None = None
    timeout: Duration | None = None
    folder: str | None = None  # where a command runs, and what a relative `cwd` starts from
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    delay: Duration | None = None
    at: datetime | str | None = None
    after: Sequence[str] = ()  # ids, names or beginnings of ids
    after_any: Sequence[str] = ()
    attachments: Attachments = NO_ATTACHMENTS
    force: bool = False  # beyond a cap, for a user to whom the config permits it


def as_option(name: str) -> str:
    """Spell a field as an option of the command line."""
    return {"tags": "--tag", "command": "the command"}.get(name) or f"--{name.replace('_', '-')}"


def timeout_s(value: Duration, spell: Spelling = str) -> float:
    seconds = duration_s(spell("timeout"), value)
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise InputError(f"{spell('timeout')}: {_shown(value)} must be positive and at most a year")
    return seconds


def delay_s(value: Duration, spell: Spelling = str) -> float:
    seconds = duration_s(spell("delay"), value)
    if not 0 <= seconds <= MAX_DELAY_S:
        raise InputError(f"{spell('delay')}: {_shown(value)} must not be negative, and at most ten years")
    return seconds


def _shown(value: Duration) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def duration_s(name: str, value: Duration) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        from farro.jobs.times import parse_duration

        try:
            return parse_duration(value)
        except ValueError as error:
            raise InputError(f"{name}: {error}") from error
    given: object = value
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(given)
    raise InputError(f"{name}: {value!r} is not a duration; give seconds, a timedelta, or text such as 10m")
