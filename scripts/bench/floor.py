"""The floor: the least that the protocol of a job folder can cost, in a bare loop. No farro is imported.

It makes the mutating calls that the promise of DESIGN §4 needs, on real bytes, and nothing else: no retries of passing
errors, no fencing checks, no delays, tags, schemas, heartbeats, leases or logs. A queue that keeps the promise with
folders cannot make fewer calls; what farro costs beyond this is farro's own.

    enqueue  mkdir the staged folder; create and write prompt.json; create and write job.json; rename into incoming
    claim    symlink the lock; rename into the worker's folder; mkdir attempts, attempts/0001; replace job.json (3)
    commit   create and write result.json and result.md; replace job.json (3); link the mirror; unlink the lock;
             rename into completed

With `power` come the syncs of docs/decisions/every-sync-has-a-reason.md, each where its row says: enqueue 4 (both
files, the folder, incoming), claim 0, commit 7 (both results, the attempt's two folders, job.json, the job's folder,
completed).

    python -m bench.floor enqueue|pickup N     the producer (BENCH_HOME, BENCH_VARIANT process|power)
    python -m bench.floor worker               one of the competing workers, until it is ended
    python -m bench.floor count N              calls and syncs of N jobs, counted
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import select
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from bench import gear

NOREPLACE, AT_FDCWD = 1, -100
MOVED_TO = 0x80
PLACES = ("staging", "incoming", "in-progress", "completed")

libc = ctypes.CDLL(None, use_errno=True)


def move(source: str, path: str) -> None:
    """Rename without ever replacing a file (R1)."""
    if libc.renameat2(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(path), NOREPLACE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), source, None, path)


def create(path: str, data: bytes, durable: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    os.write(fd, data)
    if durable:
        os.fsync(fd)
    os.close(fd)


def replace(path: str, data: bytes, durable: bool) -> None:
    temporary = f"{path}.tmp-{os.getpid()}"
    create(temporary, data, durable)
    os.rename(temporary, path)


def sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    os.fsync(fd)
    os.close(fd)


def read(path: str) -> Any:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    data = os.read(fd, 1 << 20)
    os.close(fd)
    return json.loads(data)


def text(data: Any) -> bytes:
    return json.dumps(data).encode() + b"\n"


def now() -> str:
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{nanoseconds // 1_000_000:03d}Z"


def make(root: str) -> None:
    for place in PLACES:
        os.makedirs(f"{root}/{place}", exist_ok=True)


def enqueue(root: str, durable: bool) -> None:
    name = f"job-{time.time_ns():020d}-{os.urandom(8).hex()}"  # sorts by time
    staged = f"{root}/staging/{name}"
    prompt = {"plan_id": "bench", "steps": [{"step_number": 1, "tool": "noop", "command": "noop"}]}
    at = now()
    job = {
        "schema_version": "1.0.0",
        "job_id": name,
        "role": "Runner",
        "status": "queued",
        "attempt": 0,
        "retry_count": 0,
        "enqueued_at": at,
        "updated_at": at,
        "hops": [],
    }
    os.mkdir(staged)
    create(f"{staged}/prompt.json", text(prompt), durable)
    create(f"{staged}/job.json", text(job), durable)
    if durable:
        sync(staged)
    move(staged, f"{root}/incoming/{name}")
    if durable:
        sync(f"{root}/incoming")


def claim(root: str, agent: str, name: str) -> dict[str, Any] | None:
    """Claim a job and return it; None if another worker has it."""
    queued, mine = f"{root}/incoming/{name}", f"{root}/in-progress/{agent}/{name}"
    try:
        os.symlink(agent, f"{queued}/lock")
    except (FileExistsError, FileNotFoundError):
        return None
    try:
        job: dict[str, Any] = read(f"{queued}/job.json")
        prompt = read(f"{queued}/prompt.json")
    except FileNotFoundError:  # our link fell into a folder that the other worker was just moving
        return None
    if job["schema_version"] != "1.0.0" or job["status"] != "queued" or not prompt["steps"]:
        raise ValueError(f"{name} is not a queued job")
    move(queued, mine)
    os.mkdir(f"{mine}/attempts")
    os.mkdir(f"{mine}/attempts/0001")
    at = now()
    job |= {"status": "in_progress", "attempt": 1, "agent": agent, "first_claimed_at": at, "updated_at": at}
    job["correlation_id"] = os.urandom(16).hex()
    replace(f"{mine}/job.json", text(job), False)
    return job


def commit(root: str, agent: str, name: str, job: dict[str, Any], durable: bool) -> None:
    mine = f"{root}/in-progress/{agent}/{name}"
    home = f"{mine}/attempts/0001"
    step = {"step_number": 1, "id": "1", "stdout": "", "stderr": "", "exit_code": 0, "success": True}
    result = text({"job_id": name, "plan_id": "bench", "success": True, "step_results": [step], "error": None})
    create(f"{home}/result.json", result, durable)
    create(f"{home}/result.md", b"# Succeeded\n\n1 of 1 steps succeeded in 0.00 s.\n", durable)
    if durable:
        sync(home)
        sync(f"{mine}/attempts")
    at = now()
    job |= {"status": "succeeded", "finalized_at": at, "updated_at": at}
    job["result_sha256"] = hashlib.sha256(result).hexdigest()
    job["decision"] = {"attempt": 1, "reason": "committed", "to": "completed"}
    job["hops"].append({"role": "Runner", "agent": agent, "attempt": 1, "reason": "committed", "at": at})
    replace(f"{mine}/job.json", text(job), durable)
    os.link(f"{home}/result.md", f"{mine}/result.md")
    os.unlink(f"{mine}/lock")
    if durable:
        sync(mine)
    move(mine, f"{root}/completed/{name}")
    if durable:
        sync(f"{root}/completed")


def turn(root: str, agent: str, durable: bool) -> tuple[bool, bool]:
    """List the queue once and work through it; return whether it had jobs, and whether this worker took any."""
    took = False
    names = sorted(os.listdir(f"{root}/incoming"))
    for name in names:
        job = claim(root, agent, name)
        if job is not None:
            gear.work()
            commit(root, agent, name, job, durable)
            took = True
    return bool(names), took


def worker(root: str, durable: bool) -> None:
    agent = f"floor-{os.getpid()}"
    os.mkdir(f"{root}/in-progress/{agent}")
    news = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    libc.inotify_add_watch(news, os.fsencode(f"{root}/incoming"), MOVED_TO)
    while True:
        there, took = turn(root, agent, durable)
        if there and not took:
            time.sleep(0.0005)  # the other worker is about to move what is listed
        elif not there:
            select.select([news], [], [])
            os.read(news, 1 << 20)


def count(root: str, jobs: int, durable: bool) -> dict[str, Any]:
    """Count calls and syncs per job, at the calls themselves."""
    counted: Counter[str] = Counter()

    def counting(op: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted_call(*args: Any) -> Any:
            if op != "create" or args[1] & os.O_CREAT:
                counted[op] += 1
            return call(*args)

        return counted_call

    agent = "floor-count"
    os.mkdir(f"{root}/in-progress/{agent}")
    gear.work()  # opens the tally, which is the gear's and not counted
    gear.work = lambda number=0: None  # type: ignore[assignment]
    for name in ("mkdir", "write", "rename", "symlink", "link", "unlink", "fsync"):
        setattr(os, name, counting(name, getattr(os, name)))
    os.open = counting("create", os.open)
    globals()["move"] = counting("move", move)
    for _ in range(jobs):
        enqueue(root, durable)
        turn(root, agent, durable)
    syncs = counted.pop("fsync", 0)
    per_job = {op: number / jobs for op, number in sorted(counted.items())}
    return {"calls": sum(per_job.values()), "syncs": syncs / jobs, "by_call": per_job}


def main() -> None:
    root, durable = gear.home(), gear.variant() == "power"
    make(root)
    if sys.argv[1] == "worker":
        worker(root, durable)
    elif sys.argv[1] == "count":
        gear.answer(count(root, int(sys.argv[2]), durable))
    else:
        gear.drive(lambda number: enqueue(root, durable))


if __name__ == "__main__":
    main()
