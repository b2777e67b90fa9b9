"""Describe the contestants: how each is started, and what it promises.

There are two classes: in `process` jobs survive a killed process, in `power` a power cut. A peer is in the class that
its settings give; the bars say which of them farro must be ahead of.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from bench.places import PYTHON, environment_python

WORKERS = 2

# The packages that pip installs into each environment; the drivers use the interfaces of these releases.
ENVIRONMENTS = {
    "huey": ["huey~=3.5", "redis"],
    "rq": ["rq~=2.12"],
    "celery": ["celery[redis]~=5.7"],
    "dramatiq": ["dramatiq[redis]~=2.2"],
    "taskiq": ["taskiq~=0.13", "taskiq-redis~=1.2"],
    "arq": ["arq~=0.26"],  # a separate environment: it needs an older redis-py than the others
    "persist-queue": ["persist-queue~=1.1"],
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Contestant:
    name: str
    package: str  # the environment; "" is farro's own
    module: str  # its driver
    kind: str  # floor, farro, shared (farro on Redis), agq (farro behind agq), file, sqlite or redis
    durability: str  # process or power: the class in which it is compared
    acknowledges: bool  # a job whose worker is killed in the middle comes back
    promise: str  # the durability it gives, in words
    workers: Callable[[str], list[list[str]]]  # home → command lines
    variant: str = ""
    redis: str = ""  # "", none or always
    together: bool = False  # producer and workers are threads of one process
    done: str = ""  # the folder of finished jobs, relative to home; "" if only the tally shows them
    as_shipped: bool = True  # a peer tuned away from its defaults is shown, but no bar
    slower: int = 1  # the jobs of a round are divided by this, so that a turn takes seconds, not minutes

    @property
    def python(self) -> str:
        return environment_python(self.package) if self.package else PYTHON

    @property
    def main(self) -> bool:
        """Return whether it is in the main table; farro with other numbers of slots has a separate table."""
        return self.kind != "farro" or not self.variant.endswith("slots")


def floor(durability: str) -> Contestant:
    return Contestant(
        name=f"floor, {durability}",
        package="",
        module="bench.floor",
        kind="floor",
        durability=durability,
        acknowledges=True,
        promise="the calls of the protocol and nothing else" + (", with its syncs" if durability == "power" else ""),
        workers=lambda home: [[PYTHON, "-m", "bench.floor", "worker"]] * WORKERS,
        variant=durability,
        done="completed",
    )


def farro(durability: str, slots: int | None = None) -> Contestant:
    """Return farro as it ships (`slots` None), or with another number of slots in each worker process."""
    command = [os.path.join(os.path.dirname(PYTHON), "farro"), "worker"]
    more = [] if slots is None else ["--workers", str(slots)]
    survives = "a killed process" if durability == "process" else "a power cut"
    return Contestant(
        name=f"farro, {durability}" + ("" if slots is None else f", {slots} slots"),
        package="",
        module="bench.drive_farro",
        kind="farro",
        durability=durability,
        acknowledges=True,
        promise=f"every acknowledged enqueue and commit survives {survives}",
        workers=lambda home: [[*command, "--root", home, *more]] * WORKERS,
        variant=durability + ("" if slots is None else f" {slots} slots"),
        done="agents/Runner/completed/succeeded",
    )


def farro_redis(storage: str) -> Contestant:
    """The Redis store, beside peers on the same server."""
    durability, promise = _redis(storage)
    command = [os.path.join(os.path.dirname(PYTHON), "farro"), "worker"]
    return Contestant(
        name=f"farro, Redis {storage}",
        package="",
        module="bench.drive_farro",
        kind="shared",
        durability=durability,
        acknowledges=True,
        promise=promise + "; a lost worker's job is recovered when its lease is over, and its late result refused",
        workers=lambda home: [[*command, "--root", home]] * WORKERS,
        variant=durability,
        redis=storage,
    )


def farro_agq(durability: str, *, local: bool = False) -> Contestant:
    """agq in front of the file store: one more process, and clients that know nothing of farro. `local`: only producers
    are such clients, and plain workers beside agq take the jobs from the root."""
    programs = os.path.dirname(PYTHON)
    agw = [os.path.join(programs, "agw")]
    beside = [os.path.join(programs, "farro"), "worker", "--store", "files"]
    survives = "a killed process" if durability == "process" else "a power cut"
    return Contestant(
        name=f"farro, agq, {durability}" + (", local workers" if local else ""),
        package="",
        module="bench.drive_agq",
        kind="agq",
        durability=durability,
        acknowledges=True,
        promise=f"files behind agq: every acknowledged push and result survives {survives}",
        workers=lambda home: [[*(beside if local else agw), "--root", home]] * WORKERS,
        variant=durability,
        done="agents/Runner/completed/succeeded",
    )


def _redis(storage: str) -> tuple[str, str]:
    if storage == "always":
        return "power", "Redis, appendfsync always: every reply waits for the disk"
    return "process", "Redis without persistence: gone with the server"


def huey(variant: str, storage: str = "") -> Contestant:
    kind = variant.split("-", maxsplit=1)[0]
    promises = {
        "file": ("process", "a file a task, no sync; a lock around every operation"),
        "sqlite": ("power", "SQLite, WAL, synchronous=FULL (SQLite's default, as huey ships)"),
        "sqlite-nosync": (
            "process",
            "SQLite, WAL, synchronous=OFF (not as huey ships: shown, but no bar)",
        ),
        "redis": _redis(storage),
    }
    durability, promise = promises[variant]
    options = ["-w", str(WORKERS), "-k", "process", "-q", "-g", "TERM"]
    names = {"sqlite": "huey, SQLite", "sqlite-nosync": "huey, SQLite, no sync", "file": "huey, files"}
    return Contestant(
        name=names.get(variant, f"huey, Redis {storage}"),
        package="huey",
        module="bench.drive_huey",
        kind=kind,
        durability=durability,
        acknowledges=False,
        promise=promise + "; a task is taken before it runs and lost with its worker",
        workers=lambda home: [
            [environment_python("huey"), "-m", "huey.bin.huey_consumer", "bench.drive_huey.huey", *options]
        ],
        variant=variant,
        redis=storage,
        as_shipped=variant != "sqlite-nosync",
    )


def rq(storage: str, variant: str = "") -> Contestant:
    durability, promise = _redis(storage)
    return Contestant(
        name=f"RQ{', forking' if variant else ''}, Redis {storage}",
        package="rq",
        module="bench.drive_rq",
        kind="redis",
        durability=durability,
        acknowledges=True,
        promise=promise + "; a lost worker's job goes to the failed registry",
        workers=lambda home: [[environment_python("rq"), "-m", "bench.drive_rq", "worker"]] * WORKERS,
        variant=variant,
        redis=storage,
        slower=5 if variant else 1,
    )


def celery(storage: str) -> Contestant:
    durability, promise = _redis(storage)
    command = [environment_python("celery"), "-m", "celery", "-A", "bench.drive_celery", "worker", "-l", "WARNING"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return Contestant(
        name=f"Celery, Redis {storage}",
        package="celery",
        module="bench.drive_celery",
        kind="redis",
        durability=durability,
        acknowledges=True,
        promise=promise + "; acks late, a lost worker's task comes back after the visibility timeout",
        workers=lambda home: [[*command, "-P", "solo", "-n", f"bench{n}@localhost"] for n in range(WORKERS)],
        redis=storage,
    )


def dramatiq(storage: str) -> Contestant:
    durability, promise = _redis(storage)
    options = ["--processes", str(WORKERS), "--threads", "8"]
    return Contestant(
        name=f"Dramatiq, Redis {storage}",
        package="dramatiq",
        module="bench.drive_dramatiq",
        kind="redis",
        durability=durability,
        acknowledges=True,
        promise=promise + "; acked after the run, a lost worker's messages come back",
        workers=lambda home: [[environment_python("dramatiq"), "-m", "dramatiq", "bench.drive_dramatiq", *options]],
        redis=storage,
    )


def taskiq(storage: str) -> Contestant:
    durability, promise = _redis(storage)
    options = ["--workers", str(WORKERS), "--log-level", "WARNING"]
    return Contestant(
        name=f"taskiq, Redis {storage}",
        package="taskiq",
        module="bench.drive_taskiq",
        kind="redis",
        durability=durability,
        acknowledges=True,
        promise=promise + "; streams, acked after the run, pending entries are claimed again",
        workers=lambda home: [
            [environment_python("taskiq"), "-m", "taskiq", "worker", "bench.drive_taskiq:broker", *options]
        ],
        redis=storage,
    )


def arq(storage: str) -> Contestant:
    durability, promise = _redis(storage)
    return Contestant(
        name=f"arq, Redis {storage}",
        package="arq",
        module="bench.drive_arq",
        kind="redis",
        durability=durability,
        acknowledges=True,
        promise=promise + "; a job is taken off the queue after its run, a lost worker's is run again after a timeout",
        workers=lambda home: [[environment_python("arq"), "-m", "bench.drive_arq", "worker"]] * WORKERS,
        redis=storage,
    )


def persist_queue(variant: str) -> Contestant:
    acked = variant == "ack"
    return Contestant(
        name="persist-queue, SQLiteAckQueue" if acked else "persist-queue, FileQueue",
        package="persist-queue",
        module="bench.drive_persistqueue",
        kind="sqlite" if acked else "file",
        durability="power" if acked else "process",
        acknowledges=acked,
        promise=(
            "SQLite, WAL, synchronous=FULL (SQLite's default, as it ships); unacked items come back at the next start"
            if acked
            else "one sync a hundred items; the position is saved when a task is done"
        )
        + "; two threads of the producer's process, for it is not safe with more processes",
        workers=lambda home: [],
        variant=variant,
        together=True,
    )


def all_of_them(default_slots: int) -> list[Contestant]:
    """Return all contestants in the order of the tables and of the rounds."""
    found = [floor("process"), farro("process"), farro_redis("none")]
    found += [farro_agq("process"), farro_agq("process", local=True)]
    found += [huey("file"), huey("sqlite-nosync"), persist_queue("file")]
    found += [huey("redis", "none"), rq("none"), rq("none", "fork"), celery("none"), dramatiq("none"), taskiq("none")]
    found += [arq("none")]
    found += [floor("power"), farro("power"), farro_redis("always")]
    found += [farro_agq("power"), farro_agq("power", local=True)]
    found += [persist_queue("ack"), huey("sqlite")]
    found += [huey("redis", "always"), rq("always"), celery("always"), dramatiq("always"), taskiq("always")]
    found += [arq("always")]
    found += [farro(kind, slots) for kind in ("process", "power") for slots in (1, 2, 4) if slots != default_slots]
    return found
