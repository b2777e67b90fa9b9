"""Where the calls of the store are made that every job needs: what came while it was busy is done together.

Calls that are rare, or look at much, have threads of their own (server). What is done lives with whoever asks.

- In front of a server, most of a call is waiting: a thread makes it (ThreadDesk). One and not many: what waits
  meanwhile becomes one batch, which pays for the hop to a thread and back.
- In front of files, most of a call is work, and the event loop makes it (LoopDesk). A thread would fight with the loop
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


class Asked(NamedTuple):
    do: Do
    what: Any
    told: Callable[[Any], None]  # in the event loop
    size: int


class Desk(Protocol):
    owed: int  # answers that were asked for and not told yet; the event loop's

    def start(self) -> None: ...

    def ask(self, do: Do, what: Any, told: Callable[[Any], None], *, size: int = 0) -> None:
        """Have it done with whatever else waits to be done alike. `told` has the answer, or what was raised."""
        ...

    def stop(self) -> None:
        """Everything that was asked for is done first."""
        ...


class LoopDesk:
    """In the event loop: all that was asked for in one turn of it is done in the next."""

    def __init__(self, *, log: Log) -> None:
        self._log = log
        self._asked: list[Asked] = []
        self.owed = 0

    def start(self) -> None: ...

    def ask(self, do: Do, what: Any, told: Callable[[Any], None], *, size: int = 0) -> None:
        self.owed += 1
        if not self._asked:
            asyncio.get_running_loop().call_soon(self._serve)
        self._asked.append(Asked(do, what, told, size))

    def stop(self) -> None:
        while self._asked:
            self._serve()

    def _serve(self) -> None:
        batch = self._batch()
        if self._asked:  # clients are heard between two batches
            asyncio.get_running_loop().call_soon(self._serve)
        for do, group in _alike(batch).items():
            answers = _answers(do, group)
            self.owed -= len(group)
            _tell(group, answers, self._log)

    def _batch(self) -> list[Asked]:
        count = size = 0
        while count < min(len(self._asked), BATCH) and size <= BATCH_BYTES:
            size += self._asked[count].size
            count += 1
        batch, self._asked = self._asked[:count], self._asked[count:]
        return batch


class ThreadDesk:
    """In a thread of its own."""

    def __init__(self, name: str, *, turns: Turns, loop: Callable[..., object], log: Log) -> None:
        self._turns = turns
        self._loop = loop  # calls a function in the event loop, from any thread
        self._log = log
        self._asked: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"agq-{name}", daemon=True)
        self.owed = 0

    def start(self) -> None:
        self._thread.start()

    def ask(self, do: Do, what: Any, told: Callable[[Any], None], *, size: int = 0) -> None:
        self.owed += 1
        self._asked.put(Asked(do, what, told, size))

    def stop(self) -> None:
        self._asked.put(None)

    def _run(self) -> None:
        over = False
        while not over and (first := self._asked.get()) is not None:
            batch, size = [first], first.size
            while len(batch) < BATCH and size <= BATCH_BYTES:
                try:
                    more = self._asked.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    over = True
                    break
                batch.append(more)
                size += more.size
            for do, group in _alike(batch).items():
                with self._turns.turn():
                    answers = _answers(do, group)
                try:
                    self._loop(self._told, group, answers)
                except RuntimeError:  # the loop has ended: so has everybody who waited
                    return

    def _told(self, group: list[Asked], answers: Sequence[Any]) -> None:
        self.owed -= len(group)
        _tell(group, answers, self._log)


def _alike(batch: list[Asked]) -> dict[Do, list[Asked]]:
    alike: dict[Do, list[Asked]] = {}
    for asked in batch:
        alike.setdefault(asked.do, []).append(asked)
    return alike


def _answers(do: Do, group: list[Asked]) -> Sequence[Any]:
    try:
        return do([asked.what for asked in group])
    except Exception as error:  # noqa: BLE001 - each of them is told
        return [error] * len(group)


def _tell(group: list[Asked], answers: Sequence[Any], log: Log) -> None:
    for asked, answer in zip(group, answers, strict=True):
        try:
            asked.told(answer)
        except Exception as error:  # noqa: BLE001 - a bug in one answer must not leave the others untold
            log("error", "an answer broke", {"error": f"{type(error).__name__}: {error}"})
