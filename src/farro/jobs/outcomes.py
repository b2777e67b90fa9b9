"""Define the outcomes of an attempt as a closed union. A store turns an outcome into a transition.

A failed step is expected, so it is an outcome; exceptions are for the unexpected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farro.lazy_dataclass import dataclass

PATH_VIOLATION = "path_violation"  # a job tried to write outside of its allowed paths


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorInfo:
    """Why an attempt failed: a category for audit and metrics, and a message for people."""

    category: str  # step_failed, timeout, missing_tool, bad_prompt, agent_died, …
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Child:
    """A job that an attempt asks for. It is delivered once, after the attempt is decided."""

    role: str
    prompt: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The result files of an attempt."""

    result: Mapping[str, Any]  # result.json
    markdown: str  # result.md or error.md
    files: tuple[str, ...] = ()  # named by the result, relative to the attempt; synced before the acknowledgement


@dataclass(frozen=True, kw_only=True, slots=True)
class Succeeded:
    report: Report
    children: tuple[Child, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    error: ErrorInfo
    report: Report
    retryable: bool = False  # whether a later attempt may succeed; not for a step that exited with an error
    retry_after_s: float | None = None  # the earliest time of that attempt, from now


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountWait:
    """The paused accounts that a job waits for."""

    accounts: tuple[str, ...]
    delay_s: float  # until one of them may answer again


@dataclass(frozen=True, kw_only=True, slots=True)
class Released:
    """Returned unfinished, at shutdown or because its provider's account is paused; it counts as no attempt."""

    note: str = ""
    wait: AccountWait | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Unroutable:
    """Done, but the manager is away: the job is marked stale in its place."""

    error: ErrorInfo
    report: Report


Outcome = Succeeded | Failed | Released | Unroutable

NO_REPORT = Report(result={}, markdown="")
