"""Carry over what earlier attempts did: the steps that succeeded, and the steps that they added.

Each attempt is complete: the files of a carried step are linked into the new attempt's folder, then one line for each
is written. So only the newest attempt that got that far is read.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields
from typing import Any

from farro.execution import records
from farro.execution.added_steps import unrecorded
from farro.execution.records import AcceptedTask, Line
from farro.execution.results import Inline, StepResult
from farro.host import fs, links
from farro.lazy_dataclass import dataclass
from farro.plans.loading import grown
from farro.plans.model import Plan, Step

CARRIED = "carried"  # beside the attempts: what a retried job brought along, laid out like an attempt
_RECORDED = frozenset(field.name for field in fields(StepResult)) - {"stdout", "stderr", "last_words", "resumed"}
_NUMBERS = ("step_number", "exit_code", "duration_s", "user_s", "system_s", "max_rss_kb", "attempts")


@dataclass(frozen=True, kw_only=True, slots=True)
class PastAttempts:
    """The still valid work of earlier attempts."""

    folder: str = ""
    lines: tuple[Line, ...] = ()  # records of the steps below, and of tasks added late
    steps: tuple[Step, ...] = ()  # the plan's and the added ones
    added_by: Mapping[str, str]
    succeeded: tuple[Line, ...] = ()  # in the order in which they ended


def earlier(folder: str, attempt: int, hop_start: int, *, retried: bool) -> tuple[str, ...]:
    """Return the folders of earlier attempts in this hop, oldest first. The first hop of a retried job starts with
    what it brought along."""
    attempts, _, _ = folder.rpartition("/")
    brought = (f"{attempts.rpartition('/')[0]}/{CARRIED}",) if retried and hop_start == 0 else ()
    return (*brought, *(f"{attempts}/{number:04d}" for number in range(hop_start + 1, attempt)))


def past(plan: Plan, earlier: Sequence[str]) -> PastAttempts:
    """Return what the newest of these folders with records says."""
    for folder in reversed(earlier):
        lines = records.trusted(folder)
        if lines is not None:
            return _with_unrecorded(plan, _replay(plan, folder, lines))
    return PastAttempts(steps=plan.steps, added_by={})


def only(plan: Plan, found: PastAttempts, kept: AbstractSet[str]) -> PastAttempts:
    """Keep these steps only; what the others added is dropped with them."""
    lines = [line for line in found.lines if _depends_on(line) <= kept]
    return _replay(plan, found.folder, lines)


def carry(found: PastAttempts, attempt_dir: str, inline: Inline) -> list[StepResult]:
    """Link the files of succeeded steps into the new attempt's folder; return their results as the new attempt
    reports them."""
    if found.succeeded:
        with contextlib.suppress(FileExistsError):
            fs.mkdir(f"{attempt_dir}/steps")
    done = []
    for line in found.succeeded:
        for path in records.paths(line):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(os.path.dirname(f"{attempt_dir}/{path}"))
            links.place(f"{found.folder}/{path}", f"{attempt_dir}/{path}")
        done.append(_result(line, attempt_dir, inline))
    return done


def _depends_on(line: Line) -> set[str]:
    """Return the steps whose success a line depends on."""
    return {line["id"]} if "id" in line else {one["by"] for one in line["added"]}


def _with_unrecorded(plan: Plan, found: PastAttempts) -> PastAttempts:
    """Add tasks that succeeded steps added without a record. If such a task is invalid, the step that added it runs
    again."""
    known = [one.get("file") for line in found.lines for one in line.get("added", ())]
    adders = {line["id"] for line in found.succeeded}
    if not adders or None in known or found.folder.endswith(f"/{CARRIED}"):
        return found
    if not (tasks := unrecorded(found.folder, known=set(known), adders=adders)):
        return found
    late = {"added": [AcceptedTask(by=one.added_by, task=one.data, file=one.file).to_json() for one in tasks]}
    if any(one.fault is not None for one in tasks) or grown(found.steps, [one.data for one in tasks])[1]:
        blamed = {one.added_by for one in tasks}
        sound = itertools.takewhile(lambda line: not _depends_on(line) & blamed, found.lines)
        return _replay(plan, found.folder, list(sound))
    return _replay(plan, found.folder, [*found.lines, late])


def _replay(plan: Plan, folder: str, lines: Sequence[Line]) -> PastAttempts:
    """Apply these lines to the plan, up to the first invalid one: later lines may depend on it."""
    steps, added_by = list(plan.steps), dict[str, str]()
    known = {step.id for step in steps}
    kept: list[Line] = []
    succeeded: dict[str, Line] = {}
    for line in lines:
        if not _is_valid(line):
            break
        if "id" in line:
            if line.get("success") is not True:
                continue
            if line["id"] not in known or line["id"] in succeeded or not _files_match(folder, line):
                break
        added = [
            AcceptedTask(by=one["by"], task=one["task"], file=one.get("file", "")) for one in line.get("added", ())
        ]
        more, problems = grown(steps, [one.task for one in added]) if added else ((), [])
        if problems:
            break
        if "id" in line:
            succeeded[line["id"]] = line
        elif not added:
            continue
        kept.append(line)
        steps += more
        known.update(step.id for step in more)
        added_by.update((step.id, one.by) for step, one in zip(more, added, strict=True))
    return PastAttempts(
        folder=folder,
        lines=tuple(kept),
        steps=tuple(steps),
        added_by=added_by,
        succeeded=tuple(succeeded.values()),
    )


def _files_match(folder: str, line: Line) -> bool:
    """Return whether the step's files are as recorded. farro wrote the record, but steps can write into the folder."""
    home = f"steps/{line['id']}"
    for stream in ("stdout", "stderr"):
        path, size = line.get(f"{stream}_path"), line.get(f"{stream}_bytes")
        if path is None:
            continue
        try:
            if path != f"{home}/{stream}":
                return False
            found = fs.lstat(f"{folder}/{path}")
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                return False
        except OSError:
            return False
    return True


def _is_valid(line: Line) -> bool:
    """Return whether the line has the form that farro writes. One that has not is ignored and must not fail the job."""
    added = line.get("added", [])
    if not isinstance(added, list) or not all(
        isinstance(one, dict) and isinstance(one.get("by"), str) and "task" in one for one in added
    ):
        return False
    if "id" not in line:
        return True
    return (
        isinstance(line["id"], str)
        and _RECORDED - {"added_by"} <= line.keys()
        and all(isinstance(line[name], (int, float)) for name in _NUMBERS)
    )


def _result(line: Line, attempt_dir: str, inline: Inline) -> StepResult:
    recorded: dict[str, Any] = {name: line[name] for name in _RECORDED if name in line}
    for stream in ("stdout", "stderr"):
        said = inline.said(attempt_dir, f"steps/{line['id']}/{stream}")
        recorded |= {stream: said.text, f"{stream}_truncated": said.truncated}
    return StepResult(**recorded, resumed=True)
