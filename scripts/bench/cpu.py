"""Measure CPU time per job and process: it stays comparable on a shared machine, where wall times mislead.

python -m bench.cpu NAME[+NAME…] [JOBS [ROUNDS]]    contestants whose names have one of these words, in turn

For each: the CPU time of producer, workers and server per job, in microseconds, without their start-up (measured in a
first round of few jobs); then jobs per second, end to end. There is no bar here; `make bench` has them.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

from bench import contestants, machine, own, places, rounds

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Spent:
    """Microseconds of CPU per job, and jobs per second."""

    producer: float
    workers: float
    server: float
    per_s: float


def used_s(pids: set[int]) -> float:
    """Return user and system time of these processes and of the ended children that they waited for."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15]))
    return total / _TICK


def below(pid: int) -> set[int]:
    """Return a process and all that it started."""
    found, todo = set(), [pid]
    while todo:
        each = todo.pop()
        found.add(each)
        for task in os.listdir(f"/proc/{each}/task"):
            with open(f"/proc/{each}/task/{task}/children", encoding="ascii") as file:
                todo += map(int, file.read().split())
    return found


def produced_s(place: rounds.Stand, jobs: int) -> tuple[float, int]:
    """Return the CPU time of the producer, and when it began."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = place.drive("enqueue", jobs)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, told["start_ns"]


def measure(contestant: contestants.Contestant, scratch: places.Scratch, redis: str, jobs: int) -> Spent:
    few = 20
    with rounds.stand(contestant, scratch, redis) as place:
        servers = below(os.getpid()) - {os.getpid()}
        with rounds.workers(place) as running:
            started_s, _ = produced_s(place, few)
            rounds.wait_until_done(place, few, running)
            time.sleep(0.3)
            workers = set().union(*(below(process.pid) for process in running))
            before = used_s(workers), used_s(servers)
            producer_s, start_ns = produced_s(place, jobs)
            end_ns = rounds.wait_until_done(place, few + jobs, running)
            time.sleep(0.2)
            after = used_s(workers), used_s(servers)
        rounds.check_count(place, few + jobs)
    share = 1e6 / jobs
    return Spent(
        producer=(producer_s - started_s) * share,
        workers=(after[0] - before[0]) * share,
        server=(after[1] - before[1]) * share,
        per_s=rounds.per_second(jobs, start_ns, end_ns),
    )


def main() -> None:
    words = sys.argv[1].split("+")
    jobs = int(sys.argv[2]) if len(sys.argv) > 2 else 3000
    times = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    wanted = [c for c in contestants.all_of_them(own.default_slots()) if any(word in c.name for word in words)]
    scratch, redis = places.Scratch(), machine.find_redis()
    found: dict[str, list[Spent]] = {c.name: [] for c in wanted}
    for _ in range(times):
        for contestant in wanted:
            found[contestant.name].append(measure(contestant, scratch, redis, jobs))
    for name, spent in found.items():
        middle = {part: statistics.median(getattr(one, part) for one in spent) for part in Spent.__slots__}
        total = middle["producer"] + middle["workers"] + middle["server"]
        parts = "  ".join(f"{part} {middle[part]:5.0f}" for part in ("producer", "workers", "server"))
        print(f"{name:24} {parts}  together {total:5.0f} us a job; {middle['per_s']:6.0f} jobs/s", flush=True)
    subprocess.run(["rm", "-rf", scratch.folder, scratch.memory], check=False)


if __name__ == "__main__":
    main()
