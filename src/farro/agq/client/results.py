"""Build the result document that is posted over agq: the memo's form (seed 004)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from farro.host import fs
from farro.jobs.outcomes import Failed, Succeeded, Unroutable

NO_EXIT_CODE = -1  # of a step that was ended before it could exit: the memo requires a number
TOTAL = 8 << 20  # characters of all streams together, at first
POST_BYTES = 15 << 20  # of the document: agq accepts 16 MiB


def document(job_id: str, folder: str, outcome: Succeeded | Failed | Unroutable, *, inline_bytes: int) -> bytes:
    """Return the result as JSON. Streams that the report cut are read up to `inline_bytes` each; less of all if their
    escaping (a NUL takes six characters) makes the document too large."""
    total = TOTAL
    while len(text := _document(job_id, folder, outcome, inline_bytes, total)) > POST_BYTES and total:
        total //= 2
    return text


def _document(
    job_id: str, folder: str, outcome: Succeeded | Failed | Unroutable, inline_bytes: int, total: int
) -> bytes:
    result = dict(outcome.report.result)
    left = total
    steps = []
    for item in result.get("step_results") or ():
        step = dict(item)
        for stream in ("stdout", "stderr"):
            step[stream] = _stream(step, stream, folder, min(inline_bytes, left))
            left = max(0, left - len(step[stream]))
        if not isinstance(step.get("exit_code"), int):
            step["exit_code"] = NO_EXIT_CODE
        step["success"] = step.get("success") is True
        steps.append(step)
    good = isinstance(outcome, Succeeded)
    result |= {"job_id": job_id, "success": good, "step_results": steps}
    if not isinstance(outcome, Succeeded):
        result["error"] = {"category": outcome.error.category, "message": outcome.error.message}
    return json.dumps(result, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def _stream(step: Mapping[str, Any], stream: str, folder: str, most: int) -> str:
    text, path = str(step.get(stream) or ""), step.get(f"{stream}_path")
    if step.get(f"{stream}_truncated") and isinstance(path, str) and most > len(text):
        try:
            return fs.read_bytes(f"{folder}/{path}", most)[:most].decode("utf-8", "replace")
        except OSError:  # the step itself may have removed it
            return text
    return text[:most] if len(text) > most else text
