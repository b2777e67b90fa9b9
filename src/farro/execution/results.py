"""Hold the result of a plan: the memo's result.json with farro's additions, and its summary for people."""

from __future__ import annotations

import codecs
import os
from collections.abc import Sequence
from typing import Any

from farro.host import fs
from farro.jobs.outcomes import AccountWait, ErrorInfo
from farro.lazy_dataclass import dataclass

INLINE_LIMIT = 64 * 1024  # bytes of each stream in result.json; the whole is in the file
INLINE_TOTAL = 8 << 20  # bytes of all streams of a plan: a thousand steps could make a gigabyte of JSON
INLINE_LEAST = 1024  # bytes that each stream gets even when the total is used up
_LAST_WORDS = 2 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """One step that was started, or could not be started."""

    step_number: int
    id: str
    stdout: str  # the first 64 KiB, UTF-8 with replacements
    stderr: str
    stdout_truncated: bool
    stderr_truncated: bool
    stdout_path: str | None  # relative to the attempt's folder; the whole stream. None: a function wrote nothing
    stderr_path: str | None
    exit_code: int  # as in a shell: 126 not executable, 127 not found, 128 + n ended by signal n
    success: bool
    timed_out: bool
    duration_s: float  # of the last try, as the three below
    user_s: float
    system_s: float
    max_rss_kb: int  # 0: not known
    attempts: int
    error: str | None  # why it failed, in one line
    last_words: str = ""  # the end of a failed step's output; for people, not in result.json
    added_by: str | None = None  # the step that added this one; None: it is in the plan
    resumed: bool = False  # succeeded in an earlier attempt, and was not run again

    def to_json(self, *, said: bool = True) -> dict[str, Any]:
        """Return the step for result.json. `said` False: without the text of its streams, which its files have."""
        added = {} if self.added_by is None else {"added_by": self.added_by}
        return {
            "step_number": self.step_number,
            "id": self.id,
            **({"stdout": self.stdout, "stderr": self.stderr} if said else {}),
            "exit_code": self.exit_code,
            "success": self.success,
            "timed_out": self.timed_out,
            "stdout_truncated": self.stdout_truncated,
            "stderr_truncated": self.stderr_truncated,
            "stdout_path": self.stdout_path,
            "stderr_path": self.stderr_path,
            "duration_s": round(self.duration_s, 6),
            "user_s": round(self.user_s, 6),
            "system_s": round(self.system_s, 6),
            "max_rss_kb": self.max_rss_kb,
            "attempts": self.attempts,
            "error": self.error,
            **added,
            **({"resumed": True} if self.resumed else {}),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanResult:
    """A plan that ended. Steps after a failed one are not in it: they were not started."""

    success: bool
    step_results: tuple[StepResult, ...]
    steps_total: int
    duration_s: float
    error: ErrorInfo | None  # step_failed, timeout, missing_tool or bad_task; None when all went well
    retryable: bool = False  # the machine's fault, not the plan's: a later attempt may succeed
    retry_after_s: float | None = None  # no attempt can succeed before that
    wait: AccountWait | None = None  # it stopped where these accounts are needed: the job is to be released
    left_processes: tuple[int, ...] = ()  # not even ended by SIGKILL (stuck in the kernel, or another user's)
    task_files: tuple[str, ...] = ()  # the files of added tasks

    @property
    def files(self) -> tuple[str, ...]:
        """Return every file that the result refers to, relative to the attempt's folder."""
        paths = (path for step in self.step_results for path in (step.stdout_path, step.stderr_path))
        return (*(path for path in paths if path is not None), *self.task_files)

    def to_json(self, job_id: str, plan_id: str | None) -> dict[str, Any]:
        """Return result.json."""
        return {
            "job_id": job_id,
            "plan_id": plan_id,
            "success": self.success,
            "step_results": [step.to_json() for step in self.step_results],
            "steps_total": self.steps_total,
            "duration_s": round(self.duration_s, 6),
            "error": None if self.error is None else {"category": self.error.category, "message": self.error.message},
            "left_processes": list(self.left_processes),
        }

    def summary_md(self) -> str:
        """Return result.md or error.md: what a person wants to know first."""
        done = sum(step.success for step in self.step_results)
        lines = [
            f"# {'Succeeded' if self.success else 'Failed'}",
            "",
            f"{done} of {self.steps_total} steps succeeded in {self.duration_s:.2f} s.",
        ]
        if self.error is not None:
            lines += ["", f"**{self.error.category}**: {_one_line(self.error.message)}"]
        if self.step_results:
            lines += ["", "| step | exit | seconds | tries | output |", "|---|---|---|---|---|"]
            lines += [
                f"| {step.id} | {step.exit_code}{' (timed out)' if step.timed_out else ''} | {step.duration_s:.2f} "
                f"| {'earlier' if step.resumed else step.attempts} | {step.stdout_path or ''} |"
                for step in self.step_results
            ]
        for step in self.step_results:
            if not step.success and step.last_words.strip():
                # Indented, not fenced: a step's output cannot close the block.
                said = "\n".join("    " + line for line in _printable(step.last_words).splitlines()[-20:])
                lines += ["", f"Step {step.id} said last:", "", said]
        if self.left_processes:
            lines += ["", f"Processes that could not be ended: {', '.join(map(str, self.left_processes))}"]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamText:
    """The beginning of a stream as text, whether it was cut, and the path of the whole."""

    text: str
    truncated: bool
    path: str | None


NO_TEXT = StreamText(text="", truncated=False, path=None)


class Inline:
    """Collect the output that one result carries: bounded, however many steps there are and whatever they print."""

    def __init__(self) -> None:
        self._left = INLINE_TOTAL

    def said(self, attempt_dir: str, relative: str) -> StreamText:
        path = f"{attempt_dir}/{relative}"
        try:
            size = fs.lstat(path).st_size
        except FileNotFoundError:
            return NO_TEXT
        if size == 0:
            return StreamText(text="", truncated=False, path=relative)
        limit = min(INLINE_LIMIT, max(self._left, INLINE_LEAST))
        data = fs.read_bytes(path, limit)
        cut = len(data) > limit
        self._left -= min(len(data), limit)
        if not cut:
            return StreamText(text=data.decode("utf-8", "replace"), truncated=False, path=relative)
        # Not final: a character that the limit splits is left out, not replaced.
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(data[:limit], final=False)
        return StreamText(text=text, truncated=True, path=relative)


def last_words(paths: Sequence[str]) -> str:
    """Return the end of the first of these streams that is not empty."""
    for path in paths:
        try:
            fd = fs.open_read(path)
        except FileNotFoundError:
            continue
        try:
            size = os.fstat(fd).st_size
            said = fs.read_at(fd, _LAST_WORDS, max(size - _LAST_WORDS, 0))
        finally:
            os.close(fd)
        if said.strip():
            return said.decode("utf-8", "replace")
    return ""


def _one_line(text: str) -> str:
    return " ".join(_printable(text).split())


def _printable(text: str) -> str:
    """Escape control characters: a job must not control the terminal of a user who reads its error."""
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)
