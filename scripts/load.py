"""Run the load test of SPEC-1 E: N synthetic jobs over the six roles, with two workers per role.

It checks that a root keeps its service levels under load: P95 of a job at most 5 minutes in every role, at most 2 %
failures, at least 100 jobs a day, and caps that refuse jobs (exit 3). The manager takes every job on; the figures of a
role are those of its own work. Answers come from a file; for one job in twenty the provider is busy at first. Speed is
compared by bench.py.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farro.cli.main import run as farro
from farro.roles.names import AGENTS

P95_S = 300.0
FAILURES = 0.02
PER_DAY = 100.0
REFUSED = 3  # farro's exit code
MANAGER, CLERK = "Manager", "Clerk"  # the manager's jobs are tasks of one step, for a role that has no other jobs
ANSWERS: dict[str, Any] = {
    "Architect": {"analysis": "It is small.", "prompts": []},
    "SeniorEngineer": {"summary": "Done."},
    "JuniorEngineer": {"summary": "Done."},
    "CodeReviewer": {"verdict": "approve", "findings": []},
    "DocWriter": {"summary": "Written.", "documents": []},
}


@dataclass(kw_only=True)
class Load:
    """The result of one run."""

    jobs: int
    cap: int
    refused: int = 0  # enqueues that a cap refused; each was tried again later
    deepest: int = 0  # the most that any role had queued or in progress
    seconds: float = 0.0
    roles: list[dict[str, Any]] = field(default_factory=list)  # farro stats
    unfinished: int = 0

    def misses(self) -> list[str]:
        """Return every bar that was missed, in words."""
        found = []
        for line in self.roles:
            p95 = line["latency_p95_s"]
            if p95 is None or p95 > P95_S:
                found.append(
                    f"{line['role']}: P95 is {'unknown' if p95 is None else f'{p95:g} s'}, at most {P95_S:g} s"
                )
            if (line["failure_rate"] or 0.0) > FAILURES:
                found.append(f"{line['role']}: {line['failure_rate']:.1%} failed, at most {FAILURES:.0%}")
        if self.unfinished:
            found.append(f"{self.unfinished} jobs have not ended")
        if self.per_day < PER_DAY:
            found.append(f"{self.per_day:.0f} jobs a day, at least {PER_DAY:.0f}")
        if not self.refused:
            found.append("no enqueue was refused: backpressure was not observed")
        if self.deepest > self.cap:
            found.append(f"a role had {self.deepest} jobs, and its cap is {self.cap}")
        return found

    @property
    def per_day(self) -> float:
        return (self.jobs - self.unfinished) * 86400 / self.seconds if self.seconds else 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=300, help="how many, shared by the roles (300)")
    parser.add_argument("--slots", type=int, default=2, help="jobs at once in each role (2)")
    parser.add_argument("--patience", type=float, default=600.0, metavar="S", help="give up after so long (600)")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args(arguments)
    if options.jobs < 2 * len(AGENTS):
        parser.error(f"--jobs: at least {2 * len(AGENTS)}, two for each role: else no cap can refuse one")
    root = tempfile.mkdtemp(prefix="farro-load-")
    try:
        load = measure(root, options.jobs, options.slots, options.patience)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    misses = load.misses()
    if options.json:
        told = {name: getattr(load, name) for name in ("jobs", "cap", "refused", "deepest", "unfinished", "roles")}
        print(json.dumps({**told, "seconds": round(load.seconds, 3), "per_day": round(load.per_day), "misses": misses}))
    else:
        tell(load, misses)
    return 1 if misses else 0


def measure(root: str, jobs: int, slots: int, patience_s: float) -> Load:
    """Fill every role to its cap before any worker starts, so that caps refuse jobs; then start workers and enqueue the
    rest."""
    each = jobs // len(AGENTS)
    load = Load(jobs=each * len(AGENTS), cap=max(1, each // 2))
    prepare(root, load.cap)
    waiting = [(role, number) for number in range(each) for role in AGENTS]
    start = time.monotonic()
    waiting = enqueue(root, waiting, load)  # no worker runs: each role accepts its cap and refuses the rest
    with workers(root, slots):
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            waiting = enqueue(root, waiting, load, one_refusal_a_role=True)
            if not waiting and not depths(root, load):
                break
            time.sleep(0.05)
    load.seconds = time.monotonic() - start
    lines = [json.loads(line) for line in answer(root, "stats", "--json", "--since", "1d").splitlines()]
    load.roles = [line for line in lines if line["role"] in AGENTS]
    whole = lines[-1]
    load.unfinished = load.jobs - whole["succeeded"] - whole["failed"] - whole["killed"]
    return load


def prepare(root: str, cap: int) -> None:
    Path(root, "src").mkdir()
    busy = {"match": "Meet a busy provider", "times": 1, "error": {"kind": "limited", "retry_after_s": 0.05}}
    answers = [{"role": role, "answer": ANSWERS.get(role, "Run.")} for role in (*AGENTS, CLERK)]
    Path(root, "answers.json").write_text(json.dumps({"answers": [busy, *answers]}))
    config = {
        "version": "1.0.0",
        "providers": {"file": {"kind": "scripted", "file": "answers.json"}},
        "security": {"max_job_bytes": 26214400, "payload_allowlist": [".md"]},
        "capacity": {"role_cap": cap, "total_cap": cap * len(AGENTS), "roles": {CLERK: None}},
        "roles": {CLERK: {"description": "Does what the manager hands on."}},
        "watchdog": {"every_s": 1},
    }
    Path(root, "agents-config.json").write_text(json.dumps(config))
    answer(root, "init")
    step = {"role": CLERK, "rubric": "Run it.", "allowed_paths": ["src/"], "success": "It is run."}
    Path(root, "tasks/errand.json").write_text(json.dumps({"id": "errand", "title": "An errand", "workflow": [step]}))
    for role in AGENTS:
        for name, rubric in (("plain", "Do it."), ("busy", "Meet a busy provider, and do it.")):
            prompt = {
                "role": role,
                "rubric": rubric,
                "allowed_paths": ["src/"],
                "success": "It is done.",
                "routing": {"mode": "manager"},
                "inputs": {"task_id": "errand"} if role == MANAGER else {},
            }
            Path(root, f"{role}.{name}.json").write_text(json.dumps(prompt))


def enqueue(
    root: str, wanted: list[tuple[str, int]], load: Load, *, one_refusal_a_role: bool = False
) -> list[tuple[str, int]]:
    """Enqueue as many as the caps allow; return the rest. A refused client tries again later."""
    rest, full = [], set()
    for role, number in wanted:
        if role in full:
            rest.append((role, number))
            continue
        file = f"{root}/{role}.{'busy' if number % 20 == 1 else 'plain'}.json"
        code, said = call(root, "enqueue", "--prompt-json", file, "--id", f"{role}-{number}")
        if code == REFUSED:
            load.refused += 1
            rest.append((role, number))
            if one_refusal_a_role:
                full.add(role)
        elif code != 0:
            raise SystemExit(f"farro enqueue ended with {code}: {said}")
    depths(root, load)
    return rest


def depths(root: str, load: Load) -> int:
    """Return the number of jobs queued or in progress, and record the deepest role."""
    from farro.app import App
    from farro.config.reader import load as read

    store = App().open_store(root, read(root), brief=True)
    try:
        found = [store.load(role) for role in AGENTS]
        others = store.load(CLERK)
    finally:
        store.close()
    # Jobs that return to the manager were admitted before: caps do not apply to routing.
    load.deepest = max([load.deepest, *(count for role, count in zip(AGENTS, found, strict=True) if role != MANAGER)])
    return sum(found) + others


@contextlib.contextmanager
def workers(root: str, slots: int) -> Iterator[None]:
    """Run the manager, and a worker process for every other role; end them in any case."""
    commands = {MANAGER: ["manager"]}
    commands |= {
        role: ["worker", "--role", role, "--slots", str(slots)] for role in (*AGENTS, CLERK) if role != MANAGER
    }
    started: list[subprocess.Popen[bytes]] = []
    try:
        for role, command in commands.items():
            argv = [sys.executable, "-P", "-m", "farro", *command, "--root", root]
            with open(f"{root}/logs/{role}.log", "wb") as log:
                started.append(subprocess.Popen(argv, cwd=root, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        yield
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in started:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def answer(root: str, *words: str) -> str:
    code, said = call(root, *words)
    if code != 0:
        raise SystemExit(f"farro {' '.join(words)} ended with {code}: {said}")
    return said


def call(root: str, *words: str) -> tuple[int, str]:
    """Run the program in this process; return its exit code and output."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = farro([*words, "--root", root])
    return code, said.getvalue()


def tell(load: Load, misses: Sequence[str]) -> None:
    print(f"{load.jobs} jobs over {len(AGENTS)} roles in {load.seconds:.1f} s: {load.per_day:,.0f} a day")
    print(f"\n{'role':<16}{'ok':>6}{'failed':>8}{'p50 s':>9}{'p95 s':>9}{'failed %':>10}")
    for line in load.roles:
        p50, p95 = (
            f"{line[name]:.2f}" if line[name] is not None else "-" for name in ("latency_p50_s", "latency_p95_s")
        )
        rate = f"{line['failure_rate'] or 0:.1%}"
        print(f"{line['role']:<16}{line['succeeded']:>6}{line['failed']:>8}{p50:>9}{p95:>9}{rate:>10}")
    print(f"\nbackpressure: {load.refused} enqueues refused (exit 3) at a cap of {load.cap} a role", end="; ")
    print(f"the deepest had {load.deepest}")
    print(f"bars: P95 ≤ {P95_S:g} s, failures ≤ {FAILURES:.0%}, ≥ {PER_DAY:g} jobs a day, caps kept")
    for miss in misses:
        print(f"MISSED {miss}")
    if not misses:
        print("all kept")


if __name__ == "__main__":
    os.environ.pop("FARRO_ROOT", None)
    raise SystemExit(main())
