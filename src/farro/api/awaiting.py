"""`await job`: one thread of a queue looks out for all jobs that are awaited, however many they are.

Looking out lives in operations.waiting; what a job came to in operations.answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from farro.errors import InputError
from farro.host.clock import SystemClock
from farro.queue import results, wait
from farro.queue.wait import EndWatcher
from farro.store.port import Store

Told = Callable[[Any], None]  # what a job came to, or the error; called in the thread that looks out


class Awaiting:
    """The thread lives while somebody waits.

    Invariant, under the lock: while `_running` there is a thread, which looks out for the keys of `_told`.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._told: dict[str, list[Told]] = {}
        self._running = False
        self._lookout: EndWatcher | None = None  # None: there is no thread, or it has only begun

    async def value(self, job_id: str) -> Any:
        """What it came to, as `Job.result` has it. Cancelled, nobody waits any more; the job goes on."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(answer: Any) -> None:
            if future.done():  # cancelled meanwhile
                return
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        def told(answer: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and so has whoever waited
                loop.call_soon_threadsafe(settle, answer)

        self._add(job_id, told)
        try:
            return await future
        finally:
            self._drop(job_id, told)

    def close(self) -> None:
        """Whoever waits is told that there is nothing to wait for any more."""
        self._tell_all(InputError(f"this queue of {self._store.root} was closed; its jobs go on"))

    def _add(self, job_id: str, told: Told) -> None:
        with self._lock:
            self._told.setdefault(job_id, []).append(told)
            if self._lookout is not None:
                self._lookout.add([job_id])
            elif not self._running:
                self._running = True
                threading.Thread(target=self._run, name="farro-await", daemon=True).start()
        self._store.wake(None)  # it may have ended already: look now

    def _drop(self, job_id: str, told: Told) -> None:
        with self._lock:
            others = self._told.get(job_id, [])
            if told in others:
                others.remove(told)
            if not others and self._told.pop(job_id, None) is not None and self._lookout is not None:
                self._lookout.drop(job_id)

    # --- the thread ---

    def _run(self) -> None:
        try:
            lookout = EndWatcher(self._store, self._store.root, clock=SystemClock())
            with self._lock:
                lookout.add(self._told)
                self._lookout = lookout
            while self._wanted():
                for ended in lookout.look(wait.RESCAN_S):
                    self._tell(ended.job_id)
        except Exception as error:  # noqa: BLE001 - raised where it is waited
            self._tell_all(error, over=True)

    def _wanted(self) -> bool:
        with self._lock:
            if not self._told:  # the next who waits begins anew
                self._running, self._lookout = False, None
            return self._running

    def _tell(self, job_id: str) -> None:
        with self._lock:
            several = self._told.pop(job_id, [])
        for told in several:
            told(self._answer(job_id))

    def _answer(self, job_id: str) -> Any:
        try:
            return results.value(results.answer(self._store, self._store.root, job_id))
        except Exception as error:  # noqa: BLE001 - raised where it is waited
            return error

    def _tell_all(self, error: Exception, *, over: bool = False) -> None:
        with self._lock:
            left, self._told = self._told, {}
            if over:
                self._running, self._lookout = False, None
        for told in (one for several in left.values() for one in several):
            told(error)
