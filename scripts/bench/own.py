"""Measure farro alone: backlogs, idle workers, start-up of commands, calls per job, default slots."""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bench import contestants, gear, machine
from bench.places import FARRO, PYTHON, SCRIPTS, Scratch
from bench.rounds import (
    Broken,
    entries,
    make_farro_root,
    per_second,
    rate,
    stand,
    steady_rate,
    wait_until_done,
    workers,
)

SETTLE_S = 3.0
HOUSE = ("Runner", "SeniorEngineer", "JuniorEngineer", "Architect", "CodeReviewer", "DocWriter")
PLAN = {"plan_id": "bench", "steps": [{"step_number": 1, "tool": "unix", "command": "true"}]}


def default_slots() -> int:
    """Return the default of --workers according to `farro worker --help`; 0 if it names none."""
    said = subprocess.run([FARRO, "worker", "--help"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"--workers.*?\[default:\s*(\d+)", said, re.DOTALL)
    return int(found.group(1)) if found else 0


def calls_per_job(scratch: Scratch, contestant: contestants.Contestant, jobs: int) -> dict[str, Any]:
    """Count mutating calls and syncs per job in a separate run. For farro, take the difference of two sizes, so that
    joining and leaving do not count."""
    if contestant.kind == "floor":
        with stand(contestant, scratch, None) as place:
            return place.drive("count", jobs)
    small, large = jobs // 4, jobs + jobs // 4
    told = []
    for size in (small, large):
        with stand(contestant, scratch, None) as place:
            told.append(place.drive("count", size))
    by_call = {
        op: (number - told[0]["all"].get(op, 0)) / (large - small) for op, number in sorted(told[1]["all"].items())
    }
    syncs = sum(number for op, number in by_call.items() if "sync" in op)
    calls = sum(number for op, number in by_call.items() if "sync" not in op)
    return {"calls": calls, "syncs": syncs, "by_call": {op: n for op, n in by_call.items() if n}}


def enqueue_many(scratch: Scratch, durability: str, jobs: int) -> float:
    with stand(contestants.farro(durability), scratch, None) as place:
        return rate(jobs, place.drive("many", jobs))


def backlog(scratch: Scratch, jobs: int) -> dict[str, float]:
    """Return the drain rates of a queue that has so many jobs when the workers start.

    `steady` is measured between the first and the last tenth; `whole` from the moment when the first worker has joined,
    so that it includes listing the queue, to the last job in completed.
    """
    limit_s = 60 + jobs / 100
    with stand(contestants.farro("process"), scratch, None) as place:
        place.drive("many", jobs, limit_s=limit_s)
        os.sync()
        home = os.path.join(place.home, "agents", "Runner", "in-progress")
        with workers(place) as running:
            deadline = time.monotonic() + 30
            while not entries(home) and time.monotonic() < deadline:
                time.sleep(0.001)
            joined_ns = time.monotonic_ns()
            end_ns = wait_until_done(place, jobs, running, limit_s)
        first_ns = min(start_ns for start_ns, _ in gear.records(place.tally))
        return {
            "steady": steady_rate(place.tally, 0, jobs),
            "whole": per_second(jobs, joined_ns, end_ns),
            "first_job_s": (first_ns - joined_ns) / 1e9,
        }


def idle(scratch: Scratch, seconds: float, jobs: int) -> dict[str, float]:
    """Measure CPU and memory of one `farro worker` that has run some jobs and is now idle."""
    with stand(contestants.farro("process"), scratch, None) as place:
        place.drive("enqueue", jobs)
        with workers(place) as running:
            wait_until_done(place, jobs, running)
            time.sleep(SETTLE_S)
            pids = [process.pid for process in running]
            before = [cpu_ns(pid) for pid in pids]
            time.sleep(seconds)
            used = [(cpu_ns(pid) - start) / 1e6 for pid, start in zip(pids, before, strict=True)]
            memory = [rss_mb(pid) for pid in pids]
    return {"cpu_ms_in_60_s": max(used) * 60 / seconds, "seconds": seconds, "rss_mb": max(memory)}


def house(scratch: Scratch, seconds: float) -> dict[str, float]:
    """Measure CPU and memory of all idle processes of a SPEC-1 root together: a manager, a watchdog, two workers for
    each of six roles, and the web server. A shared page counts once (PSS)."""
    home, _ = scratch.fresh()
    subprocess.run([FARRO, "init", "--root", home], check=True, capture_output=True)
    roles = [word for role in HOUSE for word in ("--role", role)]
    start = [FARRO, "start", "--json", "--workers", "2", "--slots", "1", *roles, "--root", home]
    try:
        done = subprocess.run(start, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Broken(f"farro start: exit {done.returncode}: {done.stderr[-400:]}")
        pids = [item["pid"] for item in json.loads(done.stdout)["components"]]
        time.sleep(SETTLE_S)
        before = sum(map(cpu_ns, pids))
        time.sleep(seconds)
        used_ms = (sum(map(cpu_ns, pids)) - before) / 1e6
        memory = sum(map(pss_mb, pids))
    finally:
        subprocess.run([FARRO, "stop", "--root", home], check=False, capture_output=True)
    return {
        "cpu_percent": used_ms / 10 / seconds,
        "seconds": seconds,
        "pss_mb": memory,
        "processes": len(pids),
    }


def cpu_ns(pid: int) -> int:
    """Return the CPU time of all threads; /proc/<pid>/stat counts in ticks of 10 ms, as much as the whole bar."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total


def pss_mb(pid: int) -> float:
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def rss_mb(pid: int) -> float:
    with open(f"/proc/{pid}/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


# --- plans ---------------------------------------------------------------------------------------------------------


def plans(scratch: Scratch) -> dict[str, Any]:
    """Run each measurement of drive_plans in a separate interpreter and folder."""
    return {what: _plans(scratch, what) for what in ("piped", "grown", "add", "sandbox")}


def _plans(scratch: Scratch, what: str) -> dict[str, float]:
    home, _ = scratch.fresh()
    driver = os.path.join(os.path.dirname(os.path.abspath(__file__)), "drive_plans.py")
    done = subprocess.run([PYTHON, driver, what, home], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Broken(f"plans, {what}: exit {done.returncode}: {done.stderr[-400:]}")
    told: dict[str, float] = json.loads(done.stdout)
    return told


# --- start-up of commands ------------------------------------------------------------------------------------------


def startup(scratch: Scratch, times: int) -> dict[str, dict[str, float]]:
    """Measure the wall time of commands, in turn, in a root of `farro init` (durability power) with 50 queued jobs."""
    home, memory = scratch.fresh()
    subprocess.run([FARRO, "init", "--root", home], check=True, capture_output=True)
    plan = os.path.join(memory, "plan.json")
    many = os.path.join(memory, "plans.ndjson")
    with open(plan, "w", encoding="utf-8") as file:
        json.dump(PLAN, file)
    with open(many, "w", encoding="utf-8") as file:
        file.write((json.dumps(PLAN) + "\n") * 50)
    subprocess.run([FARRO, "enqueue", "--root", home, "--many", many], check=True, capture_output=True)
    found = time_commands(
        {
            "python -c pass": [PYTHON, "-c", "pass"],
            "farro --version": [FARRO, "--version"],
            "farro ls --json": [FARRO, "ls", "--json", "--root", home],
            "farro enqueue": [FARRO, "enqueue", "--root", home, "--plan", plan],
        },
        times,
    )
    found["farro task add"] = _task_add(scratch, times)
    return found


def peers_startup(scratch: Scratch, redis: str, times: int) -> dict[str, dict[str, float]]:
    """Measure the commands by which people of other systems queue a job from a shell, and their shortest command."""
    home, _ = scratch.fresh()
    make_farro_root(home, "process")
    python = contestants.environment_python
    with machine.redis(redis, home, "none") as url:
        env = {**os.environ, "PYTHONPATH": SCRIPTS, "BENCH_REDIS": url, "BENCH_TALLY": os.path.join(home, "tally")}
        celery = [python("celery"), "-m", "celery", "-A", "bench.drive_celery"]
        return time_commands(
            {
                "python -c pass": [PYTHON, "-c", "pass"],
                "farro --version": [FARRO, "--version"],
                "farro enqueue -- true": [FARRO, "enqueue", "--root", home, "--", "true"],
                "rq --version": [python("rq"), "-m", "rq.cli", "--version"],
                "rq enqueue": [python("rq"), "-m", "rq.cli", "enqueue", "--url", url, "bench.gear.work"],
                "celery --version": [*celery[:3], "--version"],
                "celery call": [*celery, "call", "bench.noop", "--args", "[1]"],
                "dramatiq --version": [python("dramatiq"), "-m", "dramatiq", "--version"],
                "taskiq --version": [python("taskiq"), "-m", "taskiq", "--version"],
            },
            times,
            env,
        )


def time_commands(
    commands: Mapping[str, Sequence[str]], times: int, env: Mapping[str, str] | None = None
) -> dict[str, dict[str, float]]:
    """Return name → median seconds and ratio to the first command. They run in turn; the first turn does not count."""
    took: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(times + 1):
        for name, command in commands.items():
            start = time.monotonic()
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                check=False,
                env=env,
            )
            took[name].append(time.monotonic() - start)
            if done.returncode != 0:
                raise Broken(f"{name}: exit {done.returncode}: {done.stderr.decode(errors='replace')[-200:]}")
    medians = {name: statistics.median(seconds[1:]) for name, seconds in took.items()}
    base = medians[next(iter(commands))]
    return {name: {"seconds": median, "ratio": median / base} for name, median in medians.items()}


def _task_add(scratch: Scratch, times: int) -> dict[str, float]:
    """Measure `farro task add` as a step calls it, without a worker that takes the tasks."""
    home, _ = scratch.fresh()
    folder = os.path.join(home, "tasks")
    os.mkdir(folder)
    own = {"FARRO_ROOT": home, "FARRO_JOB": "bench", "FARRO_STEP": "1", "FARRO_CLAIM": "bench", "FARRO_TASKS": folder}
    adding = {"python -c pass": [PYTHON, "-c", "pass"], "farro task add": [FARRO, "task", "add", "--", "true"]}
    both = time_commands(adding, times, env={**os.environ, **own})
    found = both["farro task add"]
    found["beyond_ms"] = (found["seconds"] - both["python -c pass"]["seconds"]) * 1000
    if len(os.listdir(folder)) != times + 1:
        raise Broken(f"farro task add: {times + 1} were added, and {len(os.listdir(folder))} are there")
    return found


def pings(scratch: Scratch, redis: str, times: int) -> dict[str, float]:
    """Measure PING at one connection: the rates of agq and of a Redis server on the same machine, in turn."""
    home, _ = scratch.fresh()
    make_farro_root(home, "process")
    agq, server = [], []
    with machine.agq(home, os.environ) as address, machine.redis(redis, home, "none") as url:
        for _ in range(3):
            agq.append(machine.pings_per_s(int(address.rpartition(":")[2]), times))
            server.append(machine.pings_per_s(int(url.rpartition(":")[2].partition("/")[0]), times))
    mine, theirs = statistics.median(agq), statistics.median(server)
    return {"agq_per_s": mine, "redis_per_s": theirs, "ratio": mine / theirs}
