"""Run a storm process that is not a farro command: `python member.py submitter|keeper|guard FOLDER NAME SEED`."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import sys
import time
from typing import Any

from crash.storm import guard, plan
from storm import network

BACKLOG = 12  # open jobs at which a submitter pauses, so that draining takes a bounded time


class Member:
    """A client of farro that logs to a file which survives a kill: one O_APPEND write for each line."""

    def __init__(self, folder: str, name: str, seed: str) -> None:
        from farro.app import App
        from farro.config import reader

        root = f"{folder}/{name.partition('-')[0]}"
        self.effects, self.name = f"{folder}/effects", name
        self.dice = random.Random(f"{name}/{seed}")
        self.store = App().open_store(root, reader.load(root))
        self.notebook = os.open(f"{folder}/notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, what: str, **more: Any) -> None:
        os.write(self.notebook, (json.dumps({"what": what, "by": self.name, **more}) + "\n").encode())


def submit(member: Member) -> None:
    """Submit jobs with chosen ids: a submitter without an answer submits the same id again, even after a restart."""
    from farro.errors import FarroError, IdConflict
    from farro.jobs.states import Status
    from farro.store.port import Submission

    for number in itertools.count():
        token = job_id = f"{member.name}-{number}"
        draw = member.dice.random()
        if draw < 0.3:  # a shared id: every submitter submits it, and again after a restart
            token = job_id = f"shared-{int(time.time()) - member.dice.randrange(2)}"
        elif draw < 0.35:
            token, job_id = f"other-{token}", f"shared-{int(time.time()) - member.dice.randrange(2)}"
        member.note("try", token=token, id=job_id)
        for _ in range(20):
            try:
                queued = member.store.enqueue(
                    Submission(role="Runner", prompt=plan(token, member.effects), job_id=job_id)
                )
            except IdConflict as error:
                member.note("refused", token=token, why=str(error))
                break
            except (FarroError, OSError) as error:
                member.note("unanswered", token=token, why=f"{type(error).__name__}: {error}")
                time.sleep(0.1)
            else:
                member.note("enqueued", token=token, id=queued)
                break
        with contextlib.suppress(FarroError, OSError):
            while True:
                counts = member.store.count()
                if sum(counts.get(status, 0) for status in (Status.QUEUED, Status.IN_PROGRESS)) < BACKLOG:
                    break
                time.sleep(0.1)
        time.sleep(member.dice.uniform(0.0, 0.1))


def keep(member: Member) -> None:
    """Run a watchdog and the manager's handling of stale jobs in one process: all processes share two cores."""
    from farro.errors import FarroError

    agent = None
    while True:
        try:
            if agent is None:
                agent = member.store.join("keeper", role=None)
            member.store.heartbeat(agent)
            member.store.recover(agent)
            for job_id in member.store.stale():
                member.store.resolve_stale(agent, job_id)
        except (FarroError, OSError) as error:
            member.note("trouble", why=f"{type(error).__name__}: {error}")
            agent = None
        time.sleep(0.2)


if __name__ == "__main__":
    _kind, _folder, _name, _seed = sys.argv[1:]
    if _kind == "guard":
        guard(_folder)
        network.remove(_name)
    else:
        {"submitter": submit, "keeper": keep}[_kind](Member(_folder, _name, _seed))
