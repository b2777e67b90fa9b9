"""`farro run`: run one command or plan here and now, with its output and its exit code."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO

import click

from farro.cli.options import application, common, gate, open_root, operator_name, policy
from farro.cli.submit_options import COMMAND, JobOptions, WithCommand, job_options, piped_input
from farro.cli.terminal import ReaderGone, answer, complain, forget, say
from farro.host import signals, worker_processes
from farro.host.clock import SystemClock
from farro.lazy_dataclass import replace
from farro.log.structured import grave_only
from farro.plans.forms import is_agent_prompt
from farro.queue import foreground as running
from farro.queue import submit
from farro.queue.admission import check_allowed_paths
from farro.queue.foreground import RunResult, Tail

if TYPE_CHECKING:
    from farro.config.settings import Settings
    from farro.execution.stop import Stop
    from farro.plans.model import Plan
    from farro.store.port import Store, Submission

_NAMES = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "the terminal is gone"}


@click.command(cls=WithCommand, context_settings={"allow_interspersed_args": False})
@click.option("--plan", "plan_file", metavar="FILE", help="Run a plan instead of a command; - reads standard input.")
@click.option(
    "--id", "job_id", metavar="ID", help="Choose the job's id. Used again, it repeats that job's output and exit code."
)
@job_options
@click.option("--no-input", is_flag=True, help="Do not hand piped input to the command.")
@click.option("--detach", is_flag=True, help="Do not wait: queue it and print its id, as `farro enqueue` does.")
@click.argument("words", nargs=-1, metavar="[--] COMMAND [ARGS]...", type=click.UNPROCESSED)
@common
@click.pass_context
def run(
    context: click.Context,
    plan_file: str | None,
    job_id: str | None,
    job: JobOptions,
    no_input: bool,
    detach: bool,
    words: tuple[str, ...],
    root: str | None,
    as_json: bool,
) -> int:
    """Run a command as a job, here and now. Prints its output as it comes and exits with its exit code.

    The job and its output are kept (`farro ls`, `farro show JOB`). Without a root upwards from here, jobs are kept in
    your own, under ~/.local/state/farro. Piped input is read to its end and becomes the command's standard input; from
    the terminal it reads nothing. Ctrl-C kills the job, and so does a reader of its output that ends, as `| head -1`
    does. Exit codes as a shell's: 127 not found, 126 not executable, 128 + n ended by signal n; 124 timed out. With
    --json the output goes to stderr, and stdout is {"job_id", "status", "exit_code"}.
    """
    command = (*words, *(context.meta[COMMAND] or ()))
    if (plan_file is None) == (not command):
        raise click.UsageError("name one thing to run: a command, such as `farro run -- make test`, or --plan FILE")
    request = job.request(job_id=job_id)
    store, settings = open_root(root, make=True)
    if plan_file is None:
        request = replace(request, command=command)
    else:
        from farro.cli.plan_files import read_plan

        request = replace(request, document=read_plan(plan_file))
    rules = policy(store, settings)
    (submission,) = submit.prepare(store, [request], rules)
    job.check([submission.prompt], settings)
    if not no_input and plan_file != "-" and not is_agent_prompt(submission.prompt):
        data = piped_input(settings.security.max_job_bytes)
        submission = submission if data is None else submit.with_input(submission, data)
    try:
        if detach:
            (made,) = submit.submit(store, [submission], rules)
            answer({"jobs": [made.id]}) if as_json else say(made.id)
            return 0
        check_allowed_paths([submission], gate(settings, force=False))
        return _run_and_follow(_patient(store, settings), settings, submission, as_json)
    finally:
        store.close()


def _patient(store: Store, settings: Settings) -> Store:
    """Open a store on a server anew, to ask it for as long as a worker does: from its claim on this command is a
    worker. Before that, a server that does not answer is reported after a few seconds."""
    if "://" not in settings.store:
        return store
    store.close()
    patient = application().open_store(
        store.root, settings, log=grave_only(sys.stderr), actor=operator_name("cli"), brief=True, patient=True
    )
    click.get_current_context().call_on_close(patient.close)
    return patient


def _run_and_follow(store: Store, settings: Settings, submission: Submission, as_json: bool) -> int:
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
    # Always inline: a person waits for this one command; and inside a job it must not wait for that job's own slot.
    runner = app.runner(store.root, settings, kind="inline", clock=clock)
    performer = app.performer(store.root, settings, runner, clock)
    worker_processes.enclose()
    try:
        ended = Foreground(store=store, performer=performer, stop=stop).run(submission, tail)
        if ended is None:
            assert submission.job_id is not None
            ended = running.follow(store, submission.job_id, tail, lambda pause_s: _waited(stop, pause_s))
    finally:
        tail.close()
        worker_processes.release()
    if caught:
        complain(
            f"{_NAMES[caught[0].name]}; {'it goes on elsewhere' if ended is None else f'the job is {ended.status}'}"
        )
    code = _report(ended, 128 + caught[0] if caught else None, plan, as_json)
    for sink in (sink for sink in sinks if sink.trouble is not None):
        where = "" if ended is None else f"; `farro logs {ended.job_id}` has all of it"
        complain(f"what it said could not be written to {sink.name}: {sink.trouble}{where}")
        code = code or 1
    return code


def _report(ended: RunResult | None, signalled: int | None, plan: Plan, as_json: bool) -> int:
    """Say how it ended; return the exit code."""
    if ended is None:
        return signalled or 1
    code = ended.exit_code if signalled is None else signalled
    first = plan.steps[0]
    there = os.sep in first.command and os.path.exists(os.path.join(first.cwd or "", first.command))
    if code == running.NOT_FOUND and there:
        code = running.NOT_EXECUTABLE
    if ended.message and signalled is None:
        message = ended.message
        if len(plan.steps) == 1:  # then naming the step says nothing
            message = message.removeprefix("steps[0]: ").removeprefix("step 1: ")
        complain(f"{ended.job_id}: {message}")
    if as_json:
        answer({"job_id": ended.job_id, "status": ended.status, "exit_code": code})
    return code


class _Sink:
    """Write a stream of the command to this program's stdout or stderr.

    A reader that has gone ends the command. Any other failure (a full disk, a closed terminal) is reported at the end:
    the command goes on, and its job keeps the whole output.
    """

    def __init__(self, *, to_stderr: bool) -> None:
        self.name = "stderr" if to_stderr else "stdout"
        self.trouble: str | None = None
        stream = sys.stderr if to_stderr else sys.stdout
        # None: it was closed before this program started.
        self._binary: BinaryIO | None = getattr(stream, "buffer", None)

    def __call__(self, data: bytes) -> None:
        if self._binary is None:
            return
        try:
            self._binary.write(data)
            self._binary.flush()
        except BrokenPipeError:
            raise ReaderGone("its output has no reader any more") from None
        except OSError as error:
            self.trouble, self._binary = error.strerror or str(error), None
            forget(self.name)


def _on_signals(stop: Stop) -> list[signal.Signals]:
    """Let a signal end the step: SIGTERM to its process tree at once, SIGKILL two seconds later. The signals that come
    are added to the returned list."""
    caught: list[signal.Signals] = []

    def handle(number: int, frame: FrameType | None) -> None:
        caught.append(signal.Signals(number))
        stop.request(0.0)

    for number in signals.ENDING:
        signal.signal(number, handle)
    return caught


def _waited(stop: Stop, pause_s: float) -> bool:
    SystemClock().sleep(pause_s)
    return stop.requested
