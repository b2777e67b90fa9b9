"""A slot that claims batches of small jobs keeps no job from other workers that it has not begun."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from farro.errors import StorageTrouble
from farro.execution.runners.inline import InlineRunner
from farro.execution.stop import Stop
from farro.execution.tools import Call, Tools
from farro.host import process_tree
from farro.host.clock import SystemClock
from farro.jobs.states import Status
from farro.store.port import Agent, Claim, Submission
from farro.store.redis import RedisStore
from farro.worker.batching import BATCH
from farro.worker.perform import BegunJob, Performer
from farro.worker.worker import Slot, Turn, WorkerSetup
from one_job import claim_one
from redis_rig import Rig
from support import eventually

WAIT_S = 90.0
CLOCK = SystemClock()


class SlotRig:
    """A slot over a store, with the tools `quick`, `fails`, and `long`, which waits for `go`."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self.go = threading.Event()
        self.begun = threading.Event()
        self.ran: list[str] = []
        self.stop = Stop(CLOCK)
        self.logged: list[str] = []
        tools = Tools({"quick": lambda call: self.ran.append(call.job_id), "long": self._long, "fails": self._fails})
        performer = Performer(
            root=store.root, base_env={}, runner=InlineRunner(tools=tools, clock=CLOCK), clock=CLOCK, durable=False
        )
        setup = WorkerSetup(store=store, role="Runner", name="w", performer=performer, clock=CLOCK, log=self._log)
        self.slot = Slot(setup, self.stop)
        self.slot._pace._size.limit = BATCH  # as after many small jobs

    def _long(self, call: Call) -> None:
        self.ran.append(call.job_id)
        self.begun.set()
        self.go.wait(WAIT_S)

    def _fails(self, call: Call) -> int:
        self.ran.append(call.job_id)
        return 3

    def _log(self, level: str, message: str, fields: Any) -> None:
        self.logged.append(message)

    def enqueue(self, *tools: str, retries: int = 0) -> list[str]:
        made = self.store.enqueue_many(
            [
                Submission(
                    role="Runner",
                    job_id=f"{tool}-{number:02d}",
                    prompt={
                        "plan_id": "p",
                        "steps": [{"step_number": 1, "tool": tool, "command": "x", "retries": retries}],
                    },
                )
                for number, tool in enumerate(tools)
            ]
        )
        return [job.id for job in made]

    def turns(self) -> threading.Thread:
        """Run the slot until the long job has begun: on a busy machine a quick one may count as long before it."""

        def turn() -> None:
            while not self.begun.is_set():
                self.slot.run_once()

        thread = threading.Thread(target=turn)
        thread.start()
        return thread


def test_small_jobs_are_done_in_batches(rig: Rig) -> None:
    store = rig.store(real=True)
    rigged = SlotRig(store)
    ids = rigged.enqueue(*["quick"] * 40)
    while rigged.slot.run_once() is Turn.WORKED:
        pass
    rigged.slot.leave()
    assert sorted(rigged.ran) == sorted(ids), "each once, though where processors are busy some went back in between"
    assert store.count()[Status.SUCCEEDED] == 40
    assert rigged.logged.count("job status changed") == 40


def test_jobs_behind_a_long_one_go_back_to_the_queue(rig: Rig) -> None:
    store = rig.store(real=True)
    rigged = SlotRig(store)
    ids = rigged.enqueue("quick", "long", *["quick"] * 6)
    thread = rigged.turns()
    assert rigged.begun.wait(WAIT_S)
    try:
        eventually(lambda: store.count().get(Status.QUEUED) == 6, "what was not begun is queued again")
        eventually(lambda: store.count().get(Status.SUCCEEDED) == 1, "what was over before is committed")
        other = store.join("other", role="Runner")
        claim = claim_one(store, other)
        assert claim is not None
        assert claim.job_id == ids[2], "in its old place"
        assert claim.attempt == 1
    finally:
        rigged.go.set()
        thread.join(WAIT_S)
    rigged.slot.leave()
    assert store.count()[Status.SUCCEEDED] == 2


def test_a_stopped_worker_hands_back_what_it_has_not_begun(rig: Rig) -> None:
    store = rig.store(real=True)
    rigged = SlotRig(store)
    rigged.enqueue(*["quick"] * 8)
    claim = store.claim

    def stopped(*args: Any) -> Any:
        claims = claim(*args)
        rigged.stop.request(5.0)
        return claims

    store.claim = stopped  # type: ignore[method-assign]
    rigged.slot.run_once()
    rigged.slot.leave()
    assert rigged.ran == []
    assert store.count()[Status.QUEUED] == 8
    assert all(view.lifecycle.attempt == 0 for view in store.list())


@pytest.mark.parametrize("alone", [True, False], ids=["without children", "beside a command"])
def test_finished_jobs_are_committed_before_another_is_retried(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """A retry may take long, and the server may be away by then."""
    monkeypatch.setattr(process_tree, "childless", lambda: alone)
    store = rig.store(real=True)
    rigged = SlotRig(store)
    rigged.enqueue("quick", "fails", "quick", "quick", retries=1)
    seen: list[int] = []
    run_longer = rigged.slot._run_longer

    def away(agent: Agent, batch: Any, claim: Claim, begun: BegunJob) -> None:
        if claim.job_id.startswith("quick"):
            run_longer(agent, batch, claim, begun)
            return
        seen.append(store.count()[Status.SUCCEEDED])
        raise StorageTrouble("the server is away")

    rigged.slot._run_longer = away  # type: ignore[method-assign]
    assert rigged.slot._safely(rigged.slot.run_once) is Turn.TROUBLE
    assert seen == [3]
    boss = store.join("b", role=None)
    assert [done.job_id for done in store.recover(boss) if done.job_id] == ["fails-01"]
    assert sorted(rigged.ran) == ["fails-01", "quick-00", "quick-02", "quick-03"], "each once"
    assert "job handed back, not begun" not in rigged.logged
