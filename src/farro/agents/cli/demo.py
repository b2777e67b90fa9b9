"""`farro demo`: a task from idea to documents, offline, watched live.

The daemons are real: those that `farro start` starts, in a scratch repository, ended with the demo.
"""

from __future__ import annotations

import contextlib
import os
import shutil  # noqa: TID251 - `which` only reads
import subprocess
import sys
import tempfile  # noqa: TID251 - a private folder outside of every root
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import click

from farro.agents.demo import events, scratch_repository
from farro.agents.demo.events import DemoEvent
from farro.agents.demo.scratch_repository import JOB, TestRun
from farro.cli.options import application, json_option, program, root_option
from farro.cli.terminal import answer, at_terminal, note, say
from farro.config import reader
from farro.errors import FarroError, InputError
from farro.host import fs, signals, trees
from farro.host.clock import Clock, SystemClock
from farro.lazy_dataclass import dataclass, field
from farro.store.port import JobView
from farro.worker.supervisor import ServiceCommands, default_services

_ROLES = ("Manager", *scratch_repository.ROLES)


@click.command()
@click.option("--keep", is_flag=True, help="Leave the repository to explore, and say how.")
@click.option(
    "--plans", is_flag=True, help="The other demo: plans of commands, and a worker that is killed. Needs bash."
)
@root_option("Make it in this folder, which must be empty or missing, and leave it; else in a temporary one.")
@json_option("Answer as JSON, at the end.")
def demo(keep: bool, plans: bool, root: str | None, as_json: bool) -> int:
    """A task from idea to documents, in seconds, without a network: in a scratch git repository with a failing test an
    Architect plans, an Engineer's program fixes the code inside its sandbox, a Reviewer runs the tests and asks for a
    change, a Doc Writer writes the changelog, and the Manager hands it from one to the next.

    Manager, watchdog and workers are real processes, ended with the demo, also by Ctrl-C. Exit code 0: the task was
    completed and the repository's tests pass.
    """
    with signals.terminated_politely(), _place(root, keep) as path:
        if plans:
            return _plans(path, keep=keep or root is not None, as_json=as_json)
        return _task(path, kept=keep or root is not None, as_json=as_json)


@contextlib.contextmanager
def _place(root: str | None, keep: bool) -> Iterator[str]:
    if root is not None:
        path = os.path.abspath(root)
        if os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
            raise InputError(f"{path} is not an empty folder; name one that is missing or empty, or leave out --root")
        if not os.path.isdir(path):
            fs.mkdir(path)
        yield path
        return
    path = tempfile.mkdtemp(prefix="farro-demo-")
    try:
        yield path
    finally:
        if not keep:
            trees.remove_tree(path)


# --- the task ------------------------------------------------------------------------------------------------------


@dataclass
class DemoProgress:
    """The events so far, for the live view and the summary."""

    events: list[DemoEvent] = field(default_factory=list)
    state: dict[str, str] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    usd: dict[str, Decimal] = field(default_factory=dict)

    def take(self, event: DemoEvent) -> None:
        self.events.append(event)
        role = event.role
        if event.what == "said":
            self.turns[role] = self.turns.get(role, 0) + 1
            self.usd[role] = self.usd.get(role, Decimal(0)) + (event.usd or Decimal(0))
        self.state[role] = {"said": "waits", "decided": "waits", "ended": "waits", "lost": "died"}.get(
            event.what, "works"
        )


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demo's task came to."""

    view: JobView
    progress: DemoProgress
    before: TestRun
    after: TestRun
    diff: str
    seconds: float

    @property
    def good(self) -> bool:
        return str(self.view.status) == "succeeded" and self.after.passed and not self.before.passed


def _task(path: str, *, kept: bool, as_json: bool) -> int:
    clock = SystemClock()
    began_s = clock.monotonic_s()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FARRO_")}
    python = os.path.abspath(sys.executable)
    scratch_repository.make(path, python=python, environ=environ)
    before = scratch_repository.run_tests(path, python=python, environ=environ)
    if not as_json:
        _opening(path, before)
    progress = DemoProgress()
    view = _run_task(path, environ, clock, progress, as_json=as_json)
    result = DemoResult(
        view=view,
        progress=progress,
        before=before,
        after=scratch_repository.run_tests(path, python=python, environ=environ),
        diff=scratch_repository.diff(path, environ),
        seconds=clock.monotonic_s() - began_s,
    )
    if as_json:
        answer(_data(path if kept else None, result))
    else:
        _ending(path, kept, result)
    return 0 if result.good else 1


def _run_task(path: str, environ: Mapping[str, str], clock: Clock, progress: DemoProgress, *, as_json: bool) -> JobView:
    """Start the daemons, enqueue the task, show what happens until it has ended, and stop the daemons."""
    app = application()
    store = app.open_store(path, reader.load(path), actor="demo")
    services = ServiceCommands(
        root=path,
        runtime=app.runtime(path),
        clock=clock,
        supervisor=(*program(), "supervisor", "--root", path),
        env=environ,
    )
    roles, known = tuple(scratch_repository.ROLES), dict[str, int]()

    def restarted() -> list[str]:
        """Return the services that the supervisor restarted since the last call."""
        before = known.copy()
        known.update({one.name: one.restarts for one in services.processes()})
        return [name for name, restarts in known.items() if restarts > before.get(name, 0)]

    try:
        wanted = default_services(path, program=program(), roles=roles, workers=1, slots=1)
        failed = [one for one in services.up(wanted) if one.what == "failed"]
        if failed:
            raise FarroError(f"{failed[0].name} ended at once: {failed[0].said}")
        _enqueue(path)
        observer = events.JobObserver(store=store, job_id=JOB, clock=clock)
        found = events.follow(observer, restarted=restarted)
        if not as_json and at_terminal():
            _live(found, progress)
        else:
            for event in found:
                progress.take(event)
                if not as_json:
                    say(_line(event))
        view = store.find(JOB)
    finally:
        services.down()
        store.close()
    if view is None:
        raise FarroError(f"the job {JOB} is not there any more; was {path} pruned?")
    return view


def _enqueue(path: str) -> None:
    """Enqueue as a person does: with the program and its checks."""
    done = subprocess.run(
        [*program(), "enqueue", "--prompt-json", f"{path}/prompt.json", "--id", JOB, "--root", path],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise FarroError(f"the task could not be queued: {done.stderr.strip()}")


def _opening(path: str, before: TestRun) -> None:
    from farro.sandbox.levels import Sandbox

    level = Sandbox.available("auto").level
    kept = {"A": "bubblewrap", "B": "Landlock"}.get(level)
    say(f"A scratch repository: {path}")
    say(f"Its tests: {before.said}")
    say("Programs of roles run in the sandbox" + (f" ({kept})." if kept else ": there is none here, and they do not."))
    say("Starting a manager, a watchdog and a worker for each role …")
    say("")


# --- as it happens ---------------------------------------------------------------------------------------------------


def _line(event: DemoEvent) -> str:
    text = " ".join(event.text.split())
    cost = f"  ({event.usd} USD)" if event.usd is not None else ""
    return f"{event.at_s:5.1f}s  {event.role:<15} {'' if event.what == 'works' else event.what + ': '}{text}{cost}"


def _live(found: Iterator[DemoEvent], progress: DemoProgress) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    colours = {"works": "bold green", "waits": "dim", "died": "bold red"}

    def picture() -> Group:
        board = Table(box=None, padding=(0, 2, 0, 0))
        for head, right in (("ROLE", False), ("", False), ("TURNS", True), ("USD", True)):
            board.add_column(head, justify="right" if right else "left", header_style="dim")
        for role in _ROLES:
            state = progress.state.get(role, "waits")
            turns, usd = progress.turns.get(role), progress.usd.get(role)
            board.add_row(
                Text(role), Text(state, style=colours.get(state, "")), str(turns or ""), "" if usd is None else str(usd)
            )
        return Group(Text(""), board)

    with Live(picture(), console=console, refresh_per_second=8, transient=True) as live:
        for event in found:
            progress.take(event)
            from farro.log.structured import printable

            style = {"said": "cyan", "decided": "yellow", "ended": "bold green", "lost": "bold red"}.get(
                event.what, "dim"
            )
            console.print(Text(printable(_line(event)), style=style))
            live.update(picture())


# --- at the end ------------------------------------------------------------------------------------------------------


def _ending(path: str, kept: bool, result: DemoResult) -> None:
    view, progress = result.view, result.progress
    say(f"\nThe way of the task {JOB} ({len(view.lifecycle.hops)} hops, each decided once)")
    for hop in view.lifecycle.hops:
        say(f"  {hop.at[11:19]}  {hop.role:<15} → {hop.to:<36} {events.first_line(hop)}")
    say("\nWhat was changed (git diff)")
    say("\n".join(f"  {line}" for line in result.diff.splitlines()))
    say("\nWhat it cost, as the programs say (pretended; farro costs discount)")
    for role, usd in progress.usd.items():
        turns = progress.turns.get(role, 0)
        say(f"  {role:<15} {turns} turn{'s' if turns != 1 else ' '}  {usd} USD")
    say(f"  {'all':<15} {sum(progress.turns.values())} turns  {sum(progress.usd.values(), Decimal(0))} USD")
    say("\nWhere it is" + ("" if kept else " (farro demo --keep leaves it there)"))
    files = events.files(path, view)
    width = max(len(name) for name, _ in files)
    for name, what in files:
        say(f"  {name:<{width}}  {what}")
    if view.lifecycle.error:
        say(f"\nIt has not succeeded: {view.lifecycle.error.get('message')}")
    say(f"\nThe repository's tests: {result.after.said}. {view.status.capitalize()}, in {result.seconds:.1f} s.")
    if kept:
        say(f"\nIt is all there to explore:\n  cd {path}\n  farro history {JOB}\n  farro show {JOB}")
        say(f"  farro replay {JOB}\n  git diff")
        again = " ".join(f"--role {role}" for role in scratch_repository.ROLES)
        say(f"And again:\n  git checkout . && farro start {again}")
        say("  farro watch $(farro enqueue --prompt-json prompt.json); farro stop")


def _data(root: str | None, result: DemoResult) -> dict[str, Any]:
    view, before, after = result.view, result.before, result.after
    return {
        "root": root,
        "job_id": JOB,
        "status": str(view.status),
        "seconds": round(result.seconds, 3),
        "tests_before": {"passed": before.passed, "said": before.said},
        "tests_after": {"passed": after.passed, "said": after.said},
        "hops": [
            {"role": hop.role, "attempt": hop.attempt, "reason": str(hop.reason), "to": hop.to, "note": hop.note}
            for hop in view.lifecycle.hops
        ],
        "events": [
            {"at_s": round(event.at_s, 3), "role": event.role, "what": event.what, "text": event.text}
            for event in result.progress.events
        ],
        "usd": {role: str(usd) for role, usd in result.progress.usd.items()},
        "diff": result.diff,
    }


# --- the other demo --------------------------------------------------------------------------------------------------


def _plans(path: str, *, keep: bool, as_json: bool) -> int:
    """Run a script of farro's own commands with this farro."""
    bash = shutil.which("bash")
    if bash is None:
        raise InputError("farro demo --plans is a script for bash, and bash was not found; farro demo needs none")
    script = f"{os.path.dirname(os.path.abspath(scratch_repository.__file__))}/plans.sh"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FARRO_")}
    environ |= {
        "FARRO_DEMO_PROGRAM": _quoted(program()),
        "FARRO_DEMO_PLACE": path,
        "FARRO_DEMO_KEEP": "1" if keep else "",
    }
    done = subprocess.run(
        [bash, script], env=environ, stdin=subprocess.DEVNULL, capture_output=as_json, text=True, check=False
    )
    if as_json:
        answer({"root": path if keep else None, "exit_code": done.returncode, "said": done.stdout.splitlines()})
        if done.returncode != 0:
            note(done.stderr)
    return 0 if done.returncode == 0 else 1


def _quoted(words: Sequence[str]) -> str:
    import shlex

    return shlex.join(words)
