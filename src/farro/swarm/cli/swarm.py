"""`farro swarm`: create, apply, start, stop, remove, config. The orchestrator is started if none runs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from farro import documents
from farro.cli.main import Hinting
from farro.cli.options import common, operator_name, program, read_root
from farro.cli.plan_files import read_plans
from farro.cli.terminal import answer, complain, draws, note, say, seconds, span
from farro.documents import Document
from farro.errors import InputError
from farro.host.clock import SystemClock
from farro.swarm import plan as plans
from farro.swarm import processes, requests, service
from farro.swarm.cli.inspect import command_words, dead, logs, ls, status, watch
from farro.swarm.files import SwarmFiles
from farro.swarm.plan import SwarmPlan
from farro.swarm.requests import CommandReceipt, CommandRequest
from farro.swarm.views import CommandView
from farro.swarm.wire.names import Signal


class InOrder(Hinting):
    """List commands in the order of their use, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=InOrder)
def swarm() -> None:
    """Sets of components that are kept in the state that was asked for.

    \b
      farro swarm apply demo.yaml  make the swarm of that plan, or change it
      farro swarm start demo       let its components work, in their order
      farro swarm status demo      how each of them does
      farro swarm logs demo        what they write
      farro swarm dead demo        items that they could not work
      farro swarm stop demo        they stop working, and stay
      farro swarm remove demo      they end, and their queues go
    """


def waiting(command: Callable[..., int]) -> Callable[..., int]:
    """Add `--no-wait`, `--timeout` and `--idempotency-key` to a command, which gets a CommandSession and the key."""
    no_wait = click.option("--no-wait", is_flag=True, help="Print the correlation id at once, and do not wait.")
    timeout = click.option(
        "--timeout", "timeout_s", callback=seconds, metavar="DURATION", help="Wait no longer; the command goes on."
    )
    key = click.option(
        "--idempotency-key",
        "key",
        metavar="UUID",
        help="Of a command that may have been asked for before: then it is not done twice.",
    )

    @functools.wraps(command)
    def run(*args: Any, root: str | None, as_json: bool, no_wait: bool, timeout_s: float | None, **more: Any) -> int:
        session = CommandSession(root, as_json, no_wait=no_wait, timeout_s=timeout_s)
        return command(session, *args, **more)

    return no_wait(timeout(key(common(run))))


@swarm.command()
@click.argument("name", metavar="SWARM")
@click.option("--plan", "path", metavar="FILE", help="Apply that plan, too.")
@waiting
def create(session: CommandSession, name: str, path: str | None, key: str | None) -> int:
    """Make a swarm: its controller is launched. With --plan its components are, too; they work when it is
    started."""
    plan = None if path is None else read_plan(path, name)
    asked = [session.ask(Signal.CREATE, name, key=key)]
    if plan is not None:
        asked.append(session.ask(Signal.TEMPLATE, name, args=plan[0].data))
    return session.finish(asked, name)


@swarm.command()
@click.argument("path", metavar="FILE")
@click.option("--dry-run", is_flag=True, help="Only tell what would change.")
@waiting
def apply(session: CommandSession, path: str, dry_run: bool, key: str | None) -> int:
    """Give a swarm the plan in FILE, and make it if it is not there. A swarm that works is stopped first and started
    again after it; what the plan leaves as it is goes on running."""
    document, plan = read_plan(path, None)
    changes = requests.plan_changes(session.folder, plan)
    if not session.as_json:
        say("\n".join(changes.lines) if changes.lines else f"{plan.id} is as the plan says")
    if dry_run or not changes.steps:
        if session.as_json:
            answer({"swarm": plan.id, "changes": changes.lines, "commands": []})
        return 0
    asked = [
        session.ask(signal, plan.id, args=document.data if signal is Signal.TEMPLATE else None, key=key)
        for signal in changes.steps
    ]
    return session.finish(asked, plan.id, changes=changes.lines)


@swarm.command(short_help="Let the components of a swarm work.")
@click.argument("name", metavar="SWARM")
@waiting
def start(session: CommandSession, name: str, key: str | None) -> int:
    """Let the components of a swarm work: producers first, then what reads from them."""
    return session.finish([session.ask(Signal.START, name, key=key)], name)


@swarm.command(short_help="Let them stop working; they stay.")
@click.argument("name", metavar="SWARM")
@waiting
def stop(session: CommandSession, name: str, key: str | None) -> int:
    """Let the components of a swarm stop working, those at the end of the queues first. They stay, and can be started
    again; nothing is deleted."""
    return session.finish([session.ask(Signal.STOP, name, key=key)], name)


@swarm.command(short_help="Remove a stopped swarm, with its queues.")
@click.argument("name", metavar="SWARM")
@waiting
def remove(session: CommandSession, name: str, key: str | None) -> int:
    """Remove a stopped swarm: its components end, its queues and what is in them are deleted, its controller goes. Its
    logs and its audit trail stay."""
    return session.finish([session.ask(Signal.REMOVE, name, key=key)], name)


@swarm.command()
@click.argument("role")
@click.argument("instance")
@click.argument("values", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--enable/--disable", "enabled", default=None, help="Let this one component work, or stop working.")
@waiting
def config(
    session: CommandSession, role: str, instance: str, values: tuple[str, ...], enabled: bool | None, key: str | None
) -> int:
    """Change the config of one component while it runs. A VALUE is JSON where it is JSON, else text."""
    args = dict(_pair(text) for text in values)
    if enabled is not None:
        args["enabled"] = enabled
    if not args:
        raise click.UsageError("say what shall change: KEY=VALUE, --enable or --disable")
    swarm = requests.swarm_of(SwarmFiles(session.folder), role, instance)
    asked = session.ask(Signal.CONFIG, swarm, args=args, role=role, instance=instance, key=key)
    return session.finish([asked], instance, swarm=swarm)


for _command in (status, watch, ls, logs, dead):
    swarm.add_command(_command)


def start_plan(path: str, name: str, root: str | None, *, as_json: bool) -> int:
    """Give the swarm `name` the plan in a file, and let it work. Return the exit code."""
    session = CommandSession(root, as_json, no_wait=False, timeout_s=None)
    document, plan = read_plan(path, name)
    changes = requests.plan_changes(session.folder, plan)
    steps = [*(step for step in changes.steps if step is not Signal.START), Signal.START]
    asked = [session.ask(step, name, args=document.data if step is Signal.TEMPLATE else None) for step in steps]
    return session.finish(asked, name, changes=changes.lines)


class CommandSession:
    """Submit commands, ensure that an orchestrator runs, wait, and print the results."""

    def __init__(self, root: str | None, as_json: bool, *, no_wait: bool, timeout_s: float | None) -> None:
        self._root, self._settings = read_root(root)
        self.folder = service.folder(self._root)
        self.as_json = as_json
        self._no_wait = no_wait
        self._timeout_s = timeout_s
        self._clock = SystemClock()

    def ask(self, signal: Signal, name: str, *, key: str | None = None, **fields: Any) -> CommandReceipt:
        """Submit a command. `fields` are further ones of CommandRequest."""
        service.check_bus(self._root, self._settings)
        origin = operator_name()
        request = CommandRequest(signal=signal, swarm=name, idempotency_key=key, origin=origin, **fields)
        return requests.submit(self.folder, request, durable=self._settings.durability == "power")

    def finish(
        self, asked: list[CommandReceipt], name: str, *, changes: list[str] | None = None, swarm: str | None = None
    ) -> int:
        """Wait for the end of each command unless --no-wait, and return the exit code."""
        ensure_orchestrator(self._root)
        if self._no_wait:
            if self.as_json:
                answer({"commands": [asdict(one) for one in asked]})
            else:
                say("\n".join(one.correlation_id for one in asked))
            return 0
        ends: list[CommandView] = []
        for one in asked:
            end = self._wait(one)
            if end is None:
                complain(f"{name}: no end yet of {one.correlation_id}; it goes on: farro swarm status {swarm or name}")
                return 1
            ends.append(end)
            if not self.as_json:
                (say if end.result == "success" else complain)(command_words(end))
            if end.result != "success":
                break
        if self.as_json:
            result: dict[str, Any] = {"commands": [asdict(end) for end in ends]}
            answer(result if changes is None else {"changes": changes, **result})
        return 0 if len(ends) == len(asked) and ends[-1].result == "success" else 1

    def _wait(self, asked: CommandReceipt) -> CommandView | None:
        """Wait for a command, with a progress line on a terminal."""
        show = draws(sys.stderr) and not self.as_json
        began_s, tell_s = self._clock.monotonic_s(), processes.REPORT_S
        # Longer than the command's own limit, so that it ends by itself with a reason.
        limit_s = self._timeout_s if self._timeout_s is not None else asked.timeout_ms / 1000 + 120
        try:
            while True:
                spent_s = self._clock.monotonic_s() - began_s
                end = requests.wait(
                    self.folder, asked.correlation_id, min(1.0, max(0.0, limit_s - spent_s)), self._clock
                )
                if end is not None or spent_s >= limit_s:
                    return end
                if spent_s >= tell_s and not self.as_json:
                    tell_s *= 4
                    if show:
                        sys.stderr.write("\r\x1b[K")
                    self._tell_trouble()
                if show:
                    known = service.command(self.folder, asked.correlation_id)
                    what = known.signal if known else "waiting for the orchestrator"
                    sys.stderr.write(f"\r\x1b[K{what} … {span(spent_s)}")
                    sys.stderr.flush()
        finally:
            if show:
                sys.stderr.write("\r\x1b[K")

    def _tell_trouble(self) -> None:
        """Print what keeps the orchestrator from its work."""
        ensure_orchestrator(self._root)
        problem = processes.orchestrator_problem(self.folder)
        if problem is not None:
            note(f"still waiting; the orchestrator says: {problem}")


def ensure_orchestrator(root: str) -> None:
    """Start an orchestrator unless one runs."""
    started = service.ensure_orchestrator(root, program())
    if started is not None:
        note(f"started an orchestrator in the background (pid {started.pid}); its log: {started.log}")


def read_plan(path: str, name: str | None) -> tuple[Document, SwarmPlan]:
    """Read the plan in a file, or raise all of its problems with their positions. It must be of the swarm `name`, if
    given."""
    found = read_plans(path)
    if len(found) != 1:
        raise InputError(f"{path} holds {len(found)} documents; a swarm has one plan")
    document = found[0]
    if name is not None and isinstance(document.data, dict) and document.data.get("id") not in (None, name):
        problem = document.problem(("id",), f"is {document.data['id']!r}, but the swarm is {name}; make them the same")
        raise documents.refusal(document.source, [problem])
    return document, plans.load(document)


def _pair(text: str) -> tuple[str, Any]:
    import json

    name, sign, value = text.partition("=")
    if not sign or not name:
        raise click.BadParameter(f"{text!r} is no KEY=VALUE")
    if name == "enabled":
        raise click.UsageError("say --enable or --disable instead of enabled=…")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
