"""Where the calls of the store are made that every job needs: what came while it was busy is done together.

Calls that are rare, or look at much, have threads of their own (server). What is done lives with whoever asks.

- In front of a server, most of a call is waiting: a thread makes it (ThreadBatcher). One and not many: what waits
  meanwhile becomes one batch, which pays for the hop to a thread and back.
- In front of files, most of a call is work, and the event loop makes it (LoopBatcher). A thread would fight with the loop
  for the interpreter's lock at every system call: that took more than the calls themselves
  (docs/decisions/resp-keys-are-views-of-jobs.md).
  As in Redis, nobody is heard while the disk is waited for, and what they say is the next batch.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from farro.host.thread_turns import Turns
from farro.log.structured import Log

BATCH = 128  # asked for, and done together
BATCH_BYTES = 4 << 20

Do = Callable[[list[Any]], Sequence[Any]]  # an answer for each, which may be an exception


def each(calls: list[Callable[[], Any]]) -> list[Any]:
    """Calls that have nothing in common."""
    answers = []
    for call in calls:
        try:
            answers.append(call())
        except Exception as error:  # noqa: BLE001 - this one's alone
            answers.append(error)
    return answers


class BatchedCall(NamedTuple):
    do: Do
    argument: Any
    callback: Callable[[Any], None]  # in the event loop
    size: int


class Batcher(Protocol):
    pending: int  # answers that were asked for and not told yet; the event loop's

    def start(self) -> None: ...

    def submit(self, do: Do, argument: Any, callback: Callable[[Any], None], *, size: int = 0) -> None:
        """Have it done with whatever else waits to be done groups. `told` has the answer, or what was raised."""
        ...

    def stop(self) -> None:
        """Everything that was asked for is done first."""
        ...


class LoopBatcher:
    """In the event loop: all that was asked for in one turn of it is done in the next."""

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
        if self._waiting:  # clients are heard between two batches
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
    """In a thread of its own."""

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
                except RuntimeError:  # the loop has ended: so has everybody who waited
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
    except Exception as error:  # noqa: BLE001 - each of them is told
        return [error] * len(group)


def _deliver(group: list[BatchedCall], answers: Sequence[Any], log: Log) -> None:
    for call, answer in zip(group, answers, strict=True):
        try:
            call.callback(answer)
        except Exception as error:  # noqa: BLE001 - a bug in one answer must not leave the others untold
            log("error", "an answer broke", {"error": f"{type(error).__name__}: {error}"})
