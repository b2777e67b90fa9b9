"""Run the checks and the test suites, two at a time, and print a summary for readers and CI.

A failing suite does not stop the run: the failures are listed at its end, then a table of seconds per suite, the
figures that the proofs wrote (FARRO_FIGURES), and as the last line `N passed, N failed, N skipped`. With CI=true a
skipped test is a failed one: a proof that could not run proves nothing. A full run also fails if its suites take too
few branches of src; a run of some suites does not measure branches.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import branches

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(".build", "test")
BIN = os.path.dirname(sys.executable)

CHECKS: dict[str, list[str]] = {
    "lint": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "imports": ["lint-imports", "--no-logo"],
    "types": ["mypy"],
}
SUITES = (
    *("house", "documents", "jobs", "plans", "roles", "config", "host", "log", "doctor", "sandbox", "store"),
    *("execution", "worker", "queue", "agents", "air", "swarm", "agq", "web", "tui", "mcp", "agx", "engines"),
    *("contracts", "golden", "browser", "crash", "flows", "storm", "real_agents"),
)
# What a suite runs besides the system's packages. It is installed beside the suites that run first.
INSTALLERS = {"real_agents": ["scripts/agents.sh"]}
# Two at a time: one works while the other waits for processes or for its last test. The longest suite starts first,
# beside those that wait most; these get one process more.
FIRST = ("crash", "swarm", "browser", "storm", "flows", "contracts", "sandbox", "plans", "house", "web", "agq")
WAITING = ("swarm", "browser", "storm", "web", "mcp", "tui", "real_agents")
LANES = 2
# They check texts, make the same calls many thousand times, or wait for programs that are no part of farro.
UNMEASURED = ("house", "golden", "crash", "storm", "real_agents")
BRANCHES = 0.85  # the share of branches of src that the other suites must take

NOTHING_COLLECTED = 5  # pytest's exit code
HUNG_TEST_S = 300  # a test that takes longer is ended, and its stacks are printed; without this, CI would wait for ever


@dataclass(kw_only=True)
class Report:
    """The result of one check or suite."""

    name: str
    seconds: float = 0.0
    passed: int = 0
    failures: list[str] = field(default_factory=list)
    skips: list[str] = field(default_factory=list)
    figures: list[dict[str, object]] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suites", default="", help=f"some of: {' '.join([*CHECKS, *SUITES])}; all when empty")
    parser.add_argument("--branches", action="store_true", help="measure some suites too, and list what they missed")
    parser.add_argument("args", nargs="*", help="after --: handed to pytest")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.makedirs(OUT, exist_ok=True)

    asked = options.suites.split()
    unknown = [name for name in asked if name not in CHECKS and name not in SUITES]
    if unknown:
        parser.error(f"no such suite: {' '.join(unknown)}; there are {' '.join([*CHECKS, *SUITES])}")

    start = time.monotonic()
    env = environment()
    # A run in a long form is not an ordinary one, and options such as -k leave tests out.
    whole = not asked and not options.args and not env.get("FARRO_TORTURE") and not env.get("FARRO_LONG")
    reports = list(run_all(asked, options.args, env, measured=whole or options.branches))
    if whole or options.branches:
        reports.append(judge_branches(judged=whole, listed=options.branches))
    if not any(report.passed or report.failures or report.skips for report in reports):
        nothing = Report(name="nothing", failures=["nothing ran: no suite has such tests"])
        reports.append(nothing)
    if os.environ.get("CI") == "true":
        for report in reports:
            report.failures += [f"{skip} (skipped, and CI=true)" for skip in report.skips]
            report.skips.clear()
    tell(reports, time.monotonic() - start)
    return 1 if any(report.failures for report in reports) else 0


def environment() -> dict[str, str]:
    """Return the suites' environment, without make's own variables, which would affect every `make` that a test starts.
    Compiled modules are kept: else the three processes of each suite would compile the same modules thirteen times."""
    of_make = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "SUITES", "ARGS", "PYTHON"}
    left_out = {*of_make, "PYTHONDONTWRITEBYTECODE"}
    env = {name: value for name, value in os.environ.items() if name not in left_out}
    env["PATH"] = BIN + os.pathsep + env.get("PATH", os.defpath)
    return env


def run_all(asked: Sequence[str], args: Sequence[str], env: dict[str, str], *, measured: bool) -> Iterator[Report]:
    """Run every check and suite, or the requested ones. The checks run beside the first suites: the longest of them,
    the type check, uses one core for a minute."""
    checks = [name for name in CHECKS if not asked or name in asked]
    installing: dict[str, Future[None]] = {}
    suites = [name for name in SUITES if name in asked or (not asked and has_tests(name))]
    shutil.rmtree(branches.FOLDER, ignore_errors=True)

    def run(name: str) -> Report:
        if name in CHECKS:
            return run_check(name, CHECKS[name], env)
        if not has_tests(name):
            return Report(name=name, failures=[f"tests/{name} has no tests"])
        if name in installing:
            installing[name].result()
        return run_suite(name, args, env, measured=measured and name not in UNMEASURED, alone=len(suites) == 1)

    with ThreadPoolExecutor(1) as beside, ThreadPoolExecutor(LANES if workers() else 1) as lanes:
        installing |= {name: beside.submit(install, name, env) for name in suites if name in INSTALLERS}
        reports = {name: beside.submit(run, name) for name in checks}
        first = sorted(suites, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
        reports |= {name: lanes.submit(run, name) for name in first}
        try:
            yield from [reports[name].result() for name in (*checks, *suites)]
        except KeyboardInterrupt:
            for report in reports.values():
                report.cancel()
            raise SystemExit(130) from None


def install(name: str, env: dict[str, str]) -> None:
    """Install what a suite runs. If that fails its tests are skipped, with CI=true they fail: this says why."""
    for more in (["more"], []) if env.get("FARRO_TORTURE") else ([],):
        call(Report(name=f"{name}: installed"), [*INSTALLERS[name], *more], env, live=False)


def run_check(name: str, command: Sequence[str], env: dict[str, str]) -> Report:
    report = Report(name=name)
    if (code := call(report, [os.path.join(BIN, command[0]), *command[1:]], env, live=False)) == 0:
        report.passed = 1
    else:
        report.failures.append(f"{' '.join(command)}: exit {code}")
    return report


def judge_branches(*, judged: bool, listed: bool) -> Report:
    """Report the share of branches of src that the measured suites took."""
    report = Report(name="branches")
    print(heading(report.name), flush=True)
    start = time.monotonic()
    files = branches.measured()
    share = branches.share(files)
    if listed:
        print(*branches.missed(files), sep="\n")
    print(f"{share:.1%} of the branches of src were taken; the least in {branches.least(files)}")
    print(f"Not measured: {', '.join(UNMEASURED)}.", flush=True)
    report.seconds = time.monotonic() - start
    if not judged:
        print("Not judged: some suites are not the whole run.", flush=True)
        return report
    report.figures.append({"name": "branches of src taken", "value": round(100 * share, 1), "unit": "%"})
    if share > BRANCHES:
        report.passed = 1
    else:
        report.failures.append(f"{share:.1%} of the branches of src were taken; more than {BRANCHES:.0%} must be")
    return report


def run_suite(
    name: str, args: Sequence[str], env: dict[str, str], *, measured: bool = False, alone: bool = True
) -> Report:
    report = Report(name=name)
    xml = os.path.join(OUT, f"{name}.xml")
    figures = os.path.join(ROOT, OUT, f"{name}.figures.jsonl")
    for stale in (xml, figures):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(stale)
    command = [sys.executable, "-m", "pytest", f"tests/{name}", "-q", f"--junitxml={xml}"]
    command += ["-o", "junit_family=xunit1"]  # the family that names a test's file
    command += ["-n", str(workers() and workers() + (name in WAITING)), "--dist", "worksteal"]
    if not env.get("FARRO_TORTURE") and not env.get("FARRO_LONG"):
        command += ["-o", f"faulthandler_timeout={HUNG_TEST_S}", "-o", "faulthandler_exit_on_timeout=true"]
    if measured:
        env = {**env, "FARRO_BRANCHES": str(branches.FOLDER / name)}
        os.makedirs(env["FARRO_BRANCHES"])
    code = call(report, [*command, *args], {**env, "FARRO_FIGURES": figures}, live=alone)
    read_junit(xml, report)
    report.figures = read_figures(figures)
    # With arguments such as -k a suite may be empty; without them an empty suite is a mistake.
    empty_by_choice = code == NOTHING_COLLECTED and bool(args)
    if code != 0 and not report.failures and not empty_by_choice:
        report.failures.append(f"pytest tests/{name}: exit {code}, see its output above")
    return report


def workers() -> int:
    """Return one process per available core; with a single core, none beside this one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if cores > 1 else 0


def has_tests(name: str) -> bool:
    return any(
        file.startswith("test_") and file.endswith(".py")
        for _, _, files in os.walk(os.path.join("tests", name))
        for file in files
    )


def heading(name: str) -> str:
    return f"\n=== {name} {'=' * (66 - len(name))}"


def call(report: Report, command: Sequence[str], env: dict[str, str], *, live: bool) -> int:
    """Run it and return its exit code. Its output is shown at once or, if others run beside it, when it has ended."""
    start = time.monotonic()
    if live:
        print(heading(report.name), flush=True)
    output = None if live else subprocess.PIPE
    try:
        done = subprocess.run(command, env=env, check=False, stdout=output, stderr=output and subprocess.STDOUT)
        code, said = done.returncode, (done.stdout or b"").decode(errors="replace")
    except OSError as error:
        code, said = 127, f"{error}\n"
    report.seconds = time.monotonic() - start
    print(said if live else f"{heading(report.name)}\n{said}", end="", flush=True)
    return code


def read_junit(path: str, report: Report) -> None:
    """Count test cases, not the suite's attributes: those count a test twice whose teardown fails as well."""
    try:
        cases = ET.parse(path).getroot().iter("testcase")
    except (OSError, ET.ParseError):
        return  # pytest died before it could write; its exit code is reported
    outcomes: dict[tuple[str, str], tuple[str, str]] = {}
    for case in cases:
        where, name = case.get("classname", ""), case.get("name", "")
        outcome = ("passed", "")
        for tag, kind in (("skipped", "skipped"), ("error", "failed"), ("failure", "failed")):
            element = case.find(tag)
            if element is not None:
                why = first_line(element.get("message") or element.text or tag)
                outcome = (kind, f"{case.get('file', where)}::{name}: {why}")
        # pytest writes a second case for a failing teardown: the failure wins.
        if outcomes.get((where, name), ("", ""))[0] != "failed":
            outcomes[where, name] = outcome
    for kind, line in outcomes.values():
        if kind == "passed":
            report.passed += 1
        else:
            (report.failures if kind == "failed" else report.skips).append(line)


def first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= 160 else line[:157] + "..."


def read_figures(path: str) -> list[dict[str, object]]:
    """Return the figures of one suite by name; the last value of a name counts. Parallel tests have no order."""
    figures: dict[str, dict[str, object]] = {}
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as lines:
        for line in lines:
            try:
                figure = json.loads(line)
                figures[str(figure["name"])] = figure
            except (ValueError, KeyError, TypeError):
                print(f"not a figure: {line.rstrip()}")
    return [figures[name] for name in sorted(figures)]


def tell(reports: Sequence[Report], seconds: float) -> None:
    for title, kind in (("Skipped", "skips"), ("Failed", "failures")):
        lines = [f"  {report.name}: {line}" for report in reports for line in getattr(report, kind)]
        if lines:
            print(f"\n{title}", *lines, sep="\n")

    rows = [(r.name, r.seconds, r.passed, len(r.failures), len(r.skips)) for r in reports]
    passed, failed, skipped = (sum(column) for column in zip(*(row[2:] for row in rows), strict=True))
    rows.append(("together", seconds, passed, failed, skipped))
    print(f"\n{'suite':<12}{'seconds':>9}{'passed':>9}{'failed':>9}{'skipped':>9}")
    for row in rows:
        print("{:<12}{:>9.1f}{:>9}{:>9}{:>9}".format(*row))

    figures = [figure for report in reports for figure in report.figures]
    if figures:
        print("\nThe proof, in figures")
        width = max(len(str(figure["name"])) for figure in figures)
        for figure in figures:
            print(f"  {figure['name']!s:<{width}}  {shown(figure.get('value')):>14} {figure.get('unit', '')}".rstrip())

    print(f"\n{passed} passed, {failed} failed, {skipped} skipped", flush=True)


def shown(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
