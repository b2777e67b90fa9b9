"""`farro demo`: a task from idea to documents, offline, watched live. What happens lives in operations.demo.

The daemons are real: those that `farro start` starts, in a scratch repository, ended with the demo.
"""

from __future__ import annotations

import contextlib
import os
import shutil  # noqa: TID251 - `which` looks, it changes nothing
import subprocess
import sys
import tempfile  # noqa: TID251 - a folder for nobody else, outside of every root
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import click

from farro.agents.demo import play, scene
from farro.agents.demo.play import DemoEvent
from farro.cli.background import program
from farro.cli.options import application, json_option, root_option
from farro.cli.terminal import answer, at_terminal, note, say
from farro.config import reader
from farro.errors import FarroError, InputError
from farro.host import fs, signals, trees
from farro.host.clock import SystemClock
from farro.lazy_dataclass import dataclass, field
from farro.store.port import JobView
from farro.worker import background

_STOP_S = 5.0
_ROLES = ("Manager", *scene.ROLES)


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
    """What was told so far, for the picture and for the end."""

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


def _task(path: str, *, kept: bool, as_json: bool) -> int:
    clock = SystemClock()
    began_s = clock.monotonic_s()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FARRO_")}
    python = os.path.abspath(sys.executable)
    scene.make(path, python=python, environ=environ)
    before = scene.run_tests(path, python=python, environ=environ)
    settings = reader.load(path)
    app = application()
    store = app.open_store(path, settings, actor="demo")
    runtime = app.runtime(path)
    wanted = background.components(
        path, program=program(), env=environ, workers=1, slots=1, runner=None, roles=tuple(scene.ROLES)
    )
    told = DemoProgress()
    if not as_json:
        _opening(path, before)

    def mend() -> list[str]:
        alive = {seen.name for seen in runtime.list() if seen.alive}
        missing = [component for component in wanted if component.name not in alive]
        background.start(runtime, missing, clock)
        return [component.name for component in missing]

    try:
        died = [item for item in background.start(runtime, wanted, clock) if item.what == "died"]
        if died:
            raise FarroError(f"{died[0].name} ended at once: {died[0].said}")
        _enqueue(path)
        hand = play.JobObserver(store=store, root=path, job_id=scene.JOB, clock=clock)
        happening = play.events(hand, mend=mend)
        if as_json:
            for event in happening:
                told.take(event)
        elif at_terminal():
            _live(happening, told)
        else:
            for event in happening:
                told.take(event)
                say(_line(event))
        view = store.find(scene.JOB)
    finally:
        background.stop(runtime, _STOP_S)
        store.close()
    if view is None:
        raise FarroError(f"the job {scene.JOB} is not there any more; did somebody prune {path}?")
    after = scene.run_tests(path, python=python, environ=environ)
    diff = scene.diff(path, environ)
    seconds = clock.monotonic_s() - began_s
    good = str(view.status) == "succeeded" and after.passed and not before.passed
    if as_json:
        answer(_data(path if kept else None, view, told, before, after, diff, seconds))
    else:
        _ending(path, kept, view, told, after, diff, seconds)
    return 0 if good else 1


def _enqueue(path: str) -> None:
    """As a person does it: the program itself, with its checks."""
    done = subprocess.run(
        [*program(), "enqueue", "--prompt-json", f"{path}/prompt.json", "--id", scene.JOB, "--root", path],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise FarroError(f"the task could not be queued: {done.stderr.strip()}")


def _opening(path: str, before: scene.Tests) -> None:
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


def _live(happening: Iterator[DemoEvent], told: DemoProgress) -> None:
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
            state = told.state.get(role, "waits")
            turns, usd = told.turns.get(role), told.usd.get(role)
            board.add_row(
                Text(role), Text(state, style=colours.get(state, "")), str(turns or ""), "" if usd is None else str(usd)
            )
        return Group(Text(""), board)

    with Live(picture(), console=console, refresh_per_second=8, transient=True) as live:
        for event in happening:
            told.take(event)
            from farro.log.structured import printable

            style = {"said": "cyan", "decided": "yellow", "ended": "bold green", "lost": "bold red"}.get(
                event.what, "dim"
            )
            console.print(Text(printable(_line(event)), style=style))
            live.update(picture())


# --- at the end ------------------------------------------------------------------------------------------------------


def _ending(
    path: str, kept: bool, view: JobView, told: DemoProgress, after: scene.Tests, diff: str, seconds: float
) -> None:
    say(f"\nThe way of the task {scene.JOB} ({len(view.lifecycle.hops)} hops, each decided once)")
    for hop in view.lifecycle.hops:
        say(f"  {hop.at[11:19]}  {hop.role:<15} → {hop.to:<36} {play.first_line(hop)}")
    say("\nWhat was changed (git diff)")
    say("\n".join(f"  {line}" for line in diff.splitlines()))
    say("\nWhat it cost, as the programs say (pretended; farro costs discount)")
    for role, usd in told.usd.items():
        say(f"  {role:<15} {told.turns.get(role, 0)} turn{'s' if told.turns.get(role, 0) != 1 else ' '}  {usd} USD")
    say(f"  {'all':<15} {sum(told.turns.values())} turns  {sum(told.usd.values(), Decimal(0))} USD")
    say("\nWhere it is" + ("" if kept else " (farro demo --keep leaves it there)"))
    found = play.files(path, view)
    width = max(len(name) for name, _ in found)
    for name, what in found:
        say(f"  {name:<{width}}  {what}")
    if view.lifecycle.error:
        say(f"\nIt has not succeeded: {view.lifecycle.error.get('message')}")
    say(f"\nThe repository's tests: {after.said}. {view.status.capitalize()}, in {seconds:.1f} s.")
    if kept:
        say(f"\nIt is all there to explore:\n  cd {path}\n  farro history {scene.JOB}\n  farro show {scene.JOB}")
        say(f"  farro replay {scene.JOB}\n  git diff")
        again = " ".join(f"--role {role}" for role in scene.ROLES)
        say(f"And again:\n  git checkout . && farro start {again}")
        say("  farro watch $(farro enqueue --prompt-json prompt.json); farro stop")


def _data(
    root: str | None,
    view: JobView,
    told: DemoProgress,
    before: scene.Tests,
    after: scene.Tests,
    diff: str,
    seconds: float,
) -> dict[str, Any]:
    return {
        "root": root,
        "job_id": scene.JOB,
        "status": str(view.status),
        "seconds": round(seconds, 3),
        "tests_before": {"passed": before.passed, "said": before.said},
        "tests_after": {"passed": after.passed, "said": after.said},
        "hops": [
            {"role": hop.role, "attempt": hop.attempt, "reason": str(hop.reason), "to": hop.to, "note": hop.note}
            for hop in view.lifecycle.hops
        ],
        "events": [
            {"at_s": round(event.at_s, 3), "role": event.role, "what": event.what, "text": event.text}
            for event in told.events
        ],
        "usd": {role: str(usd) for role, usd in told.usd.items()},
        "diff": diff,
    }


# --- the other demo --------------------------------------------------------------------------------------------------


def _plans(path: str, *, keep: bool, as_json: bool) -> int:
    """A script of farro's own commands, run by the farro that runs this."""
    bash = shutil.which("bash")
    if bash is None:
        raise InputError("farro demo --plans is a script for bash, and bash was not found; farro demo needs none")
    script = f"{os.path.dirname(os.path.abspath(scene.__file__))}/plans.sh"
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
