"""Say which configured limit a process hit, and how much it permits."""

from __future__ import annotations

import signal
from typing import Any

from farro.host import signals
from farro.host.process_limits import ProcessLimits
from farro.host.processes import Exit
from farro.jobs.outcomes import ErrorInfo, Failed
from farro.lazy_dataclass import replace

_NO_MEMORY = ("MemoryError", "Cannot allocate memory", "annot allocate memory", "ut of memory", "bad_alloc")


def hit(limits: ProcessLimits, *, number: int | None, cpu_s: float, said: str) -> str | None:
    """Return the limit that ended a process by signal `number`, or that its output complains of."""
    if limits.cpu_s is not None and (number == signals.CPU_LIMIT or (number == signals.KILL and cpu_s >= limits.cpu_s)):
        return f"its CPU time reached runners.cpu_s ({limits.cpu_s} s)"
    if limits.file_size is not None and (number == signals.FILE_SIZE_LIMIT or "File too large" in said):
        return f"a file reached runners.file_bytes ({limits.file_size})"
    if limits.address_space is not None and (
        any(words in said for words in _NO_MEMORY) or (number in (signal.SIGABRT, signal.SIGSEGV) and not said.strip())
    ):
        return f"its memory reached runners.memory_bytes ({limits.address_space})"
    return None


def hit_by_runner(limits: ProcessLimits, ended: Exit, said: str) -> str | None:
    return hit(limits, number=ended.signal, cpu_s=ended.user_s + ended.system_s, said=said)


def named(failed: Failed, limits: ProcessLimits) -> Failed:
    """Return the outcome; if its last step hit a limit, its error says which."""
    steps = failed.report.result.get("step_results")
    if limits == ProcessLimits() or failed.error.category != "step_failed" or not isinstance(steps, list) or not steps:
        return failed
    last: dict[str, Any] = steps[-1]
    code = last.get("exit_code", 0)
    number = code - 128 if code > 128 else None  # its own signal, or one that a shell reported
    used_s = last.get("user_s", 0.0) + last.get("system_s", 0.0)
    why = hit(limits, number=number, cpu_s=used_s, said=f"{last.get('stderr', '')}")
    if why is None:
        return failed
    message = f"{failed.error.message}: {why}"
    result = {**failed.report.result, "error": {"category": failed.error.category, "message": message}}
    markdown = failed.report.markdown.replace(failed.error.message, message, 1)
    return replace(
        failed,
        error=ErrorInfo(category=failed.error.category, message=message),
        report=replace(failed.report, result=result, markdown=markdown),
    )
