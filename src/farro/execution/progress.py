"""Which steps of an attempt have begun, in their order, as its folder tells it while it runs.

How steps are run lives in execution; what came of them is in result.json.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from farro.host import fs

RUNNER_LOG = "runner.log"  # what a runner of its own said itself
_PROMPT_LIMIT = 16 << 20
_BLOCK = 256 * 1024
_RESULT_LIMIT = 64 << 20


def begun(folder: str, attempt: int) -> list[str]:
    """The steps' names. A step's folder changes when its files are made, which is when it starts; a disk's clock is
    coarse, so steps of one tick stand as the plan lists them."""
    home = f"{folder}/attempts/{attempt:04d}/steps"
    times: dict[str, int] = {}
    for name in fs.subdirectories(home):
        with contextlib.suppress(FileNotFoundError):
            times[name] = fs.lstat(f"{home}/{name}").st_mtime_ns
    if len(set(times.values())) == len(times):
        return sorted(times, key=times.__getitem__)
    listed = {name: place for place, name in enumerate(_listed(read_prompt(folder)))}
    return sorted(times, key=lambda name: (times[name], listed.get(name, len(listed)), name))


def has_output(folder: str, attempt: int) -> bool:
    """Whether steps were begun in it, or its runner had something to say. A manager's attempt has neither."""
    home = f"{folder}/attempts/{attempt:04d}"
    return bool(fs.subdirectories(f"{home}/steps")) or fs.exists(f"{home}/{RUNNER_LOG}")


def lines(folder: str, attempt: int) -> list[Mapping[str, Any]]:
    """The attempt's steps.jsonl: what each step that ended did, and what it added. A plan of one step has none.

    Attempt 0, before the first one: what the job took over from the one that it repeats.
    """
    from farro.execution import records  # here: a listing of jobs looks at no steps

    return list(records.read(f"{folder}/attempts/{attempt:04d}" if attempt else f"{folder}/carried"))


class Over:
    """Which steps of one attempt are over, as its steps.jsonl tells it while it grows; read once, however often it is
    asked. That the next step has begun says nothing: steps may run together, and a reader beside what it reads.

    By descriptor, as the job's folder may be moved meanwhile.
    """

    def __init__(self) -> None:
        self._fd: int | None = None
        self._torn = b""  # the beginning of a line
        self._ids: set[str] = set()

    def has(self, attempt_dir: str, step: str) -> bool:
        if step not in self._ids:
            self._read_on(attempt_dir)
        return step in self._ids

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _read_on(self, attempt_dir: str) -> None:
        from farro.execution.records import NAME

        if self._fd is None:
            try:
                self._fd = fs.open_read(f"{attempt_dir}/{NAME}")
            except (FileNotFoundError, NotADirectoryError):
                return
        while data := os.read(self._fd, _BLOCK):
            *lines, self._torn = (self._torn + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError, RecursionError):
                    told = json.loads(line)
                    if isinstance(told, dict) and isinstance(told.get("id"), str):
                        self._ids.add(told["id"])


def current(folder: str, attempt: int) -> str | None:
    """The step that began last."""
    names = begun(folder, attempt)
    return names[-1] if names else None


def read_prompt(folder: str) -> Mapping[str, Any]:
    """prompt.json as it is; empty when it cannot be read."""
    try:
        data = json.loads(fs.read_bytes(f"{folder}/prompt.json", _PROMPT_LIMIT))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _listed(prompt: Mapping[str, Any]) -> list[str]:
    items = prompt.get("steps") or prompt.get("tasks")
    if not isinstance(items, list):
        return []
    return [str(item.get("id") or item.get("step_number")) for item in items if isinstance(item, dict)]


def read_result(folder: str, attempt: int) -> Mapping[str, Any]:
    """result.json of an attempt; empty when it has none, or none that can be read."""
    try:
        data = json.loads(fs.read_bytes(f"{folder}/attempts/{attempt:04d}/result.json", _RESULT_LIMIT))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
