"""Check that a coroutine on the providers' event loop ends with its caller, in every process."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from agents.providers.conftest import Open
from fake_providers import says
from farro.agents.providers import event_loop
from farro.agents.providers.port import SLICE_S
from farro.testing.provider import request


class Ended(BaseException):
    pass


def send(thread: threading.Thread) -> None:
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Ended))


def started(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    come: list[Any] = []

    def run() -> None:
        try:
            come.append(work())
        except BaseException as error:
            come.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, come


def test_the_result_of_the_coroutine_is_returned_or_raised() -> None:
    async def seven() -> int:
        await asyncio.sleep(0)
        return 7

    async def broken() -> int:
        raise KeyError("nope")

    assert event_loop.run(seven, 60) == 7
    with pytest.raises(KeyError, match="nope"):
        event_loop.run(broken, 60)


def test_all_calls_of_a_process_share_one_thread() -> None:
    async def where() -> tuple[int, bool]:
        return threading.get_ident(), threading.current_thread().daemon

    seen = set()
    threads = [started(lambda: seen.add(event_loop.run(where, 60)))[0] for _ in range(8)]
    for thread in threads:
        thread.join(60)
    ((ident, daemon),) = seen
    assert daemon
    assert ident != threading.get_ident()


def test_a_call_that_times_out_has_ended() -> None:
    ended = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    with pytest.raises(event_loop.OutOfTime):
        event_loop.run(hang, 0.01)
    assert ended.is_set()


def test_an_exception_in_the_calling_thread_ends_the_call_first() -> None:
    began, ended = threading.Event(), threading.Event()

    async def hang() -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    thread, come = started(lambda: event_loop.run(hang, 3600))
    assert began.wait(60)
    send(thread)
    thread.join(60)
    assert [type(one) for one in come] == [Ended]
    assert ended.is_set()


def test_a_call_that_ignores_its_cancellation_does_not_block_the_caller() -> None:
    began, let_go = threading.Event(), threading.Event()

    async def stubborn() -> None:
        began.set()
        while not let_go.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    thread, come = started(lambda: event_loop.run(stubborn, 3600))
    assert began.wait(60)
    send(thread)
    thread.join(60)
    let_go.set()
    assert [type(one) for one in come] == [Ended]
    assert event_loop.ENDING_S + SLICE_S < 2.0  # which a kill has


def test_an_exception_before_the_call_started_ends_it_too() -> None:
    """The exception is raised at any line of `run`: nothing may stay on the loop."""
    under_way: set[int] = set()

    async def hang(number: int) -> None:
        under_way.add(number)
        try:
            await asyncio.sleep(3600)
        finally:
            under_way.discard(number)

    for number in range(30):
        thread, come = started(lambda number=number: event_loop.run(lambda: hang(number), 3600))
        send(thread)
        thread.join(60)
        assert [type(one) for one in come] in ([Ended], [])  # []: it hit the thread's own first line

    async def pause() -> None:
        await asyncio.sleep(0)

    event_loop.run(pause, 60)
    assert not under_way


def test_the_calling_thread_is_called_back_at_every_slice_and_after_the_end() -> None:
    said: list[str] = []

    async def nothing() -> None:
        said.append("done")

    event_loop.run(nothing, 60, while_waiting=lambda: said.append("along"))
    assert said[-2:] == ["done", "along"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_its_own_loop_and_connections(talk: Open) -> None:
    provider, server = talk("openai", says())
    provider.answer(request(1))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if provider.answer(request(2)).text == "forty-two" else 2
            provider.close()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert provider.answer(request(3)).text == "forty-two"
    assert (len(server.asked), server.connections) == (3, 2)
