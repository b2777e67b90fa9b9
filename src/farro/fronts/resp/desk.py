"""A thread for the calls of the store that every job needs: what came while it was busy is done together.

Calls that are rare, or look at much, have pools of their own (server). What is done lives with whoever asks.

One thread and not many: threads that make short system calls in turn spend more on handing Python's interpreter lock to
each other than on the calls, and what waits meanwhile becomes one batch: one sync for all of it. A hop to a thread
and back costs as much as a small call of the store, so a batch pays for one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from farro.observe.log import Log
from farro.system.turns import Turns

BATCH = 128  # asked for, and done together
BATCH_BYTES = 4 << 20

Do = Callable[[list[Any]], Sequence[Any]]  # in the desk's thread: an answer for each, which may be an exception


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


class Desk:
    def __init__(self, name: str, *, turns: Turns, loop: Callable[..., object], log: Log) -> None:
        self._turns = turns
        self._loop = loop  # calls a function in the event loop, from any thread
        self._log = log
        self._asked: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"agq-{name}", daemon=True)
        self.busy = False
        self.owed = 0  # answers that were asked for and not told yet; the event loop's

    def start(self) -> None:
        self._thread.start()

    def ask(self, do: Do, what: Any, told: Callable[[Any], None], *, size: int = 0) -> None:
        """Have it done with whatever else waits to be done alike. `told` has the answer, or what was raised."""
        self.owed += 1
        self._asked.put(Asked(do, what, told, size))

    def stop(self) -> None:
        """Everything that was asked for is done first."""
        self._asked.put(None)

    def _run(self) -> None:
        over = False
        while not over and (first := self._asked.get()) is not None:
            self.busy = True
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
            alike: dict[Do, list[Asked]] = {}
            for asked in batch:
                alike.setdefault(asked.do, []).append(asked)
            for do, group in alike.items():
                self._serve(do, group)
            self.busy = False

    def _serve(self, do: Do, group: list[Asked]) -> None:
        answers: Sequence[Any]
        try:
            with self._turns.turn():
                answers = do([asked.what for asked in group])
        except Exception as error:  # noqa: BLE001 - each of them is told
            answers = [error] * len(group)
        try:
            self._loop(self._tell, group, answers)
        except RuntimeError:  # the loop has ended: so has everybody who waited
            return

    def _tell(self, group: list[Asked], answers: Sequence[Any]) -> None:
        for asked, answer in zip(group, answers, strict=True):
            self.owed -= 1
            try:
                asked.told(answer)
            except Exception as error:  # noqa: BLE001 - a bug in one answer must not leave the others untold
                self._log("error", "an answer broke", {"error": f"{type(error).__name__}: {error}"})
