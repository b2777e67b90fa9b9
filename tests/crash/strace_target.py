"""Run the process that test_strace.py kills: one for each run, forked from a zygote that has imported farro.

Started as

    python -I -S strace_target.py PATH…       with the folders to import from

it reads one JSON request a line on stdin: {"scenario", "root", "acks", "seam"}. It answers with the PID of a child that
has opened the store and waits for SIGUSR1, so that strace can be attached before the first call that counts. "wait"
answers how the last child ended. Forking saves the 80 ms that an interpreter needs to start, many hundred times.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

BEGIN, END = "/farro-begin", "/farro-end"  # looked up, never made: marks in strace's output
Say = Callable[..., None]


def minted(store: Any, say: Say) -> None:
    say("enqueued", store.enqueue(stage.submission(1)))


def chosen(store: Any, say: Say) -> None:
    say("enqueued", store.enqueue(stage.submission(1, job_id="chosen-1")))


def many(store: Any, say: Say) -> None:
    """Enqueue jobs with minted and chosen ids, with a payload and a narrative, in one call."""
    more = Submission(role="Runner", prompt=stage.plan(2), payload={"a.txt": b"a" * 5000}, narrative="read me")
    for job in store.enqueue_many([more, stage.submission(1, job_id="chosen-1")]):
        say("enqueued", job.id)


def commit(store: Any, say: Say, children: int = 0) -> None:
    """Do a worker's turn: join, claim, write a step's file, commit, report the answer, leave."""
    agent = store.join("worker", role="Runner")
    claim = claim_one(store, agent)
    say("claimed", claim.job_id, claim.attempt)
    for path in ("steps", "steps/1"):
        fs.mkdir(f"{claim.folder}/{path}")
    fs.create(f"{claim.folder}/steps/1/stdout", b"what the step said\n")
    report = stage.report(claim)
    report = Report(result=report.result, markdown=report.markdown, files=("steps/1/stdout",))
    offspring = tuple(Child(role="CodeReviewer", prompt=stage.plan(n)) for n in range(children))
    told = commit_one(store, claim, Succeeded(report=report, children=offspring))
    say("committed", claim.job_id, claim.attempt, str(told.status))
    store.leave(agent)


def children(store: Any, say: Say) -> None:
    commit(store, say, children=2)


def recover(store: Any, say: Say) -> None:
    """Run a watchdog's pass over the jobs of dead agents, and the manager's decision."""
    agent = store.join("keeper", role=None)
    store.recover(agent)
    for job_id in store.stale():
        told = store.resolve_stale(agent, job_id)
        say("settled", job_id, str(told.status))
    store.leave(agent)


def kill(store: Any, say: Say) -> None:
    """Kill a live worker's job as an operator."""
    agent = store.join("operator", role=None)
    told = store.kill(agent, "chosen-1", note="no more")
    say("killed", "chosen-1", str(told.status))
    store.leave(agent)


def journalled(store: Any, say: Say) -> None:
    """Enqueue and commit with a journal until its files were rotated and freed; then close it."""
    agent = store.join("worker", role="Runner")
    for number in range(4):
        more = Submission(role="Runner", prompt=stage.plan(number), narrative="read me\n" * 500)
        say("enqueued", store.enqueue(more))
        claim = claim_one(store, agent)
        say("claimed", claim.job_id, claim.attempt)
        told = commit_one(store, claim, Succeeded(report=stage.report(claim)))
        say("committed", claim.job_id, claim.attempt, str(told.status))
    store.close()


SCENARIOS = {work.__name__: work for work in (minted, chosen, many, commit, children, recover, kill, journalled)}


class Noting:
    """A seam that only records the calls."""

    def __init__(self) -> None:
        self.ops: list[str] = []

    def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self.ops.append(op)
        return call(*args)

    def look(self, op: str, path: str) -> None:
        pass


def run(request: dict[str, Any]) -> None:
    """Run in the child: everything before SIGUSR1 is preparation; from BEGIN to END any call may be killed."""
    acks = os.open(request["acks"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def say(what: str, *told: Any) -> None:
        os.write(acks, (json.dumps([what, *told]) + "\n").encode())

    # With the default `rescan_s` the feeds are real, so that inotify's calls are killed as well.
    journal = request["scenario"] == "journalled"
    store = stage.open_files(request["root"], seed=7, store_policy=stage.policy(rescan_s=30.0), journal=journal)
    noting = Noting()
    if request["seam"]:
        fs.set_seam(noting)
    work = SCENARIOS[request["scenario"]]
    os.write(1, f"{os.getpid()}\n".encode())
    signal.sigwait([signal.SIGUSR1])
    os.access(BEGIN, os.F_OK)
    work(store, say)
    os.access(END, os.F_OK)
    if request["seam"]:
        say("seam", noting.ops)
    os._exit(0)


def serve() -> None:
    gc.disable()  # a garbage collection would add system calls to some runs
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    child = 0
    for line in iter(sys.stdin.buffer.readline, b""):
        if line.strip() == b"wait":
            os.write(1, f"{os.waitpid(child, 0)[1]}\n".encode())
            continue
        child = os.fork()
        if child == 0:
            _let_strace_in()
            try:
                run(json.loads(line))
            finally:
                os._exit(99)


def _let_strace_in() -> None:
    """Permit strace, a sibling process, to trace this one where Yama restricts ptrace to descendants."""
    libc.prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER, PR_SET_PTRACER_ANY


if __name__ == "__main__":
    sys.path[:0] = sys.argv[1:]
    import ctypes

    import stage
    from farro.host import fs
    from farro.jobs.outcomes import Child, Report, Succeeded
    from farro.store.port import Submission, claim_one, commit_one

    libc = ctypes.CDLL(None)
    serve()
