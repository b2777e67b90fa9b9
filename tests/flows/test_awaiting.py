"""`await job`: under asyncio, beside a real worker."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import farro as api
from farro import Queue
from flows.program import PATIENCE_S, Program
from support import eventually


@pytest.fixture
def queue(farro: Program) -> Iterator[Queue]:
    with api.open(farro.path) as opened:
        yield opened


def waiters() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "farro-await"]


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await main()

    return asyncio.run(bounded())


def test_one_thread_awaits_many_jobs(farro: Program, queue: Queue) -> None:
    jobs = queue.enqueue_many(["echo", str(number)] for number in range(40))
    fails = queue.enqueue(["false"])

    async def main() -> None:
        running = [asyncio.ensure_future(job) for job in (*jobs, jobs[0])]  # one of them twice
        bad = asyncio.ensure_future(fails)
        await asyncio.sleep(0)
        assert waiters() == ["farro-await"]
        await asyncio.to_thread(farro.start, "worker")
        assert await asyncio.gather(*running) == [*(f"{number}\n" for number in range(40)), "0\n"]
        with pytest.raises(api.JobFailed, match="exit code 1") as told:
            await bad
        assert told.value.status == "failed"
        assert await jobs[7] == "7\n"  # it has already ended

    run(main)
    eventually(lambda: not waiters(), "a waiter is left")


def test_cancelled_await_leaves_the_job_alone(queue: Queue) -> None:
    job = queue.enqueue(["true"], delay="1h")

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job, 0.01)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):  # before the first read of the store
                await job

    run(main)
    assert job.status == "queued"
    eventually(lambda: not waiters(), "a waiter is left")


def test_awaiting_a_killed_or_removed_job_raises(queue: Queue) -> None:
    killed, gone = queue.enqueue_many([["true"], ["true"]], delay="1h")

    async def main() -> None:
        for job, error in ((killed, api.JobFailed), (gone, api.UnknownJob)):
            waiting = asyncio.ensure_future(job)
            await asyncio.sleep(0.1)
            await asyncio.to_thread(job.kill if job is killed else lambda: shutil.rmtree(gone.folder))
            with pytest.raises(error):
                await waiting

    run(main)


def test_closing_the_queue_fails_a_pending_await(farro: Program) -> None:
    queue = api.open(farro.path)
    job = queue.enqueue(["true"], delay="1h")

    async def main() -> None:
        waiting = asyncio.ensure_future(job)
        await asyncio.sleep(0.1)
        queue.close()
        with pytest.raises(api.InputError, match="was closed; its jobs go on"):
            await waiting
        with pytest.raises(api.InputError, match="is closed"):
            await job

    run(main)
    eventually(lambda: not waiters(), "its thread lives on")


def test_unreadable_store_raises_in_the_awaiting_code(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    job = queue.enqueue(["true"], delay="1h")

    def broken(*_: Any, **__: Any) -> Any:
        raise api.StorageTrouble("the disk said no")

    async def main() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(queue.store, "changes", broken)
            with pytest.raises(api.StorageTrouble, match="the disk said no"):
                await job
        job.kill()
        with pytest.raises(api.JobFailed):  # the next await reads the store again
            await job

    run(main)
