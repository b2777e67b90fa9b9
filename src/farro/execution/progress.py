"""Read the progress of an attempt from its folder: which steps have begun and ended."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from farro.host import fs

RUNNER_LOG = "runner.log"  # the output of a runner process itself
_PROMPT_LIMIT = 16 << 20
_BLOCK = 256 * 1024
_RESULT_LIMIT = 64 << 20


def begun(folder: str, attempt: int) -> list[str]:
    """Return the names of begun steps, in order.

    A step's folder changes when its files are created, which is when it starts. Filesystem times are coarse, so steps
    of one tick are ordered as in the plan.
    """
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
    """Return whether steps were begun, or the runner wrote output. A manager's attempt has neither."""
    home = f"{folder}/attempts/{attempt:04d}"
    return bool(fs.subdirectories(f"{home}/steps")) or fs.exists(f"{home}/{RUNNER_LOG}")


def lines(folder: str, attempt: int) -> list[Mapping[str, Any]]:
    """Return the attempt's steps.jsonl: what each ended step did and added. A plan of one step has none.

    Attempt 0: what the job took over from the job that it repeats.
    """
    from farro.execution import records  # here: a listing of jobs reads no steps

    return list(records.read(f"{folder}/attempts/{attempt:04d}" if attempt else f"{folder}/carried"))


class Over:
    """The ended steps of one attempt, read from its growing steps.jsonl; each line is read once.

    That the next step has begun says nothing: steps may run in parallel, and a reader beside its input. Read by
    descriptor, because the job's folder may be moved meanwhile.
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
                    record = json.loads(line)
                    if isinstance(record, dict) and isinstance(record.get("id"), str):
                        self._ids.add(record["id"])


def current(folder: str, attempt: int) -> str | None:
    """Return the step that began last."""
    names = begun(folder, attempt)
    return names[-1] if names else None


def read_prompt(folder: str) -> Mapping[str, Any]:
    """Return prompt.json; empty if it cannot be read."""
    return _read_object(f"{folder}/prompt.json", _PROMPT_LIMIT)


def _listed(prompt: Mapping[str, Any]) -> list[str]:
    items = prompt.get("steps") or prompt.get("tasks")
    if not isinstance(items, list):
        return []
    return [str(item.get("id") or item.get("step_number")) for item in items if isinstance(item, dict)]


def read_result(folder: str, attempt: int) -> Mapping[str, Any]:
    """Return result.json of an attempt; empty if there is none, or it cannot be read."""
    return _read_object(f"{folder}/attempts/{attempt:04d}/result.json", _RESULT_LIMIT)


def _read_object(path: str, limit: int) -> Mapping[str, Any]:
    try:
        data = json.loads(fs.read_bytes(path, limit))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def step_results(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the records of the steps in a result; none where it has no list of them."""
    listed = result.get("step_results")
    return [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
