"""Of several idle slots one waits for the queue; the others are called when it has its hands full."""

from __future__ import annotations

import contextlib
import threading

from farro.worker.idle_wait import IdleWait

WAIT_S = 60.0


class Watch:
    """A look at the queue that ends when somebody says so."""

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


def test_one_looks_and_the_others_are_called_one_by_one() -> None:
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
    assert idle_wait._resting == 1, "one call, one that wakes"
    first.end.set()
    looking.join(WAIT_S)
    assert seen == ["seen"]
    idle_wait.relieve()
    for thread in threads:
        thread.join(WAIT_S)
    assert answers == [None, None]
    assert not never.begun.is_set()


def test_whoever_comes_when_nobody_looks_looks() -> None:
    idle_wait = IdleWait()
    idle_wait.relieve()  # nobody rests: nothing is left of it
    assert idle_wait.wait(lambda: "first", WAIT_S) == "first"
    assert idle_wait.wait(lambda: "second", WAIT_S) == "second"


def test_one_that_nobody_calls_looks_by_itself_when_its_patience_is_over() -> None:
    idle_wait, watch = IdleWait(), Watch()
    looking = threading.Thread(target=lambda: idle_wait.wait(watch.look, WAIT_S))
    looking.start()
    assert watch.begun.wait(WAIT_S)
    assert idle_wait.wait(lambda: "never", 0.01) is None
    watch.end.set()
    looking.join(WAIT_S)


def test_a_look_that_fails_leaves_the_place_to_the_next() -> None:
    idle_wait = IdleWait()
    with contextlib.suppress(ZeroDivisionError):
        idle_wait.wait(lambda: 1 // 0, WAIT_S)
    assert idle_wait.wait(lambda: "next", WAIT_S) == "next"
