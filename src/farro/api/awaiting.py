"""`await job`: one thread of a queue watches all awaited jobs, however many they are."""

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

Callback = Callable[[Any], None]  # gets the job's value, or the error; called in the watching thread


class JobAwaiter:
    """Watch awaited jobs in a thread, which runs while at least one job is awaited.

    Invariant, under the lock: while `_running` there is a thread, which watches the keys of `_callbacks`.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._callbacks: dict[str, list[Callback]] = {}
        self._running = False
        self._lookout: EndWatcher | None = None  # None: there is no thread, or it has just begun

    async def value(self, job_id: str) -> Any:
        """Return its value as `Job.result` does. Cancelling stops the waiting; the job goes on."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def resolve(answer: Any) -> None:
            if future.done():  # cancelled meanwhile
                return
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        def callback(answer: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the awaiting task with it
                loop.call_soon_threadsafe(resolve, answer)

        self._add(job_id, callback)
        try:
            return await future
        finally:
            self._drop(job_id, callback)

    def close(self) -> None:
        """Raise InputError in every task that still awaits a job."""
        self._answer_all(InputError(f"this queue of {self._store.root} was closed; its jobs go on"))

    def _add(self, job_id: str, callback: Callback) -> None:
        with self._lock:
            self._callbacks.setdefault(job_id, []).append(callback)
            if self._lookout is not None:
                self._lookout.add([job_id])
            elif not self._running:
                self._running = True
                threading.Thread(target=self._run, name="farro-await", daemon=True).start()
        self._store.wake(None)  # the job may have ended already: look now

    def _drop(self, job_id: str, callback: Callback) -> None:
        with self._lock:
            others = self._callbacks.get(job_id, [])
            if callback in others:
                others.remove(callback)
            if not others and self._callbacks.pop(job_id, None) is not None and self._lookout is not None:
                self._lookout.drop(job_id)

    # --- the thread ---

    def _run(self) -> None:
        try:
            lookout = EndWatcher(self._store, clock=SystemClock())
            with self._lock:
                lookout.add(self._callbacks)
                self._lookout = lookout
            while self._wanted():
                for ended in lookout.look(wait.RESCAN_S):
                    self._answer_one(ended.job_id)
        except Exception as error:  # noqa: BLE001 - raised in the awaiting task
            self._answer_all(error, over=True)

    def _wanted(self) -> bool:
        with self._lock:
            if not self._callbacks:  # the next awaited job starts another thread
                self._running, self._lookout = False, None
            return self._running

    def _answer_one(self, job_id: str) -> None:
        with self._lock:
            several = self._callbacks.pop(job_id, [])
        for callback in several:
            callback(self._answer(job_id))

    def _answer(self, job_id: str) -> Any:
        try:
            return results.value(results.answer(self._store, job_id))
        except Exception as error:  # noqa: BLE001 - raised in the awaiting task
            return error

    def _answer_all(self, error: Exception, *, over: bool = False) -> None:
        with self._lock:
            left, self._callbacks = self._callbacks, {}
            if over:
                self._running, self._lookout = False, None
        for callback in (one for several in left.values() for one in several):
            callback(error)
