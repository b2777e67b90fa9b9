"""Exchange data between a worker and its runner process: the order at its start, and the file with the outcome.

The file is `outcome.json` in the attempt's folder, whole or absent; the worker removes it after reading, and it alone
commits. Invariant: an attempt's folder is new, so the file is this runner's.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from farro.errors import SyncFailed
from farro.execution.runner import Work
from farro.host import fs
from farro.host.process_limits import ProcessLimits
from farro.jobs.outcomes import AccountWait, ErrorInfo, Failed, Outcome, Released, Report, Succeeded
from farro.lazy_dataclass import dataclass

OUTCOME = "outcome.json"
LIMIT = 1 << 30  # bytes; a thousand steps with the largest output in the result take a tenth of it


@dataclass(frozen=True, kw_only=True, slots=True)
class RunnerOrder:
    """Everything that a runner gets at its start."""

    work: Work
    tools: Mapping[str, Any]
    limits: ProcessLimits
    place_fd: int | None = None

    def to_line(self) -> bytes:
        data = {
            "work": self.work.to_json(),
            "tools": dict(self.tools),
            "limits": asdict(self.limits),
            "place_fd": self.place_fd,
        }
        return json.dumps(data).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> RunnerOrder:
        data = json.loads(line)
        return cls(
            work=Work.from_json(data["work"]),
            tools=data["tools"],
            limits=ProcessLimits(**data["limits"]),
            place_fd=data["place_fd"],
        )


def leave(folder: str, came: Outcome | SyncFailed) -> None:
    """Write the outcome, whole or not at all. Called by the runner."""
    fs.write_atomic(f"{folder}/{OUTCOME}", json.dumps(_written(came)).encode(), sync=False)


def take(folder: str) -> Outcome | None:
    """Read the outcome. Called by the worker. None: there is none that can be read. Raises SyncFailed if the runner
    met it."""
    try:
        data = json.loads(fs.read_bytes(f"{folder}/{OUTCOME}", LIMIT))
        came = _read(data)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    with contextlib.suppress(OSError):
        fs.unlink(f"{folder}/{OUTCOME}")
    return came


def _written(came: Outcome | SyncFailed) -> dict[str, Any]:
    if isinstance(came, SyncFailed):
        return {"outcome": "sync_failed", "message": str(came)}
    if isinstance(came, Released):
        return {"outcome": "released", "note": came.note, "wait": None if came.wait is None else asdict(came.wait)}
    data: dict[str, Any] = {"outcome": "succeeded", "report": asdict(came.report)}
    if isinstance(came, Failed):
        again = {"retryable": came.retryable, "retry_after_s": came.retry_after_s}
        data |= {"outcome": "failed", "error": asdict(came.error), **again}
    elif not isinstance(came, Succeeded) or came.children:
        raise TypeError(f"a runner cannot hand over {came!r}")
    return data


def _read(data: Mapping[str, Any]) -> Outcome:
    match data["outcome"]:
        case "sync_failed":
            raise SyncFailed(data["message"])
        case "released":
            wait = data["wait"]
            waits_for = None
            if wait is not None:
                waits_for = AccountWait(accounts=tuple(wait["accounts"]), delay_s=wait["delay_s"])
            return Released(note=data["note"], wait=waits_for)
        case "succeeded":
            return Succeeded(report=_report(data["report"]))
        case "failed":
            again = {name: data[name] for name in ("retryable", "retry_after_s")}
            return Failed(error=ErrorInfo(**data["error"]), report=_report(data["report"]), **again)
        case other:
            raise ValueError(other)


def _report(data: Mapping[str, Any]) -> Report:
    return Report(result=data["result"], markdown=data["markdown"], files=tuple(data["files"]))
