"""Decide what became of a run, from what the program said and how it ended.

The exit code alone proves nothing: programs exit with 0 after a refused request, after a signal and with no answer.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from farro.agents.programs.limits import reset_time
from farro.agents.programs.output import one_line
from farro.agents.providers.port import ProviderTrouble, TroubleKind, Usage
from farro.agents.providers.refusals import kind_of_status, kind_of_words
from farro.lazy_dataclass import dataclass

_SHOWN = 400  # characters of a program's message
_SIGNALS = 64  # an exit code of 128 + N, with N up to this, is taken for signal N

_RETRYABLE = ("overloaded", "cut", "timed_out", "failed")  # not "limited": the program has tried again itself


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramError:
    """What a program says went wrong."""

    message: str
    status: int | None = None  # of the model's answer, if the program names it
    kind: TroubleKind | None = None  # if the program says it plainly; None: judged by status and message
    until: datetime | None = None  # when a limit resets, if the program says it plainly
    retryable: bool | None = None  # None: as usual for its kind


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnd:
    """How a run ended."""

    code: int  # 128 + N or -N if signal N ended it
    stderr: str
    text: str  # its answer
    finished: bool  # the program itself said that it had finished
    error: ProgramError | None
    now: datetime  # with the time zone in which the program writes


def trouble_of(end: RunEnd, usage: Usage | None, cost_usd: Decimal | None) -> ProviderTrouble | None:
    """Return why a run brought no answer; None if its text is the answer."""
    error = _error(end)
    if error is None:
        return None
    kind = error.kind or _kind(error)
    until = error.until or (reset_time(error.message[:4000], end.now) if kind == "limited" else None)
    return ProviderTrouble(
        one_line(error.message, _SHOWN),
        kind=kind,
        retryable=kind in _RETRYABLE if error.retryable is None else error.retryable,
        until=until,
        usage=usage,
        cost_usd=cost_usd,
    )


def _error(end: RunEnd) -> ProgramError | None:
    if end.error is not None:
        return end.error
    signal = -end.code if end.code < 0 else end.code - 128
    if 0 < signal <= _SIGNALS:
        return ProgramError(message=f"was ended by signal {signal}", kind="cut")
    if end.code != 0:
        return ProgramError(message=f"exit code {end.code}{_said(end)}", kind=kind_of_words(end.stderr) or "failed")
    if not end.finished:
        return ProgramError(message=f"ended in the middle of its work{_said(end)}", kind="cut")
    if not end.text.strip():
        return ProgramError(message=f"finished without an answer{_said(end)}", kind="failed")
    return None


def _kind(error: ProgramError) -> TroubleKind:
    if error.status is None:
        return kind_of_words(error.message) or "failed"
    return kind_of_status(error.status, error.message)


def _said(end: RunEnd) -> str:
    """Return the last lines that the program wrote, for a message."""
    lines = [line for line in (end.stderr.strip() or end.text.strip()).splitlines() if line.strip()]
    words = one_line(" ".join(lines[-3:]), 300)
    return f": {words}" if words else ""
