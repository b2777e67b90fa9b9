"""Measure the cost of plans: piped steps against subprocess calls, a plan that grows to a thousand steps, adding a
step, and the sandbox.

own.py runs it in farro's own environment. The steps are real programs, on the disk that is measured.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import farro
from farro.execution import PlanRun, Stop, Tools, run_plan
from farro.execution.runner import Work
from farro.host import processes
from farro.host.clock import SystemClock
from farro.host.process_tree import adopt_orphans
from farro.host.processes import Launch
from farro.plans.loading import load_data
from farro.plans.model import DEFAULT_TIMEOUT_S
from farro.sandbox.confinement import Confinement
from farro.sandbox.levels import Sandbox

PIPED = 20
FIRST, GROWN, PARALLEL, STEP_S = 100, 1000, 2, 0.05


def main() -> None:
    what, home = sys.argv[1], sys.argv[2]
    told = {"piped": piped, "grown": grown, "add": add, "sandbox": sandbox}[what](home)
    print(json.dumps(told))


def piped(home: str) -> dict[str, float]:
    """Run twenty piped steps as a plan and with subprocess.run, in turn."""
    adopt_orphans()  # as a worker does
    steps = [{"step_number": 1, "command": "seq", "args": ["200"]}]
    steps += [{"step_number": n, "command": "cat", "input_from_step": n - 1} for n in range(2, PIPED + 1)]
    plan = load_data({"steps": steps}, "bench")
    clock = SystemClock()
    took: dict[str, list[float]] = {"farro": [], "plain": []}
    for turn in range(12):
        folder = os.path.join(home, str(turn))
        os.mkdir(folder)
        began_s = time.perf_counter()
        work = Work(
            job_id="bench",
            prompt={},
            folder=folder,
            marker=f"bench-{os.getpid()}-{turn}",
            env=dict(os.environ),
            cwd=home,
            root=home,
            step_timeout_s=DEFAULT_TIMEOUT_S,
        )
        run = PlanRun(work=work, tools=Tools(), clock=clock, tick=lambda: None, stop=Stop(clock))
        result = run_plan(plan, run)
        took["farro"].append(time.perf_counter() - began_s)
        assert result.success
        began_s = time.perf_counter()
        said = subprocess.run(["seq", "200"], capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout
        for _ in range(PIPED - 1):
            said = subprocess.run(["cat"], input=said, capture_output=True, check=True).stdout
        took["plain"].append(time.perf_counter() - began_s)
        assert said == result.step_results[-1].stdout.encode()
    farro_s, plain_s = (statistics.median(took[name][1:]) for name in ("farro", "plain"))
    return {"farro_s": farro_s, "plain_s": plain_s, "ratio": farro_s / plain_s}


def grown(home: str) -> dict[str, Any]:
    """Run a hundred steps of 50 ms that grow to a thousand; return the share of wall time spent in steps."""
    root = os.path.join(home, "root")
    program = os.path.join(os.path.dirname(sys.executable), "farro")
    subprocess.run([program, "init", "--root", root], check=True, capture_output=True)
    each = (GROWN - FIRST) // (FIRST // 2)
    adding = f"import time, farro; [farro.add_task('sleep', ['{STEP_S}']) for _ in range({each})]; time.sleep({STEP_S})"
    steps = [
        {"id": f"grows-{n}", "command": sys.executable, "args": ["-c", adding]}
        if n % 2
        else {"id": f"sleeps-{n}", "command": "sleep", "args": [str(STEP_S)]}
        for n in range(FIRST)
    ]
    plan = os.path.join(home, "plan.json")
    with open(plan, "w", encoding="utf-8") as file:
        json.dump({"id": "grown", "parallel": PARALLEL, "steps": steps}, file)
    subprocess.run([program, "enqueue", "--root", root, "--plan", plan], check=True, capture_output=True)
    subprocess.run([program, "worker", "--root", root, "--drain"], check=True, capture_output=True)
    attempt = os.path.join(root, "agents/Runner/completed/succeeded/grown/attempts/0001")
    with open(os.path.join(attempt, "result.json"), encoding="utf-8") as file:
        result = json.load(file)
    assert len(result["step_results"]) == GROWN, len(result["step_results"])
    in_steps_s = sum(step["duration_s"] for step in result["step_results"]) / PARALLEL
    return {"wall_s": result["duration_s"], "share": in_steps_s / result["duration_s"]}


def add(home: str) -> dict[str, float]:
    os.environ.update(FARRO_TASKS=home, FARRO_STEP="1")
    took = []
    for _ in range(200):
        began_s = time.perf_counter()
        farro.add_task("true")
        took.append(time.perf_counter() - began_s)
    return {"ms": statistics.median(took) * 1000}


def sandbox(home: str) -> dict[str, float]:
    """Start `true` and wait for it: without a sandbox and on each level, in turn."""
    adopt_orphans()
    os.mkdir(os.path.join(home, "allowed"))
    os.mkdir(os.path.join(home, "tmp"))
    confinement = Confinement(writable=(os.path.realpath(f"{home}/allowed"),), tmp=os.path.realpath(f"{home}/tmp"))
    levels = [level for level in ("A", "B") if Sandbox.available(level).level == level]
    took: dict[str, list[float]] = {name: [] for name in ("plain", *levels)}
    for turn in range(101):
        for name, each in took.items():
            out = os.path.join(home, f"{turn}-{name}")
            files = {"stdin": None, "stdout": f"{out}.out", "stderr": f"{out}.err"}
            launch = Launch(argv=["true"], executable="/bin/true", cwd=home, env={}, **files)
            began_s = time.perf_counter()
            if name == "plain":
                process = processes.start(launch)
            else:
                process = Sandbox.available(name).start(launch, confinement=confinement)
            ended = process.wait(30)
            each.append(time.perf_counter() - began_s)
            assert ended is not None
            assert ended.code == 0
    ms = {name: statistics.median(each[1:]) * 1000 for name, each in took.items()}
    return {f"{name}_ms": ms[name] for name in ms} | {f"{name}_over_ms": ms[name] - ms["plain"] for name in levels}


if __name__ == "__main__":
    main()
