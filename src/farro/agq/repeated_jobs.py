"""Jobs that say the same but for their ids: the first of them is checked, the others are known to be right.

What is checked lives in submit and plans; who pushes such jobs lives in memo.

A text is known when it is, byte for byte, one that was accepted, but for the value of its own `id`. Kept are only plans
whose checks look at nothing but their text: no agents, no paths, no files, no other jobs.
[test_jobs_that_differ_in_their_ids_are_checked_once]
"""

from __future__ import annotations

import json
import re
from typing import Any

from farro.jobs import ids
from farro.store.port import Submission

_ID = re.compile(rb'"id"[ \t\r\n]*:[ \t\r\n]*"([A-Za-z0-9][A-Za-z0-9_-]{0,63})"')
_PLAIN = frozenset({"id", "plan_id", "name", "steps", "timeout", "parallel", "metadata", "created_at"})
_OTHERS = frozenset({"after", "after_any"})
_SMALL = 8192  # bytes of a text that is worth keeping

Key = tuple[str, bytes, bytes]  # role, the text before its id, and after it


class Alike:
    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._known: dict[Key, Submission] = {}

    def of(self, text: bytes, role: str) -> Submission | None:
        """What is to be queued for a text that was accepted before under another id."""
        if len(text) > _SMALL or (found := _ID.search(text)) is None:
            return None
        first = self._known.get((role, text[: found.start(1)], text[found.end(1) :]))
        if first is None or not ids.is_job_id(job_id := found[1].decode()):
            return None
        return Submission(role=role, prompt={**first.prompt, "id": job_id}, job_id=job_id)

    def learn(self, text: bytes, data: Any, wanted: Submission) -> None:
        """That text was accepted: `data` is what it says, `wanted` what is made of it."""
        if len(text) > _SMALL or not _is_plain(data) or (found := _ID.search(text)) is None:
            return
        if wanted.job_id is None or found[1].decode() != wanted.job_id or wanted.prompt != data:
            return
        # Whether it is the job's own id that was found, and not that of something inside.
        before, after = text[: found.start(1)], text[found.end(1) :]
        other = "a" if wanted.job_id != "a" else "b"
        if json.loads(before + other.encode() + after) != {**data, "id": other}:
            return
        if len(self._known) >= self._limit:
            self._known.pop(next(iter(list(self._known))), None)
        self._known[(wanted.role, before, after)] = wanted


def _is_plain(data: Any) -> bool:
    """Whether all that is checked of a plan stands in its text."""
    if not isinstance(data, dict) or not _PLAIN.issuperset(data):
        return False
    metadata = data.get("metadata")
    if metadata is not None and not (isinstance(metadata, dict) and _OTHERS.isdisjoint(metadata)):
        return False
    steps = data.get("steps")
    return isinstance(steps, list) and all(isinstance(step, dict) and step.get("tool") != "agent" for step in steps)
