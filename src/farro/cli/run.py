"""`farro run`: one command or plan, now, here, with its output and its exit code. The work lives in services."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO

import click

from farro.cli.options import application, common, gate, open_root, operator_name
from farro.cli.submit_options import COMMAND, WithCommand, how_to_run, piped, submit_options
from farro.cli.terminal import ReaderGone, answer, complain, forget, say
from farro.host import worker_processes
from farro.host.clock import SystemClock
from farro.log.structured import grave_only
from farro.queue import follow as running
from farro.queue import submit
from farro.queue.agent_rules import contract_of
from farro.queue.follow import RunResult, Tail

if TYPE_CHECKING:
    from farro.config.settings import Settings
    from farro.execution.stop import Stop
    from farro.plans.model import Plan
    from farro.store.port import Store, Submission

_NAMES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "the terminal is gone"}


@click.command(cls=WithCommand, context_settings={"allow_interspersed_args": False})
@click.option(
    "--plan", "plan_file", metavar="FILE", help="Run a whole plan instead of a command; - reads standard input."
)
@click.option(
    "--id", "job_id", metavar="ID", help="The job's id, chosen by you. Again: its output and exit code again."
)
@how_to_run
@click.option("--no-input", is_flag=True, help="Leave standard input alone; else what is piped in is the command's.")
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
    no_input: bool,
    detach: bool,
    words: tuple[str, ...],
    root: str | None,
    as_json: bool,
) -> int:
    """Run a command as a job, here and now: its output as it comes, its exit code in the end.

    The job and its output are kept (`farro ls`, `farro show JOB`). Without a root upwards from here, jobs are kept in
    your own, under ~/.local/state/farro. What is piped in is read to its end and becomes the command's standard input;
    from the terminal it reads nothing. Ctrl-C ends it, and the job is killed; so does whoever reads the output and
    leaves, as `| head -1` does. Exit codes as a shell's: 127 not found, 126 not executable, 128 + n ended by signal n;
    124 timed out. With --json the output goes to stderr, and stdout is {"job_id", "status", "exit_code"}.
    """
    command = (*words, *(context.meta[COMMAND] or ()))
    if (plan_file is None) == (not command):
        raise click.UsageError("name one thing to run: a command, such as `farro run -- make test`, or --plan FILE")
    options = submit_options(tags=tags, priority=priority, timeout=timeout, cwd=cwd, env=env, typed=plan_file is None)
    store, settings = open_root(root, make=True)
    if plan_file is None:
        found = submit.command(store, command, role=role, job_id=job_id, options=options)
    else:
        from farro.cli.enqueue import name_of, read_plan

        document = read_plan(plan_file)
        found = submit.submissions(
            store,
            [document],
            role=role,
            job_id=job_id,
            source=name_of(plan_file),
            options=options,
            contract=contract_of(store.root, settings),
        )
    from farro.plans.forms import is_agent_prompt
    from farro.queue.admission import check_allowed_paths, enqueue_admitted

    if not no_input and plan_file != "-" and not is_agent_prompt(found[0].prompt):
        data = piped(settings.security.max_job_bytes)
        found = found if data is None else [submit.with_input(found[0], data)]
    try:
        if detach:
            made = enqueue_admitted(store, found, gate(settings, force=False))
            answer({"jobs": made}) if as_json else say("\n".join(made))
            return 0
        check_allowed_paths(found, gate(settings, force=False))
        return _followed(_patient(store, settings), settings, found[0], as_json)
    finally:
        store.close()


def _patient(store: Store, settings: Settings) -> Store:
    """From its claim on this is a worker: where a server holds the jobs it waits for it as long as a worker does. Who
    is only told that it does not answer, before anything has begun, is told soon."""
    if settings.store == "files":
        return store
    store.close()
    patient = application().open_store(
        store.root, settings, log=grave_only(sys.stderr), actor=operator_name("cli"), brief=True, patient=True
    )
    click.get_current_context().call_on_close(patient.close)
    return patient


def _followed(store: Store, settings: Settings, submission: Submission, as_json: bool) -> int:
    from farro.execution.stop import Stop
    from farro.plans.graph import order
    from farro.plans.loading import load_data
    from farro.queue.foreground import Foreground

    clock = SystemClock()
    plan = load_data(submission.prompt, "prompt.json")
    sinks = (_Sink(to_stderr=as_json), _Sink(to_stderr=True))
    tail = Tail([step.id for step in order(plan)], *sinks)
    stop = Stop(clock)
    caught = _on_signals(stop)
    app = application()
    # Always inline: a person waits for this one command; and inside a job it must not wait for that job's own place.
    runner = app.runner(store.root, settings, kind="inline", clock=clock)
    performer = app.performer(store.root, settings, runner, clock)
    worker_processes.enclose()
    try:
        ended = Foreground(store=store, performer=performer, stop=stop).run(submission, tail)
        if ended is None:
            assert submission.job_id is not None
            ended = running.follow(store, store.root, submission.job_id, tail, lambda pause_s: _waited(stop, pause_s))
    finally:
        tail.close()
        worker_processes.release()
    if caught:
        complain(f"{_NAMES[caught[0]]}; {'it goes on elsewhere' if ended is None else f'the job is {ended.status}'}")
    code = _told(ended, 128 + caught[0] if caught else None, plan, as_json)
    for sink in (sink for sink in sinks if sink.trouble is not None):
        where = "" if ended is None else f"; `farro logs {ended.job_id}` has all of it"
        complain(f"what it said could not be written to {sink.name}: {sink.trouble}{where}")
        code = code or 1
    return code


def _told(ended: RunResult | None, signalled: int | None, plan: Plan, as_json: bool) -> int:
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


class _Sink:
    """Where a stream of the command goes. Whoever has left ends the command. What cannot be written there for another
    reason (a full disk, a terminal that is gone) is told in the end: the command goes on, and its job keeps all of it.
    """

    def __init__(self, *, to_stderr: bool) -> None:
        self.name = "stderr" if to_stderr else "stdout"
        self.trouble: str | None = None
        stream = sys.stderr if to_stderr else sys.stdout
        # None: closed by whoever started us.
        self._binary: BinaryIO | None = getattr(stream, "buffer", None)

    def __call__(self, data: bytes) -> None:
        if self._binary is None:
            return
        try:
            self._binary.write(data)
            self._binary.flush()
        except BrokenPipeError:
            raise ReaderGone("nobody reads its output any more") from None
        except OSError as error:
            self.trouble, self._binary = error.strerror or str(error), None
            forget(self.name)


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
