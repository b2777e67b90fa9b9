"""Make the golden trees: a root with a job in every state, as this version of farro writes it to disk.

The tests never run it: `.venv/bin/python tests/golden/make_golden.py` writes `v<schema version>/`. Run it once for each
schema version, before its release. Never regenerate a released tree: farro must always be able to load it.

The stage fixes the clock, the random seed and the host name "stage", so that two runs write the same bytes. Git stores
neither empty folders nor times: `folders.txt` lists the folders, and the tests set the times.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from one_job import claim_one, commit_one, release_one

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import stage  # noqa: E402
from farro.host import fs  # noqa: E402
from farro.jobs.envelope import SCHEMA_VERSION  # noqa: E402
from farro.jobs.outcomes import Child, ErrorInfo, Failed, Succeeded, Unroutable  # noqa: E402
from farro.jobs.retry import RetryPolicy  # noqa: E402
from farro.store.files import FilesStore  # noqa: E402
from farro.store.port import Agent, Claim, StorePolicy, Submission  # noqa: E402

NO = ErrorInfo(category="step_failed", message="step 1 ended with exit code 1")


class KillAt:
    """Kill the process before (or after) the first call of that kind on a path that contains `needle`."""

    def __init__(self, op: str, needle: str, *, after: bool = False) -> None:
        self.op, self.needle, self.after = op, needle, after

    def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        hit = op == self.op and any(isinstance(arg, str) and self.needle in arg for arg in args)
        if hit and not self.after:
            raise stage.Crash
        answer = call(*args)
        if hit:
            raise stage.Crash
        return answer

    def look(self, op: str, path: str) -> None:
        pass


class Theatre:
    """Produce each state in turn, one second apart, each with its own processes."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.clock = stage.QuickClock()
        self.seed = 0

    def process(self) -> FilesStore:
        self.seed += 1
        self.clock.sleep(1)
        retry = RetryPolicy(base_s=0.25, max_delay_s=10.0)
        return stage.open_files(
            self.root, seed=self.seed, clock=self.clock, store_policy=StorePolicy(retry=retry, rescan_s=0.0)
        )

    def enqueue(self, job_id: str, role: str = "Runner", **more: Any) -> FilesStore:
        store = self.process()
        store.enqueue(Submission(role=role, prompt=stage.plan(self.seed, name=job_id, **more), job_id=job_id))
        return store

    def claim(self, job_id: str, role: str = "Runner", **more: Any) -> tuple[FilesStore, Agent, Claim]:
        store = self.enqueue(job_id, role, **more)
        agent = store.join("worker", role=role)
        self.clock.sleep(1)
        with alone(self.root, f"agents/{role}/incoming", [job_id]):
            claim = claim_one(store, agent)
        assert claim is not None
        self.clock.sleep(1)
        return store, agent, claim

    def killed(self, seam: KillAt, store: FilesStore, call: Callable[[], Any]) -> None:
        """Let the process die inside `call`."""
        fs.set_seam(seam)
        try:
            call()
        except stage.Crash:
            pass
        else:
            raise AssertionError(f"{seam.op} {seam.needle} was never called")
        finally:
            fs.set_seam(None)
        stage.die(store)


@contextmanager
def alone(root: str, place: str, keep: list[str]) -> Iterator[None]:
    """Hide everything else in `place` during the block."""
    home, aside = f"{root}/{place}", f"{root}/jobs/aside"
    os.mkdir(aside)
    others = [name for name in os.listdir(home) if name not in keep]
    for name in others:
        os.rename(f"{home}/{name}", f"{aside}/{name}")
    try:
        yield
    finally:
        for name in others:
            os.rename(f"{aside}/{name}", f"{home}/{name}")
        os.rmdir(aside)


def report(claim: Claim, good: bool = True) -> Any:
    return stage.report(claim, "done" if good else "failed")


def play(root: str) -> None:
    theatre = Theatre(root)

    # Queued.
    theatre.enqueue("queued-fresh").close()
    store = theatre.process()
    later = theatre.clock.now() + timedelta(hours=1)
    store.enqueue(
        Submission(
            role="Runner",
            prompt=stage.plan(2),
            job_id="queued-delayed",
            not_before=later,
            narrative="Not before the hour is over.\n",
            payload={"notes.txt": b"kept beside the prompt\n"},
        )
    )
    store.close()
    store, _, claim = theatre.claim("queued-retried")
    commit_one(store, claim, Failed(error=NO, report=report(claim, False), retryable=True))
    store.close()
    store, _, claim = theatre.claim("queued-routed", routing={"mode": "role", "next": "CodeReviewer"})
    commit_one(store, claim, Succeeded(report=report(claim)))
    store.close()
    store, _, claim = theatre.claim("queued-released")
    release_one(store, claim, "shutdown")
    store.close()
    store = theatre.enqueue("queued-locked")
    agent = store.join("worker", role="Runner")
    with alone(root, "agents/Runner/incoming", ["queued-locked"]):
        theatre.killed(KillAt("move", "/in-progress/"), store, lambda: claim_one(store, agent))

    # In progress, under agents that are dead.
    store, _, _ = theatre.claim("running-undecided")
    stage.die(store)
    store = theatre.enqueue("running-uncounted")
    agent = store.join("worker", role="Runner")
    with alone(root, "agents/Runner/incoming", ["running-uncounted"]):
        theatre.killed(KillAt("mkdir", "running-uncounted/attempts"), store, lambda: claim_one(store, agent))
    store, _, claim = theatre.claim("running-decided")
    commit(theatre, KillAt("move", "/completed/"), store, claim)
    store, _, claim = theatre.claim("running-with-result")
    commit(theatre, KillAt("exchange", "/job.json"), store, claim)
    store, _, claim = theatre.claim("running-marked-stale", routing={"mode": "manager"})
    away = ErrorInfo(category="manager_away", message="the manager's heartbeat is 31 s old")
    commit_one(store, claim, Unroutable(error=away, report=report(claim)))
    stage.die(store)

    # Between places.
    store, agent, _ = theatre.claim("stale")
    stage.die(store)
    collect(theatre, agent)
    quarantine(theatre, root)
    # From here on no watchdog may run: it would finish the half-done changes of the next states.
    store, _, claim = theatre.claim("outbox-with-children")
    children = (Child(role="CodeReviewer", prompt=stage.plan(70)), Child(role="Runner", prompt=stage.plan(71)))
    theatre.killed(
        KillAt("move", "/jobs/outbox/", after=True),
        store,
        lambda: commit_one(store, claim, Succeeded(report=report(claim), children=children)),
    )
    store = theatre.enqueue("held-undecided")
    boss = store.join("operator", role=None)
    theatre.killed(KillAt("exchange", "/job.json"), store, lambda: store.kill(boss, "held-undecided"))
    store = theatre.enqueue("held-decided")
    boss = store.join("operator", role=None)
    theatre.killed(KillAt("move", "/completed/"), store, lambda: store.kill(boss, "held-decided", note="not needed"))
    theatre.enqueue("waiting-for-a-human", role="Manager").close()
    os.rename(
        f"{root}/agents/Manager/incoming/waiting-for-a-human", f"{root}/agents/Manager/waiting/waiting-for-a-human"
    )

    # Ended.
    store, _, claim = theatre.claim("succeeded")
    commit_one(store, claim, Succeeded(report=report(claim)))
    store.close()
    store, _, claim = theatre.claim("failed")
    commit_one(store, claim, Failed(error=NO, report=report(claim, False)))
    store.close()
    store, _, claim = theatre.claim("failed-open", routing={"mode": "manager"})
    commit_one(store, claim, Failed(error=NO, report=report(claim, False)))
    store.close()
    store = theatre.enqueue("killed")
    store.kill(store.join("operator", role=None), "killed", note="a mistake")
    store.close()
    store, _, _ = theatre.claim("forced")
    store.force_complete(store.join("operator", role=None), "forced", note="done by hand")
    store.close()

    # Being submitted.
    store = theatre.process()
    theatre.killed(KillAt("move", "/incoming/"), store, lambda: store.enqueue(stage.submission(80)))
    store = theatre.process()
    theatre.killed(
        KillAt("move", "/incoming/"), store, lambda: store.enqueue(stage.submission(81, job_id="registered-in-staging"))
    )
    store = theatre.process()
    theatre.killed(KillAt("move", "/in-progress/"), store, lambda: store.join("newcomer", role="Runner"))

    # An agent that died without a claim.
    store = theatre.process()
    store.join("idle", role="CodeReviewer")
    stage.die(store)


def commit(theatre: Theatre, seam: KillAt, store: FilesStore, claim: Claim) -> None:
    theatre.killed(seam, store, lambda: commit_one(store, claim, Succeeded(report=report(claim))))


def collect(theatre: Theatre, agent: Agent) -> None:
    """Let a watchdog recover the jobs of this one agent."""
    with alone(theatre.root, "agents/Runner/in-progress", [agent.id]):
        store = theatre.process()
        store.recover(store.join("watchdog", role=None))
        store.close()


def quarantine(theatre: Theatre, root: str) -> None:
    """A decision that names no place for a job."""
    store, agent, _ = theatre.claim("quarantined")
    stage.die(store)
    path = f"{root}/agents/Runner/in-progress/{agent.id}/quarantined/job.json"
    data = json.loads(stage.read(path))
    data["decision"] = {"attempt": 1, "reason": "committed", "to": "../../somewhere", "not_before": None}
    os.unlink(path)
    Path(path).write_text(json.dumps(data, indent=2) + "\n")
    collect(theatre, agent)


def play_unknown(root: str) -> None:
    """Put jobs of a future schema version into every folder that can hold a job."""
    theatre = Theatre(root)
    theatre.enqueue("queued").close()
    store, _, _ = theatre.claim("running")
    stage.die(store)
    store, agent, _ = theatre.claim("stale")
    stage.die(store)
    collect(theatre, agent)
    store, _, claim = theatre.claim("outbox")
    theatre.killed(
        KillAt("move", "/jobs/outbox/", after=True),
        store,
        lambda: commit_one(
            store, claim, Succeeded(report=report(claim), children=(Child(role="Runner", prompt=stage.plan(70)),))
        ),
    )
    store = theatre.enqueue("held")
    boss = store.join("operator", role=None)
    theatre.killed(KillAt("exchange", "/job.json"), store, lambda: store.kill(boss, "held"))
    store, _, claim = theatre.claim("succeeded")
    commit_one(store, claim, Succeeded(report=report(claim)))
    store.close()
    for folder, _, names in os.walk(root):
        if "job.json" in names:
            path = Path(folder, "job.json")
            changed = {
                **json.loads(path.read_text()),
                "schema_version": "9.9.9",
                "news": {"fields": ["that nobody knows"]},
            }
            path.write_text(json.dumps(changed, indent=1) + "\n")


def make(folder: Path, play: Callable[[str], None]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    root = folder / "root"
    stage.make(str(root))
    play(str(root))
    empty = [os.path.relpath(path, root) for path, names, files in os.walk(root) if not names and not files]
    (folder / "folders.txt").write_text("".join(f"{name}\n" for name in sorted(empty)))
    for path, _, files in os.walk(root):
        for name in files:
            whole = os.path.join(path, name)
            assert os.path.islink(whole) or str(root).encode() not in stage.read(whole), f"{whole} names this machine"


def numbered(count: Iterator[int]) -> Callable[[str], str]:
    return lambda folder: f"{folder}/{fs.TEMPORARY}{next(count):016x}"


if __name__ == "__main__":
    fs.temporary = numbered(itertools.count(1))
    make(HERE / f"v{SCHEMA_VERSION}", play)
    make(HERE / "unknown", play_unknown)
