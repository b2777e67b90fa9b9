"""Measure how soon a job runs again after `kill -9` of the worker that ran it, with the defaults of each system.

Each turn has a job that hangs in its first run and ends in its second. Two workers run; the session of the one that has
the job is killed, and the time counts until the job starts again. A system that has not started it after `LIMIT_S` has
lost it, has marked it as failed, or waits for a timeout of its own that is longer.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from bench import contestants, gear
from bench.contestants import Contestant
from bench.machine import Missing, tell
from bench.places import FARRO, Scratch, environment_python
from bench.results import percentile
from bench.rounds import Broken, Stand, stand, workers

LIMIT_S = 60.0
START_S = 60.0
LEASE_S = 30.0  # of an agent on Redis
FARRO_REDIS = "farro, Redis"
DEFAULTS = "defaults"  # the variant whose driver changes nothing of its library's settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    kills: int = 20  # of farro on files
    redis_kills: int = 6  # each waits for a whole lease before it
    peer_kills: int = 2  # each may take LIMIT_S


QUICK = Size(kills=3, redis_kills=2, peer_kills=1)


def measure(scratch: Scratch, redis: str | None, size: Size) -> dict[str, Any]:
    """Return for each system the seconds of its kills: p50, p99, and how many jobs did not run again in time."""
    found: dict[str, Any] = {}
    systems = [(_farro_up(), size.kills), (_farro_redis(), size.redis_kills)]
    systems += [(peer, size.peer_kills) for peer in _peers()]
    for contestant, kills in systems:
        try:
            took = [_killed(scratch, redis, contestant) for _ in range(kills)]
        except (Broken, Missing, subprocess.SubprocessError) as error:
            tell(f"TROUBLE: recovery of {contestant.name}: {error}")
            found[contestant.name] = {"trouble": str(error)}
            continue
        again = [seconds for seconds in took if seconds is not None]
        found[contestant.name] = {
            "kills": kills,
            "again": len(again),
            "p50_s": percentile(again, 0.5) if again else None,
            "p99_s": percentile(again, 0.99) if again else None,
        }
        tell(f"recovery: {contestant.name}: {found[contestant.name]}")
    return found


def packages() -> list[str]:
    return [peer.package for peer in _peers()]


def _farro_up() -> Contestant:
    """`farro up` as it ships: its supervisor starts the workers, so this starts no other process."""
    made = contestants.farro("power")
    return replace(made, name="farro up, files", workers=lambda home: [])


def _farro_redis() -> Contestant:
    made = contestants.farro_redis("none")
    manager = [FARRO, "manager"]
    return replace(
        made,
        name=FARRO_REDIS,
        workers=lambda home: [[*manager, "--root", home], *made.workers(home)],
    )


def _peers() -> list[Contestant]:
    """The peers on Redis with two workers that are started apart from each other, as on two machines."""
    worker = [environment_python("celery"), "-m", "celery", "-A", "bench.drive_celery", "worker", "-l", "WARNING"]
    return [
        replace(contestants.rq("none", "fork"), name="RQ"),
        replace(
            contestants.celery("none"),
            name="Celery",
            variant=DEFAULTS,
            workers=lambda home: [[*worker, "-c", "1", "-n", f"bench{n}@localhost"] for n in range(2)],
        ),
        _twice("Dramatiq", contestants.dramatiq("none")),
        _twice("taskiq", contestants.taskiq("none")),
        _twice("huey", contestants.huey("redis", "none")),
    ]


def _twice(name: str, peer: Contestant) -> Contestant:
    return replace(peer, name=name, workers=lambda home: peer.workers(home) * 2)


def _killed(scratch: Scratch, redis: str | None, contestant: Contestant) -> float | None:
    """Return the seconds from the kill to the job's second start; None: it did not start again in time."""
    os.environ["BENCH_HANG"] = "1"
    try:
        with stand(contestant, scratch, redis) as place, _running(place):
            place.drive("enqueue", 1)
            _wait_for(place, 1, START_S)
            _, pid = gear.records(place.tally)[0]
            killed_ns = time.monotonic_ns()
            _kill_session(pid)
            if not _started(place, 2, LIMIT_S):
                return None
            return (gear.records(place.tally)[1][0] - killed_ns) / 1e9
    finally:
        del os.environ["BENCH_HANG"]


@contextlib.contextmanager
def _running(place: Stand) -> Iterator[None]:
    if place.contestant.kind != "farro":
        with workers(place):
            _settle(place)
            yield
        return
    up = {"cwd": place.home, "env": place.env, "capture_output": True, "text": True}
    done = subprocess.run([FARRO, "up", "--detach", "--no-web", "--root", place.home], check=False, **up)  # type: ignore[call-overload]
    try:
        if done.returncode != 0:
            raise Broken(f"farro up: exit {done.returncode}: {done.stderr[-300:]}")
        yield
    finally:
        subprocess.run([FARRO, "down", "--root", place.home], check=False, **up)  # type: ignore[call-overload]


def _settle(place: Stand) -> None:
    """Wait until every worker has had time to start: a job that the second cannot take yet would favour nobody.

    A manager of farro on Redis declares no worker dead early before the server has answered it for a whole lease.
    """
    time.sleep(LEASE_S + 4.0 if place.contestant.name == FARRO_REDIS else 4.0)


def _wait_for(place: Stand, jobs: int, limit_s: float) -> None:
    if not _started(place, jobs, limit_s):
        raise Broken(f"the job did not start within {limit_s:.0f} s")


def _started(place: Stand, jobs: int, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while gear.ran(place.tally) < jobs:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _kill_session(pid: int) -> None:
    """Kill every process of the session of a worker: its main process, and those that it forked."""
    session = os.getsid(pid)
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(name)) == session:
                os.kill(int(name), signal.SIGKILL)
