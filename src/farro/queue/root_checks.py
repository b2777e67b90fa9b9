"""Check what users write into a root (schemas, tasks, schedules, policies) and settings that SPEC-1 pins."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime

from farro import documents
from farro.config.settings import Settings
from farro.doctor.checks import EXAMPLES, Check, Finding, counted, edit, failed, ok, quoted, warning
from farro.doctor.schemas import schemas
from farro.errors import BadDocument
from farro.host import fs
from farro.jobs.explain_rules import MANAGER_AWAY_S
from farro.jobs.retry import RetryPolicy
from farro.jobs.states import Status
from farro.jobs.times import in_words
from farro.queue import schedules
from farro.roles import policy, task
from farro.roles.workflow import MANAGER
from farro.store import leadership
from farro.store.port import Store

_FULL_PERCENT = 80
OpenStore = Callable[[], AbstractContextManager[Store]]


def checks(
    root: str,
    settings: Settings,
    *,
    config: str,
    now: Callable[[], datetime],
    open_store: OpenStore,
    conformance: bool,
) -> list[Check]:
    """Return the checks of a root. `conformance`: a manager has to run."""
    return [
        Check(id="schemas", title="schemas of this version", look=lambda: _schemas(root), quick=True),
        Check(id="tasks", title="tasks", look=lambda: _tasks(root, settings)),
        Check(id="schedules", title="schedules", look=lambda: _schedules(root, settings)),
        Check(id="policies", title="policies", look=lambda: _policies(root, settings), quick=True),
        Check(
            id="watchdog-thresholds",
            title="thresholds of the watchdog",
            look=lambda: _watchdog(settings, config),
            quick=True,
        ),
        Check(id="backoff", title="backoff", look=lambda: _backoff(settings, config), quick=True),
        Check(id="caps", title="caps", look=lambda: _caps(settings, config, open_store), quick=True),
        Check(id="manager-heartbeat", title="manager", look=lambda: _heartbeat(open_store, conformance)),
    ]


def _schemas(root: str) -> Finding:
    wrong, missing = [], []
    for name, text in schemas().items():
        path = f"{root}/schemas/{name}"
        try:
            if fs.read_regular(path, len(text.encode()) + 1) != text.encode():
                wrong.append(path)
        except FileNotFoundError:
            missing.append(path)
    if wrong:
        return failed(
            f"{', '.join(map(os.path.basename, wrong))} not of this version",
            "farro was upgraded, or they were edited; editors would check by the wrong rules. farro init rewrites them",
            f"rm {' '.join(map(quoted, wrong))}",
            "farro init",
        )
    if missing:
        return failed(f"{os.path.basename(missing[0])} is missing", "editors and CI check by them", "farro init")
    return ok(f"{len(schemas())} files, as this version writes them")


def _tasks(root: str, settings: Settings) -> Finding:
    try:
        names = sorted(name for name in fs.listdir(f"{root}/tasks") if name.endswith(".json") and name[0] != ".")
    except FileNotFoundError:
        return ok("none")
    roles, problems, bad = settings.all_roles(), [], []
    for name in names:
        path = f"{root}/tasks/{name}"
        try:
            document = documents.parse(fs.read_regular(path, documents.DEFAULT.size), f"tasks/{name}")
            allowed = settings.security.allow_absolute_paths
            task.load(document, name=name.removesuffix(".json"), roles=roles, allow_absolute=allowed)
        except BadDocument as error:
            problems += str(error).splitlines()
            bad.append(path)
    return _documents(len(names), "task", problems, bad)


def _schedules(root: str, settings: Settings) -> Finding:
    entries = schedules.read(root, settings.all_roles())
    bad = [entry for entry in entries if entry.problems]
    problems = [line for entry in bad for line in entry.problems]
    return _documents(len(entries), "schedule", problems, [f"{root}/{entry.file}" for entry in bad])


def _documents(count: int, kind: str, problems: list[str], bad: list[str]) -> Finding:
    if not bad:
        return ok(f"{counted(count, kind)}, all valid" if count else "none")
    return failed(
        f"{len(bad)} of {counted(count, kind)} cannot be used",
        "each mistake is listed with its place; such a file runs nothing",
        *(edit(path) for path in bad[:EXAMPLES]),
        details=tuple(problems[:EXAMPLES]),
    )


def _policies(root: str, settings: Settings) -> Finding:
    names = ["AGENTS.md", *(f"agents/{role}/AGENTS-ROLE.md" for role in settings.all_roles())]
    missing, bad, unversioned = [], [], []
    problems: list[str] = []
    for name in names:
        try:
            text = fs.read_regular(f"{root}/{name}", policy.MAX_BYTES).decode("utf-8", "replace")
            warned = policy.read(text, name).warning
        except FileNotFoundError:
            missing.append(name)
        except BadDocument as error:
            bad.append(name)
            problems += str(error).splitlines()
        else:
            if warned:
                unversioned.append(name)
                problems.append(warned)
    if bad:
        commands = [edit(f"{root}/{name}") for name in bad[:EXAMPLES]]
        return failed(
            f"the header of {bad[0]} is wrong",
            "jobs record the version of their policy",
            *commands,
            details=tuple(problems[:EXAMPLES]),
        )
    if missing:
        return failed(f"{missing[0]} is missing", "agents work by it", "farro init", details=tuple(missing[:EXAMPLES]))
    if unversioned:
        first = [f"{root}/{name}" for name in unversioned[:EXAMPLES]]
        commands = [f"sed -i '1i ---\\nversion: 1.0.0\\n---' {quoted(path)}" for path in first]
        return warning(
            f"{unversioned[0]} has no version",
            "jobs record 0.0.0 for it",
            *commands,
            details=tuple(problems[:EXAMPLES]),
        )
    return ok(f"{len(names)} files, each with its version")


def _watchdog(settings: Settings, config: str) -> Finding:
    thresholds = settings.watchdog
    found = f"stale after {in_words(thresholds.stale_after_s)}, abandoned after {in_words(thresholds.abandon_after_s)}"
    if thresholds.abandon_after_s <= thresholds.stale_after_s:
        return warning(
            found, "a job is given up before its agent counts as hung; abandon_after_s must be longer", edit(config)
        )
    return ok(found)


def _backoff(settings: Settings, config: str) -> Finding:
    has, pinned = settings.retry, RetryPolicy()
    found = f"{has.base_s:g} s × {has.multiplier:g}, at most {has.max_delay_s:g} s"
    names = ("base_s", "multiplier", "max_delay_s")
    wrong = [f"retry.{name}" for name in names if getattr(has, name) != getattr(pinned, name)]
    if wrong:
        cause = (
            f"{', '.join(wrong)} differ from what SPEC-1 pins (0.25 s × 1.5, at most 10 s); remove them from the config"
        )
        return warning(found, cause, edit(config))
    return ok(f"{found}, as pinned")


def _caps(settings: Settings, config: str, open_store: OpenStore) -> Finding:
    full: list[tuple[str, int, int]] = []
    capped = [role for role in settings.all_roles() if settings.cap_of(role) is not None]
    with open_store() as store:
        loads = {role: store.load(role) for role in capped}
    total = 0
    for role in settings.all_roles():
        cap = settings.cap_of(role)
        if cap is None:
            continue
        load = loads[role]
        total += load
        if load * 100 >= cap * _FULL_PERCENT and load:
            full.append((role, load, cap))
    found = f"{settings.capacity.role_cap} a role, {settings.capacity.total_cap} in all; {counted(total, 'job')} now"
    if full:
        role, load, cap = full[0]
        return warning(
            f"{role} has {load} of {cap} jobs"
            + (f", and {len(full) - 1} more are nearly full" if len(full) > 1 else ""),
            "enqueues are refused at the cap, and auto-plan pauses at 80 %; work the queue down",
            *(f"farro worker --role {role} --drain" for role, _, _ in full[:EXAMPLES]),
        )
    if settings.capacity.role_cap == 0 or settings.capacity.total_cap == 0:
        return warning(found, "a cap of 0 refuses every job", edit(config))
    return ok(found)


def _heartbeat(open_store: OpenStore, conformance: bool) -> Finding:
    """Check the manager's heartbeat. A manager that never ran is only a problem when jobs wait for one, or for the
    conformance checklist, which asks for a healthy heartbeat."""
    with open_store() as store:
        age_s = leadership.manager_silent_s(store, agents=())
        counts = store.queue_counts()
    waiting = counts.stale + counts.roles.get(MANAGER, {}).get(Status.QUEUED, 0)
    if age_s is None:
        if waiting:
            cause = "only a manager decides about them"
            return warning(
                f"no manager runs, with {counted(waiting, 'job')} waiting for one", cause, "farro manager --once"
            )
        if conformance:
            return failed("none has run here", "the checklist asks for a healthy heartbeat", "farro start")
        return ok("none has run here, and nothing waits for one")
    if age_s > MANAGER_AWAY_S:
        judge = failed if conformance else warning
        return judge(
            f"its last sign of life is {in_words(age_s)} old",
            "routed and stale jobs wait until a manager runs; it writes its heartbeat every ten seconds",
            "farro start",
        )
    return ok(f"its last sign of life is {in_words(age_s)} old")
