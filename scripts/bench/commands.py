"""Measure jobs of one command, `true`, and small pipelines, beside the programs that people use for them.

xargs, make and GNU parallel with its log of jobs keep no job; task-spooler keeps a queue in a server's memory. Two
programs run at once everywhere; in each round every contestant has its turn.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bench import contestants
from bench.contestants import Contestant
from bench.machine import Missing, tell
from bench.places import ROOT, Scratch
from bench.rounds import Broken, last_line, log_of, stand

XARGS, PARALLEL = "xargs -P2 -n1", "GNU parallel -j2 --joblog"
MAKE, SPOOLER = "make -j2", "task-spooler, 2 slots"
PIPELINE = "seq 100 | sort -rn | head -n 3"
PIPED_XARGS, PIPED_FARRO = f"xargs -P2 -n1 sh -c '{PIPELINE}'", "farro, process, 2 workers, a plan of its 3 steps"
PROCESSES, SLOTS, POWER = "farro, process, 2 workers", "farro, process, 1 worker, 2 slots", "farro, power, 2 workers"
LIMIT_S = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    jobs: int = 2000
    rounds: int = 5


QUICK = Size(jobs=200, rounds=1)


def measure(scratch: Scratch, size: Size) -> dict[str, Any]:
    """Return the jobs per second of each, and farro's rates as a share of those of xargs in the same round."""
    parallel, spooler = find_program("parallel", "parallel"), find_program("tsp", "task-spooler")
    ways: dict[str, Callable[[], float]] = {
        XARGS: lambda: _piped(["xargs", "-P2", "-n1", "true"], size.jobs),
        PARALLEL: lambda: _logged(parallel, scratch, size.jobs // 4),  # slow: a turn takes seconds
        MAKE: lambda: _made(scratch, size.jobs),
        SPOOLER: lambda: _spooled(spooler, scratch, size.jobs // 10),  # the slowest
        PROCESSES: lambda: _drained(scratch, _farro("process", workers=2, slots=1), size.jobs),
        SLOTS: lambda: _drained(scratch, _farro("process", workers=1, slots=2), size.jobs),
        POWER: lambda: _drained(scratch, _farro("power", workers=2, slots=1), size.jobs),
        PIPED_XARGS: lambda: _piped(["xargs", "-P2", "-n1", "sh", "-c", PIPELINE], size.jobs // 2),
        PIPED_FARRO: lambda: _drained(scratch, _farro("process", workers=2, slots=1), size.jobs // 2, "pipelines"),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(size.rounds):
        tell(f"commands: round {turn + 1}")
        for name, way in ways.items():
            found[name].append(way())
    return {
        "per_s": {name: statistics.median(rates) for name, rates in found.items()},
        "process_of_xargs": _share(found[PROCESSES], found[XARGS]),
        "process_of_parallel": _share(found[PROCESSES], found[PARALLEL]),
        "pipelines_of_xargs": _share(found[PIPED_FARRO], found[PIPED_XARGS]),
        "power_of_xargs": _share(found[POWER], found[XARGS]),
        "slots_of_processes": _share(found[SLOTS], found[PROCESSES]),
    }


def find_program(name: str, package: str) -> str:
    """Return a program of a Debian package, which is installed if it is missing."""
    for attempt in range(2):
        if (found := shutil.which(name)) is not None:
            return found
        if attempt == 0:
            subprocess.run([os.path.join(ROOT, "scripts", "packages.sh"), package], check=False)
    raise Missing(f"no {name} here, and the Debian package {package} could not be installed")


def _share(mine: list[float], others: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(mine, others, strict=True))


def _farro(durability: str, *, workers: int, slots: int) -> Contestant:
    made = contestants.farro(durability, slots)
    return replace(made, workers=lambda home: [[*line, "--drain"] for line in made.workers(home)[:workers]])


def _piped(command: list[str], jobs: int) -> float:
    numbers = "".join(f"{number}\n" for number in range(jobs))
    began_s = time.monotonic()
    subprocess.run(command, input=numbers, text=True, check=True, capture_output=True, timeout=LIMIT_S)
    return jobs / (time.monotonic() - began_s)


def _logged(parallel: str, scratch: Scratch, jobs: int) -> float:
    home, _ = scratch.fresh()
    return _piped([parallel, "--will-cite", "-j2", "--joblog", os.path.join(home, "log"), "true"], jobs)


def _made(scratch: Scratch, jobs: int) -> float:
    home, _ = scratch.fresh()
    with open(os.path.join(home, "Makefile"), "w", encoding="utf-8") as file:
        names = " ".join(f"job{number}" for number in range(jobs))
        file.write(f"all: {names}\n{names}:\n\t@env true\n")  # make itself carries out a bare `true`
    return _piped(["make", "-s", "-j2", "-C", home, "all"], jobs)


def _spooled(spooler: str, scratch: Scratch, jobs: int) -> float:
    """Queue each job by a program of its own, which is how task-spooler is used, and wait for the last one."""
    home, _ = scratch.fresh()
    script = f'"$0" -S 2; i=0; while [ $i -lt {jobs} ]; do "$0" -n true >/dev/null; i=$((i+1)); done; "$0" -w'
    began_s = time.monotonic()
    env = {**os.environ, "TS_SOCKET": os.path.join(home, "socket"), "TS_MAXCONN": "4000"}
    try:
        subprocess.run(["sh", "-c", script, spooler], check=True, capture_output=True, timeout=LIMIT_S, env=env)
        return jobs / (time.monotonic() - began_s)
    finally:
        subprocess.run([spooler, "-K"], check=False, capture_output=True, env=env)


def _drained(scratch: Scratch, contestant: Contestant, jobs: int, kind: str = "commands") -> float:
    """Return the rate between the first and the last tenth of the jobs: not the start of the interpreters."""
    with stand(contestant, scratch, None) as place:
        place.drive(kind, jobs)
        running = []
        for number, command in enumerate(contestant.workers(place.home)):
            with open(log_of(place, number), "wb") as log:
                options = {"env": place.env, "cwd": place.home, "stdin": subprocess.DEVNULL}
                running.append(subprocess.Popen(command, stdout=log, stderr=log, **options))
        codes = [process.wait(timeout=LIMIT_S) for process in running]
        done = os.path.join(place.home, contestant.done)
        ended_s = sorted(os.stat(os.path.join(done, name, "job.json")).st_mtime for name in os.listdir(done))
        if any(codes) or len(ended_s) != jobs:
            with open(log_of(place, 0), encoding="utf-8", errors="replace") as log:
                raise Broken(f"{len(ended_s)} of {jobs} commands, exit codes {codes}: {last_line(log.read())}")
        low, high = jobs // 10, jobs - 1 - jobs // 10
        return (high - low) / (ended_s[high] - ended_s[low])
