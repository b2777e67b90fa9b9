"""Turns: one thread works at a time, a waiting thread lets the others work, and no turn is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from farro.host import fs
from farro.host.thread_turns import RESTING, Turns


def together(*works: Callable[[], None]) -> None:
    """Run each in its own thread; none may hang."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"


def test_one_works_at_a_time_and_others_while_it_rests() -> None:
    turns = Turns()
    working = 0
    most = 0
    met = threading.Barrier(4)

    def work() -> None:
        nonlocal working, most
        for _ in range(50):
            with turns.turn():
                working += 1
                most = max(most, working)
                working -= 1
                with RESTING:
                    met.wait(20)  # passed only if all four threads rest at once

    together(work, work, work, work)
    assert most == 1


def test_a_turn_is_had_again_after_a_rest_that_failed() -> None:
    turns = Turns()

    class Trouble(BaseException):
        pass

    def fails() -> None:
        with pytest.raises(Trouble), turns.turn(), RESTING, RESTING:
            raise Trouble

    def looks() -> None:
        for _ in range(100):
            with turns.turn(), RESTING:
                pass

    fails()
    together(looks, looks)
    assert not turns._lock.locked()


def test_a_thread_without_a_turn_rests_without_effect() -> None:
    with RESTING, RESTING:
        pass
    turns = Turns()
    with turns.turn(), RESTING:
        together(lambda: fs.sync_all(["/"]))  # the rest of another thread does not affect this one
    assert not turns._lock.locked()
