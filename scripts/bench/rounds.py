"""Run one contestant's turn in a round: enqueue, drain, pickups, end to end.

1. A producer enqueues all jobs, one by one; no worker runs: the enqueue rate.
2. Two workers start and drain them. The rate is taken between the first and the last tenth of the jobs, so that neither
   their start nor the time when only one still works counts.
3. The workers are idle: one job at a time, from the start of the enqueue call to the start of the job.
4. The same workers, idle and warm, get as many jobs again from one producer: from the first call to the last job done.
   For farro and the floor that is the last folder in completed; for peers the start of the last job, which is kinder.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench import gear, machine
from bench.contestants import Contestant
from bench.places import FARRO, SCRIPTS, Scratch

PHASE_LIMIT_S = 300.0
LONGEST_TICK_NS = 10_000_000


class Broken(Exception):
    """Report that a contestant did not do its jobs; the message says what happened."""


@dataclass(kw_only=True)
class Sample:
    """The measurements of one turn."""

    enqueue_per_s: float
    drain_per_s: float
    end_to_end_per_s: float
    pickup_ns: list[int] = field(default_factory=list)


@dataclass(kw_only=True)
class Stand:
    """The folders and the environment of one contestant."""

    contestant: Contestant
    home: str
    memory: str
    env: Mapping[str, str]

    @property
    def tally(self) -> str:
        return self.env["BENCH_TALLY"]

    def drive(self, *arguments: object, limit_s: float = PHASE_LIMIT_S) -> dict[str, Any]:
        """Run the producer and return its answer."""
        command = [self.contestant.python, "-m", self.contestant.module, *map(str, arguments)]
        try:
            done = subprocess.run(
                command, env=self.env, cwd=self.home, capture_output=True, text=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Broken(f"{arguments[0]} took longer than {limit_s:.0f} s") from error
        if done.returncode != 0:
            raise Broken(f"{arguments[0]}: exit {done.returncode}: {last_line(done.stderr)}")
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer


@contextlib.contextmanager
def stand(contestant: Contestant, scratch: Scratch, redis: str | None) -> Iterator[Stand]:
    """Make a new home for a contestant, with a Redis server if it needs one."""
    home, memory = scratch.fresh()
    env = {
        **os.environ,
        "PYTHONPATH": SCRIPTS,
        "BENCH_HOME": home,
        "BENCH_TALLY": os.path.join(memory, "tally"),
        "BENCH_VARIANT": contestant.variant,
    }
    for name in ("MAKEFLAGS", "MAKELEVEL", "FARRO_ROOT", "FARRO_STORE", "AGQ_KEY"):
        env.pop(name, None)
    with contextlib.ExitStack() as running:
        if contestant.redis:
            if redis is None:
                raise machine.Missing("no Redis server")
            env["BENCH_REDIS"] = running.enter_context(machine.redis(redis, home, contestant.redis))
        if contestant.kind in ("farro", "shared", "agq"):
            make_farro_root(home, contestant.durability, env.get("BENCH_REDIS", "files"))
        if contestant.kind == "agq":
            env["BENCH_AGQ"] = running.enter_context(machine.agq(home, env))
            env["FARRO_STORE"] = f"agq://{env['BENCH_AGQ']}"
        os.sync()  # write the previous contestant's dirty pages first
        yield Stand(contestant=contestant, home=home, memory=memory, env=env)


def make_farro_root(home: str, durability: str, store: str = "files") -> None:
    """Make a root with `farro init`, and configure the no-op tool, the durability and the store."""
    subprocess.run([FARRO, "init", "--root", home], check=True, capture_output=True)
    path = os.path.join(home, "agents-config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config["durability"] = durability
    if store != "files":
        config["store"] = store
    config["tools"] = {"noop": {"python": "bench.gear:tool"}}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)


def take_turn(place: Stand, jobs: int, pickups: int) -> Sample:
    jobs = max(50, jobs // place.contestant.slower)
    if place.contestant.together:
        told = place.drive("together", jobs, pickups)
        sample = Sample(
            enqueue_per_s=rate(jobs, told["enqueue"]),
            drain_per_s=steady_rate(place.tally, 0, jobs),
            end_to_end_per_s=per_second(jobs, told["end_to_end"]["start_ns"], last_start_ns(place.tally)),
            pickup_ns=told["pickup"]["pickup_ns"],
        )
        check_count(place, 2 * jobs + pickups + gear.WARM_UP)
        return sample
    enqueued = place.drive("enqueue", jobs)
    with workers(place) as running:
        wait_until_done(place, jobs, running)
        drained = steady_rate(place.tally, 0, jobs)
        picked = place.drive("pickup", pickups)
        before = gear.ran(place.tally)
        again = place.drive("enqueue", jobs)
        end_ns = wait_until_done(place, before + jobs, running)
    check_count(place, before + jobs)
    return Sample(
        enqueue_per_s=rate(jobs, enqueued),
        drain_per_s=drained,
        end_to_end_per_s=per_second(jobs, again["start_ns"], end_ns),
        pickup_ns=picked["pickup_ns"],
    )


@contextlib.contextmanager
def workers(place: Stand) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run the contestant's worker processes, and end them afterwards with all that they started."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(place.contestant.workers(place.home)):
            with open(log_of(place, number), "wb") as log:
                running.append(
                    subprocess.Popen(
                        command,
                        env=place.env,
                        cwd=place.home,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        yield running
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=3)  # everything is measured; some workers still wait in their last poll
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the session that we made for it
            process.wait()


def log_of(place: Stand, number: int) -> str:
    return os.path.join(place.memory, f"worker-{number}.log")


def wait_until_done(
    place: Stand, jobs: int, running: list[subprocess.Popen[bytes]], limit_s: float = PHASE_LIMIT_S
) -> int:
    """Return when so many jobs were done in all (CLOCK_MONOTONIC, ns). Broken: they were not, or a worker ended."""
    deadline = time.monotonic() + limit_s
    done = os.path.join(place.home, place.contestant.done) if place.contestant.done else None
    while gear.ran(place.tally) < jobs or (done is not None and entries(done) < jobs):
        ended = [number for number, process in enumerate(running) if process.poll() is not None]
        if ended or time.monotonic() > deadline:
            with open(log_of(place, ended[0] if ended else 0), encoding="utf-8", errors="replace") as log:
                said = last_line(log.read())
            why = "a worker ended" if ended else f"not done after {limit_s:.0f} s"
            raise Broken(f"{why} at {gear.ran(place.tally)} of {jobs} jobs: {said}")
        time.sleep(0.003)
    return last_entry_ns(done) if done is not None else last_start_ns(place.tally)


def entries(folder: str) -> int:
    with os.scandir(folder) as found:
        return sum(1 for _ in found)


def last_entry_ns(folder: str) -> int:
    """Return when the last entry came into a folder (CLOCK_MONOTONIC, ns), from the folder's modification time, because
    this runs only after the producer has ended. That time is as coarse as a kernel tick; the longest tick is added."""
    now_ns = time.monotonic_ns()
    return min(now_ns, os.stat(folder).st_mtime_ns + LONGEST_TICK_NS - time.time_ns() + now_ns)


def check_count(place: Stand, jobs: int) -> None:
    """Check that no job ran twice: no worker was killed, so more runs than jobs mean a broken measurement."""
    if (found := gear.ran(place.tally)) != jobs:
        raise Broken(f"{found} runs of {jobs} jobs")


def last_start_ns(tally: str) -> int:
    return max(start_ns for start_ns, _ in gear.records(tally))


def steady_rate(tally: str, first: int, jobs: int) -> float:
    """Return jobs per second between the first and the last tenth."""
    starts = sorted(start_ns for start_ns, _ in gear.records(tally, first)[:jobs])
    low, high = jobs // 10, jobs - 1 - jobs // 10
    return per_second(high - low, starts[low], starts[high])


def rate(jobs: int, told: Mapping[str, int]) -> float:
    return per_second(jobs, told["start_ns"], told["end_ns"])


def per_second(jobs: int, start_ns: int, end_ns: int) -> float:
    return jobs * 1e9 / max(end_ns - start_ns, 1)


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
