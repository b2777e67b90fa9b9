"""`farro run`: one command or plan, now, here, with its output and its exit code. The work lives in services."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO

import click

from farro import app, config
from farro.cli.command_line import COMMAND, WithCommand, how_to_run, wishes
from farro.cli.options import common, gate, open_root
from farro.cli.terminal import ReaderGone, answer, complain, say
from farro.operations import run as running
from farro.operations import submit
from farro.operations.run import Ended, Tail
from farro.system import enclosure
from farro.system.clock import SystemClock

if TYPE_CHECKING:
    from farro.execution.stop import Stop
    from farro.plans.model import Plan
    from farro.ports.store import Store, Submission
    from farro.settings import Settings

_NAMES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "the terminal is gone"}


@click.command(cls=WithCommand, context_settings={"allow_interspersed_args": False})
@click.option(
    "--plan", "plan_file", metavar="FILE", help="Run a whole plan instead of a command; - reads standard input."
)
@click.option(
    "--id", "job_id", metavar="ID", help="The job's id, chosen by you. Again: its output and exit code again."
)
@how_to_run
@click.option("--detach", is_flag=True, help="Do not wait: queue it and print its id, as `farro enqueue` does.")
@click.argument("words", nargs=-1, metavar="[--] COMMAND [ARGS]...", type=click.UNPROCESSED)
@common
@click.pass_context
def run(
    context: click.Context,
    plan_file: str | None,
    job_id: str | None,
    role: str | None,
    tags: tuple[str, ...],
    priority: str | None,
    timeout: str | None,
    cwd: str | None,
    env: tuple[str, ...],
    detach: bool,
    words: tuple[str, ...],
    root: str | None,
    as_json: bool,
) -> int:
    """Run a command as a job, here and now: its output as it comes, its exit code in the end.

    The job and its output are kept (`farro ls`, `farro show JOB`). Without a root upwards from here, jobs are kept in
    your own, under ~/.local/state/farro. The command reads nothing from the terminal. Ctrl-C ends it, and the job is
    killed. Exit codes as a shell's: 127 not found, 126 not executable, 128 + n ended by signal n; 124 timed out. With
    --json the output goes to stderr, and stdout is {"job_id", "status", "exit_code"}.
    """
    command = (*words, *(context.meta[COMMAND] or ()))
    if (plan_file is None) == (not command):
        raise click.UsageError("name one thing to run: a command, such as `farro run -- make test`, or --plan FILE")
    wished = wishes(tags=tags, priority=priority, timeout=timeout, cwd=cwd, env=env, typed=plan_file is None)
    store, settings = open_root(root, make=True)
    if plan_file is None:
        found = submit.command(store, command, role=role, job_id=job_id, wishes=wished)
    else:
        from farro.cli.submit import name_of, read_plan

        document = read_plan(plan_file)
        found = submit.submissions(
            store,
            [document],
            role=role,
            job_id=job_id,
            source=name_of(plan_file),
            wishes=wished,
            contract=config.contract(store.root, settings),
        )
    from farro.operations.admission import admitted, check_paths

    try:
        if detach:
            made = admitted(store, found, gate(settings, force=False))
            answer({"jobs": made}) if as_json else say("\n".join(made))
            return 0
        check_paths(found, gate(settings, force=False))
        return _followed(store, settings, found[0], as_json)
    finally:
        store.close()


def _followed(store: Store, settings: Settings, submission: Submission, as_json: bool) -> int:
    from farro.execution.stop import Stop
    from farro.plans.graph import order
    from farro.plans.loading import load_data
    from farro.services.foreground import Foreground

    clock = SystemClock()
    plan = load_data(submission.prompt, "prompt.json")
    tail = Tail([step.id for step in order(plan)], _sink(as_json), _sink(True))
    stop = Stop(clock)
    caught = _on_signals(stop)
    # Always inline: a person waits for this one command; and inside a job it must not wait for that job's own place.
    runner = app.runner(store.root, settings, kind="inline", clock=clock)
    performer = app.performer(store.root, settings, runner, clock)
    enclosure.enclose()
    try:
        ended = Foreground(store=store, performer=performer, stop=stop).run(submission, tail)
        if ended is None:
            assert submission.job_id is not None
            ended = running.follow(store, store.root, submission.job_id, tail, lambda pause_s: _waited(stop, pause_s))
    finally:
        tail.close()
        enclosure.release()
    if caught:
        complain(f"{_NAMES[caught[0]]}; {'it goes on elsewhere' if ended is None else f'the job is {ended.status}'}")
    return _told(ended, 128 + caught[0] if caught else None, plan, as_json)


def _told(ended: Ended | None, signalled: int | None, plan: Plan, as_json: bool) -> int:
    if ended is None:
        return signalled or 1
    code = ended.exit_code if signalled is None else signalled
    first = plan.steps[0]
    there = os.sep in first.command and os.path.exists(os.path.join(first.cwd or "", first.command))
    if code == running.NOT_FOUND and there:
        code = running.NOT_EXECUTABLE
    if ended.message and signalled is None:
        message = ended.message
        if len(plan.steps) == 1:  # its only step is no news
            message = message.removeprefix("steps[0]: ").removeprefix("step 1: ")
        complain(f"{ended.job_id}: {message}")
    if as_json:
        answer({"job_id": ended.job_id, "status": ended.status, "exit_code": code})
    return code


def _sink(to_stderr: bool) -> Callable[[bytes], None]:
    stream = sys.stderr if to_stderr else sys.stdout
    binary: BinaryIO | None = getattr(stream, "buffer", None)

    def write(data: bytes) -> None:
        if binary is None:
            return  # closed by whoever started us: kept in the job's files all the same
        try:
            binary.write(data)
            binary.flush()
        except BrokenPipeError:
            raise ReaderGone from None

    return write


def _on_signals(stop: Stop) -> list[signal.Signals]:
    """The first signal ends the step: SIGTERM to its tree at once, SIGKILL two seconds later."""
    caught: list[signal.Signals] = []

    def handle(number: int, frame: FrameType | None) -> None:
        caught.append(signal.Signals(number))
        stop.request(0.0)

    for number in _NAMES:
        signal.signal(number, handle)
    return caught


def _waited(stop: Stop, pause_s: float) -> bool:
    SystemClock().sleep(pause_s)
    return stop.requested
