"""Define a schedule (schedules/*.json or .yaml): when a plan runs, and what happens to missed runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from farro.documents import Document, refusal, shapes
from farro.errors import BadDocument, Problem
from farro.lazy_dataclass import dataclass
from farro.plans.cron import BadCron, Cron
from farro.plans.loading import load as load_plan

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
NAME_RULE = "1 to 32 of A-Z a-z 0-9 _ -, the first a letter or digit"
MOST_MISSED = 100  # the most missed runs that `run_all` makes up for: the latest
ON_TIME = timedelta(seconds=60)  # a run this soon after its time was not missed


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One file of schedules/."""

    cron: str
    name: str | None = None  # default: the file name without its extension
    zone: str = "UTC"
    missed: Literal["skip", "run_once", "run_all"] = "run_once"
    plan: Any = None  # an object or a task list; `load` checks it as a plan
    plan_file: str | None = None  # beside the schedule's file
    role: str | None = None  # default: the plan's role, else Runner
    enabled: bool = True

    def parsed(self) -> Cron:
        return Cron.parse(self.cron)


def load(document: Document, more: Callable[[Document, dict[str, Any]], Iterable[Problem]] = lambda *_: ()) -> Schedule:
    """Load the schedule in a document, or raise BadDocument with every problem and its place. `more` adds problems that
    depend on the machine: zones, roles, files."""
    checked = shapes.check(Schedule, document.data)
    problems = [document.problem(fault.path, fault.message, key=fault.key) for fault in checked.faults]
    data = document.data if isinstance(document.data, dict) else {}
    problems += [*_own_problems(document, data), *more(document, data)]
    if problems or checked.value is None:
        raise refusal(document.source, problems)
    return checked.value


def _own_problems(document: Document, data: dict[str, Any]) -> Iterable[Problem]:
    name = data.get("name")
    if isinstance(name, str) and NAME.fullmatch(name) is None:
        yield document.problem(("name",), f"is not a schedule's name: {NAME_RULE}")
    if isinstance(data.get("cron"), str):
        try:
            Cron.parse(data["cron"])
        except BadCron as error:
            yield document.problem(("cron",), str(error))
    given = [field for field in ("plan", "plan_file") if data.get(field) is not None]
    if len(given) == 2:
        yield document.problem(("plan_file",), "plan and plan_file say the same; keep one", key=True)
    elif not given and data:
        yield document.problem((), "has neither plan nor plan_file: what shall run?")
    if data.get("plan") is not None:
        yield from plan_problems(document.inside("plan"), "plan")


def plan_problems(document: Document, prefix: str = "") -> Iterable[Problem]:
    """Yield the problems of the plan of a schedule."""
    dot = f"{prefix}." if prefix else ""
    try:
        plan = load_plan(document)
    except BadDocument as bad:
        for problem in bad.problems:
            path = f"{dot}{problem.path}" if problem.path else prefix
            yield Problem(path=path, message=problem.message, line=problem.line, column=problem.column)
        return
    if plan.id is not None:
        found = document.problem(("id",), "every run of a schedule is a job of its own; take the id out", key=True)
        yield Problem(path=f"{dot}id", message=found.message, line=found.line, column=found.column)


def to_run(missed: str, dues: Sequence[datetime], now: datetime) -> Sequence[datetime]:
    """Return which of the due times (in order) run now."""
    if missed == "run_all":
        return dues[-MOST_MISSED:]
    if missed == "skip":
        return [due for due in dues[-1:] if now - due <= ON_TIME]
    return dues[-1:]


def run_id(name: str, due: datetime) -> str:
    """Return the job id of one due time: the same in every process, so firing can be repeated safely."""
    return f"sched-{name}-{due:%Y%m%dT%H%M%SZ}"
