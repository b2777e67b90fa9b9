"""What came of an attempt: a closed union. A store turns an outcome into a transition; it never guesses one.

Exceptions are for what nobody expected (errors.py); a failed step is expected, and is an outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farro.lazy_dataclass import dataclass

PATH_VIOLATION = "path_violation"  # a job touched, or failed of touching, what is not among its allowed paths


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorInfo:
    """Why something failed: a category from a small set for audit and metrics, and words for people."""

    category: str  # step_failed, timeout, missing_tool, bad_prompt, agent_died, …
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Child:
    """A job that an attempt asks for; delivered once, if and when the attempt is decided."""

    role: str
    prompt: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What an attempt leaves behind."""

    result: Mapping[str, Any]  # result.json
    markdown: str  # result.md or error.md
    files: tuple[str, ...] = ()  # what the result names, relative to the attempt: on the disk before it is acknowledged


@dataclass(frozen=True, kw_only=True, slots=True)
class Succeeded:
    report: Report
    children: tuple[Child, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    error: ErrorInfo
    report: Report
    retryable: bool = False  # a later attempt may succeed: not for a step that said no
    retry_after_s: float | None = None  # … and not before that


@dataclass(frozen=True, kw_only=True, slots=True)
class Released:
    """Handed back unfinished (shutdown); counts as no attempt."""

    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unroutable:
    """Done, but it cannot be handed on (manager away): the job is marked stale where it lies."""

    error: ErrorInfo
    report: Report


Outcome = Succeeded | Failed | Released | Unroutable

NO_REPORT = Report(result={}, markdown="")
