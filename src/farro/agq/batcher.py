"""Batch the calls of the store that every job needs: calls that come while one runs are made together.

Rare calls, and those that read many jobs, run in the server's thread pools instead.

- In front of a remote store a call mostly waits, so a thread makes it (ThreadBatcher). One thread, not many: the calls
  that wait meanwhile form one batch, which pays for the switch to the thread and back.
- In front of files a call is mostly CPU work, so the event loop makes it (LoopBatcher). A thread would compete with the
  loop for the interpreter lock at every system call; that took longer than the calls themselves
  (docs/decisions/resp-keys-are-views-of-jobs.md). As in Redis, no client is read while the disk is written; what they
  send meanwhile is the next batch.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from farro.host.thread_turns import Turns
from farro.log.structured import Log

BATCH = 128  # calls in one batch
BATCH_BYTES = 4 << 20

Do = Callable[[list[Any]], Sequence[Any]]  # returns an answer for each argument; it may be an exception


def each(calls: list[Callable[[], Any]]) -> list[Any]:
    """Make calls that cannot be combined."""
    answers = []
    for call in calls:
        try:
            answers.append(call())
        except Exception as error:  # noqa: BLE001 - concerns this call only
            answers.append(error)
    return answers


class BatchedCall(NamedTuple):
    do: Do
    argument: Any
    callback: Callable[[Any], None]  # called in the event loop
    size: int


class Batcher(Protocol):
    pending: int  # calls without an answer so far; used in the event loop only

    def start(self) -> None: ...

    def submit(self, do: Do, argument: Any, callback: Callable[[Any], None], *, size: int = 0) -> None:
        """Call `do` with this argument and those of other waiting calls of `do`. `callback` gets the answer or the
        exception."""
        ...

    def stop(self) -> None:
        """Finish all submitted calls, then stop."""
        ...


class LoopBatcher:
    """Run in the event loop: all calls of one iteration are made in the next."""

    def __init__(self, *, log: Log) -> None:
        self._log = log
        self._waiting: list[BatchedCall] = []
        self.pending = 0

    def start(self) -> None: ...

    def submit(self, do: Do, argument: Any, callback: Callable[[Any], None], *, size: int = 0) -> None:
        self.pending += 1
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._serve)
        self._waiting.append(BatchedCall(do, argument, callback, size))

    def stop(self) -> None:
        while self._waiting:
            self._serve()

    def _serve(self) -> None:
        batch = self._batch()
        if self._waiting:  # read clients between two batches
            asyncio.get_running_loop().call_soon(self._serve)
        for do, group in _by_function(batch).items():
            answers = _run_group(do, group)
            self.pending -= len(group)
            _deliver(group, answers, self._log)

    def _batch(self) -> list[BatchedCall]:
        count = size = 0
        while count < min(len(self._waiting), BATCH) and size <= BATCH_BYTES:
            size += self._waiting[count].size
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch


class ThreadBatcher:
    """Run in a thread of its own."""

    def __init__(self, name: str, *, turns: Turns, loop: Callable[..., object], log: Log) -> None:
        self._turns = turns
        self._loop = loop  # calls a function in the event loop, from any thread
        self._log = log
        self._waiting: queue.SimpleQueue[BatchedCall | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"agq-{name}", daemon=True)
        self.pending = 0

    def start(self) -> None:
        self._thread.start()

    def submit(self, do: Do, argument: Any, callback: Callable[[Any], None], *, size: int = 0) -> None:
        self.pending += 1
        self._waiting.put(BatchedCall(do, argument, callback, size))

    def stop(self) -> None:
        self._waiting.put(None)

    def _run(self) -> None:
        over = False
        while not over and (first := self._waiting.get()) is not None:
            batch, size = [first], first.size
            while len(batch) < BATCH and size <= BATCH_BYTES:
                try:
                    more = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    over = True
                    break
                batch.append(more)
                size += more.size
            for do, group in _by_function(batch).items():
                with self._turns.turn():
                    answers = _run_group(do, group)
                try:
                    self._loop(self._delivered, group, answers)
                except RuntimeError:  # the loop has ended, and so have all that waited
                    return

    def _delivered(self, group: list[BatchedCall], answers: Sequence[Any]) -> None:
        self.pending -= len(group)
        _deliver(group, answers, self._log)


def _by_function(batch: list[BatchedCall]) -> dict[Do, list[BatchedCall]]:
    groups: dict[Do, list[BatchedCall]] = {}
    for call in batch:
        groups.setdefault(call.do, []).append(call)
    return groups


def _run_group(do: Do, group: list[BatchedCall]) -> Sequence[Any]:
    try:
        return do([call.argument for call in group])
    except Exception as error:  # noqa: BLE001 - each caller gets it
        return [error] * len(group)


def _deliver(group: list[BatchedCall], answers: Sequence[Any], log: Log) -> None:
    for call, answer in zip(group, answers, strict=True):
        try:
            call.callback(answer)
        except Exception as error:  # noqa: BLE001 - a bug in one callback must not keep the others from their answers
            log("error", "an answer broke", {"error": f"{type(error).__name__}: {error}"})
