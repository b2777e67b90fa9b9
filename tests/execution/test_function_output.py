"""Capture the output of functions inside the worker: each prints to its own step, other threads to the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import sys
import threading
from collections.abc import Callable

import pytest

from farro.execution.function_output import redirected


def with_terminal(test: Callable[[io.StringIO], None]) -> Callable[[], None]:
    """The test has what the worker itself has for stdout and stderr. No fixture: pytest puts its own there after it."""

    def run() -> None:
        stream = io.StringIO()
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            test(stream)
            assert sys.stdout is sys.stderr is stream, "not put back"

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@with_terminal
def test_each_thread_prints_to_its_own_step(terminal: io.StringIO) -> None:
    steps = [io.BytesIO() for _ in range(8)]
    together = threading.Barrier(len(steps) + 1)

    def function(number: int) -> None:
        with redirected(steps[number]):
            together.wait()
            for line in range(50):
                print(number, line)
            print("bad", file=sys.stderr)
            together.wait()

    threads = [threading.Thread(target=function, args=(number,)) for number in range(len(steps))]
    for thread in threads:
        thread.start()
    together.wait()
    print("mine")
    together.wait()
    for thread in threads:
        thread.join()
    for number, step in enumerate(steps):
        assert step.getvalue().decode() == "".join(f"{number} {line}\n" for line in range(50)) + "bad\n"
    assert terminal.getvalue() == "mine\n"


@with_terminal
def test_asyncio_tasks_print_to_their_step_and_plain_threads_do_not(terminal: io.StringIO) -> None:
    step = io.BytesIO()

    async def work() -> None:
        print("task")
        await asyncio.to_thread(print, "thread of asyncio")

    with redirected(step):
        asyncio.run(work())
        thread = threading.Thread(target=print, args=("plain thread",))
        thread.start()
        thread.join()
    assert step.getvalue() == b"task\nthread of asyncio\n"
    assert terminal.getvalue() == "plain thread\n"


@with_terminal
def test_a_log_handler_created_in_a_step_works_outside_too(terminal: io.StringIO) -> None:
    step, other = io.BytesIO(), io.BytesIO()
    with redirected(step):
        handler = logging.StreamHandler()
        logger = logging.Logger("x")
        logger.addHandler(handler)
        logger.error("first")
    logger.error("outside")
    with redirected(other):
        logger.error("second")
    step.close()
    assert (other.getvalue(), terminal.getvalue()) == (b"second\n", "outside\n")


@with_terminal
def test_the_captured_stream_behaves_like_a_text_stream(terminal: io.StringIO) -> None:
    step = io.BytesIO()
    with redirected(step):
        print("lone \ud800", end="")
        sys.stdout.buffer.write(b" bytes")
        sys.stdout.flush()
        assert (sys.stdout.encoding, sys.stdout.isatty(), sys.stdout.writable()) == ("utf-8", False, True)
        sys.stdout.close()
        with contextlib.redirect_stdout(io.StringIO()) as captured:
            print("captured")
        sys.stderr.write("careful")
    assert step.getvalue() == b"lone \\ud800 bytescareful"
    assert captured.getvalue() == "captured\n"
    assert terminal.getvalue() == ""


@with_terminal
def test_output_after_the_end_of_a_step_goes_to_the_worker(terminal: io.StringIO) -> None:
    step = io.BytesIO()
    with redirected(step):
        step.close()
        print("late")
        sys.stdout.flush()
    assert terminal.getvalue() == "late\n"


def test_a_worker_without_a_stdout_captures_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    step = io.BytesIO()
    with redirected(step):
        print("said")
        kept = sys.stdout
    assert sys.stdout is None
    assert kept.write("to nobody") == 9
    kept.flush()
    assert step.getvalue() == b"said\n"


def test_each_thread_reads_its_own_step_and_other_threads_the_workers_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = io.StringIO("the worker's\n")
    monkeypatch.setattr(sys, "stdin", workers)
    read: dict[str, list[str]] = {}

    def function(name: str) -> None:
        with redirected(io.BytesIO(), lambda: io.BytesIO(f"{name}, 1\n{name}, 2\n{name}, 3\n".encode())):
            read[name] = [input(), *sys.stdin]

    threads = [threading.Thread(target=function, args=(name,)) for name in ("a", "b")]
    with redirected(io.BytesIO()):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sys.stdin.read() == "", "this one has no input"
        outsider = threading.Thread(target=lambda: read.update(outside=[sys.stdin.readline()]))
        outsider.start()
        outsider.join()
    assert read == {
        "a": ["a, 1", "a, 2\n", "a, 3\n"],
        "b": ["b, 1", "b, 2\n", "b, 3\n"],
        "outside": ["the worker's\n"],
    }
    assert sys.stdin is workers, "not put back"
