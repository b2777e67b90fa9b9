"""One of several idle slots watches the queue; it wakes another when it becomes busy."""

from __future__ import annotations

import contextlib
import threading

from farro.worker.batching import IdleWait

WAIT_S = 60.0


class Watch:
    """A watch of the queue that ends when the test sets `end`."""

    def __init__(self) -> None:
        self.begun, self.end = threading.Event(), threading.Event()

    def look(self) -> str:
        self.begun.set()
        assert self.end.wait(WAIT_S)
        return "seen"


def resting(idle_wait: IdleWait, count: int, answers: list[str | None], never: Watch) -> list[threading.Thread]:
    def rest() -> None:
        answers.append(idle_wait.wait(never.look, WAIT_S))

    threads = [threading.Thread(target=rest) for _ in range(count)]
    for thread in threads:
        thread.start()
    wait = threading.Event()
    while idle_wait._resting < count:
        wait.wait(0.001)
    return threads


def test_one_slot_watches_and_each_call_wakes_one_other() -> None:
    idle_wait, first, never = IdleWait(), Watch(), Watch()
    seen: list[str | None] = []
    looking = threading.Thread(target=lambda: seen.append(idle_wait.wait(first.look, WAIT_S)))
    looking.start()
    assert first.begun.wait(WAIT_S)
    answers: list[str | None] = []
    threads = resting(idle_wait, 2, answers, never)
    idle_wait.relieve()
    while not answers:
        pass
    assert idle_wait._resting == 1, "one call wakes one slot"
    first.end.set()
    looking.join(WAIT_S)
    assert seen == ["seen"]
    idle_wait.relieve()
    for thread in threads:
        thread.join(WAIT_S)
    assert answers == [None, None]
    assert not never.begun.is_set()


def test_a_slot_watches_the_queue_if_no_other_does() -> None:
    idle_wait = IdleWait()
    idle_wait.relieve()  # no slot rests: the call has no effect later
    assert idle_wait.wait(lambda: "first", WAIT_S) == "first"
    assert idle_wait.wait(lambda: "second", WAIT_S) == "second"


def test_a_resting_slot_returns_after_its_timeout() -> None:
    idle_wait, watch = IdleWait(), Watch()
    looking = threading.Thread(target=lambda: idle_wait.wait(watch.look, WAIT_S))
    looking.start()
    assert watch.begun.wait(WAIT_S)
    assert idle_wait.wait(lambda: "never", 0.01) is None
    watch.end.set()
    looking.join(WAIT_S)


def test_after_a_failed_watch_the_next_slot_watches() -> None:
    idle_wait = IdleWait()
    with contextlib.suppress(ZeroDivisionError):
        idle_wait.wait(lambda: 1 // 0, WAIT_S)
    assert idle_wait.wait(lambda: "next", WAIT_S) == "next"
