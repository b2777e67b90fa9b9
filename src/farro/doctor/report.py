"""Run checks, decide whether they pass, and fill in the checklist of SPEC-1's profile."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from farro.config.settings import Settings
from farro.doctor import policy_lock
from farro.doctor.checks import EXAMPLES, Check, Finding, Verdict, edit, failed, ok, own, quoted, warning
from farro.doctor.disk_checks import scratch
from farro.doctor.policy_lock import CHECKLIST, PINNED, PROFILE, parameters
from farro.errors import FarroError, Refused
from farro.host import fs
from farro.lazy_dataclass import dataclass, replace

_PATIENCE_S = 300.0  # SPEC-1 D: an example job is over in five minutes
_ORDER: dict[Verdict, int] = {"failed": 0, "warning": 1, "ok": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    id: str
    title: str
    finding: Finding

    def to_json(self) -> dict[str, Any]:
        found = self.finding
        return {
            "id": self.id,
            "title": self.title,
            "verdict": found.verdict,
            "found": found.found,
            "cause": found.cause or None,
            "repair": list(found.repair),
            "details": list(found.details),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination:
    results: tuple[CheckResult, ...]
    strict: bool

    @property
    def passed(self) -> bool:
        return not self.bad()

    def bad(self) -> list[CheckResult]:
        """Return the results that keep the examination from passing."""
        enough = ("failed", "warning") if self.strict else ("failed",)
        return [result for result in self.results if result.finding.verdict in enough]

    def troubles(self) -> list[CheckResult]:
        """Return all results that are not ok, the worst first."""
        found = [result for result in self.results if result.finding.verdict != "ok"]
        return sorted(found, key=lambda result: _ORDER[result.finding.verdict])

    def count(self, verdict: Verdict) -> int:
        return sum(result.finding.verdict == verdict for result in self.results)


def examine(checks: Sequence[Check], *, root: str, strict: bool, named: bool = True) -> Examination:
    """Run every check. `named`: add --root to farro's commands among the repairs; else they use the current folder."""
    results = tuple(
        CheckResult(id=check.id, title=check.title, finding=_rooted(_run(check, root), root if named else None))
        for check in checks
    )
    return Examination(results=results, strict=strict)


def _run(check: Check, root: str) -> Finding:
    try:
        return check.look()
    except PermissionError as error:
        path = str(error.filename or root)
        inside = os.path.relpath(os.path.dirname(path) if fs.TEMPORARY in path else path, root)
        where = root if inside == "." else inside
        cause = "give the root to whoever runs the daemons, and run doctor as that user"
        return failed(f"could not be checked: {where} is closed to you", cause, own(root))
    except (OSError, FarroError) as error:
        culprit = getattr(error, "filename", None)
        if getattr(error, "errno", None) == errno.EROFS and str(culprit).startswith(root):
            return ok("not tried: mounted read-only, see `permissions`")  # one cause, reported once
        look = f"ls -ld {quoted(str(culprit))}" if culprit else "farro doctor --json"
        return failed(f"could not be checked: {error}", "something that it needs cannot be read or made", look)


def _rooted(finding: Finding, root: str | None) -> Finding:
    if root is None or not finding.repair:
        return finding
    option = f" --root {quoted(root)}"
    commands = (
        f"{line}{option}" if line.startswith("farro ") and "--root" not in line else line for line in finding.repair
    )
    return replace(finding, repair=tuple(commands))


def admit(checks: Sequence[Check], what: str, root: str, *, strict: bool) -> None:
    """Raise Refused if a check fails, so that `what` does not start; with `strict` also if one warns."""
    told = examine(checks, root=root, strict=strict)
    if told.passed:
        return
    lines = [f"{what} does not start: {'strict, and ' if strict else ''}doctor finds"]
    for result in told.bad():
        lines.append(f"  {result.id}: {result.finding.found}; repair: {' && '.join(result.finding.repair)}")
    if not strict:
        lines.append("  In an emergency, --no-checks starts it all the same.")
    raise Refused("\n".join(lines))


# --- conformance ---


def conformance_checks(root: str, settings: Settings, *, config: str) -> list[Check]:
    """Return the checks of what the profile pins, section by section, and of a job from end to end."""

    def section(name: str) -> Check:
        def look() -> Finding:
            found = list(policy_lock.differences(PINNED[name], parameters(settings)[name], name, more=False))
            if not found:
                return ok(f"as {PROFILE} pins it")
            cause = "the config says otherwise; remove it there, or do without the profile"
            details = tuple(map(str, found))
            return failed(f"{len(found)} other than {PROFILE}", cause, edit(config), details=details)

        return Check(id=f"profile-{name}", title=f"profile: {name}", look=look)

    return [
        *(section(name) for name in PINNED),
        Check(id="example-job", title="an example job", look=lambda: _example(root)),
    ]


def lock_check(root: str, settings: Settings, *, conformance: bool) -> Check:
    """Return the check of policy.lock.json: that it is there, and for conformance that it agrees with what is."""
    return Check(id="policy-lock", title="policy.lock.json", look=lambda: _lock(root, settings, conformance))


def _lock(root: str, settings: Settings, conformance: bool) -> Finding:
    written = policy_lock.read(root)
    if written is None:
        judge = failed if conformance else warning
        return judge("not there", "what jobs run under is not pinned", "farro policy lock")
    if not conformance:
        return ok("there")
    found = policy_lock.compare(written, policy_lock.lock(root, settings))
    if not found:
        return ok("agrees with what is")
    cause = "a policy, a schema or the config changed since it was written; look whether that is meant, then lock anew"
    details = tuple(map(str, found[: 2 * EXAMPLES]))
    return failed(f"{len(found)} other than locked", cause, "farro policy lock", details=details)


def _example(root: str) -> Finding:
    """Run an example job in a root of its own: on the same filesystem, without touching the queue."""
    with scratch(f"{root}/jobs") as home:
        for words in (["init"], ["enqueue", "--id", "example", "--", "true"], ["worker", "--drain"]):
            argv = [sys.executable, "-P", "-m", "farro", *words[:1], "--root", home, *words[1:]]
            done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_PATIENCE_S, cwd=home)
            if done.returncode != 0:
                said = (done.stderr or done.stdout).strip().splitlines()[-1:]
                cause = "a job that only says `true` does not come through here"
                return failed(f"farro {words[0]} failed: {' '.join(said)}", cause, "farro run -- true")
        landed = os.path.isdir(f"{home}/agents/Runner/completed/succeeded/example")
    if not landed:
        return failed("it did not land in completed/", "see what the worker says", "farro run -- true")
    return ok("enqueued, worked, and in completed/succeeded")


def checklist(told: Examination) -> list[dict[str, Any]]:
    """Return SPEC-1's checklist, item by item."""
    verdicts = {result.id: result.finding.verdict for result in told.results}
    enough = ("ok",) if told.strict else ("ok", "warning")
    items = []
    for item in CHECKLIST:
        shown = item.checks or tuple(verdicts)
        wanted = ("ok",) if not item.checks else enough
        items.append(
            {
                "item": item.words,
                "done": all(verdicts.get(name) in wanted for name in shown),
                "checks": list(item.checks),
                "open": [name for name in shown if verdicts.get(name) not in wanted],
            }
        )
    return items
