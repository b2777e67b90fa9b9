"""`farro swarm status`, `watch`, `ls`, `logs` and `dead`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from farro.cli.options import common, operator_name, read_root
from farro.cli.tables import seconds, shortened, table
from farro.cli.terminal import answer, complain, draws, note, say
from farro.config.settings import Settings
from farro.errors import InputError
from farro.host.clock import SystemClock
from farro.jobs.times import timestamp
from farro.swarm import dead_letters, processes, service, views
from farro.swarm import logs as swarm_logs
from farro.swarm.bus.port import Bus, BusMessage
from farro.swarm.cli.tables import listing, page
from farro.swarm.dead_letters import QueueLetters, Verb
from farro.swarm.logs import LogReader
from farro.swarm.views import SwarmView


@click.command(short_help="How a swarm and its components do.")
@click.argument("name", metavar="[SWARM]", required=False)
@common
def status(name: str | None, root: str | None, as_json: bool) -> None:
    """How a swarm does: its components, queues, recent errors and commands. Without a name: all swarms."""
    folder = _folder(root)
    if name is None:
        _list(folder, removed=False, as_json=as_json)
        return
    view, commands = views.swarm(folder, name), views.commands(folder, name)
    if as_json:
        answer({**asdict(view), "commands": [asdict(one) for one in commands]})
    else:
        say(page(view, commands))
        _warn(folder, [view])


@click.command()
@click.option("--all", "removed", is_flag=True, help="Those that were removed, too.")
@common
def ls(removed: bool, root: str | None, as_json: bool) -> None:
    """List the swarms of this root."""
    _list(_folder(root), removed=removed, as_json=as_json)


@click.command()
@click.argument("name", metavar="SWARM")
@click.option("--every", "every_s", default="1s", callback=seconds, metavar="DURATION", help="How often to look.")
@click.option("--once", is_flag=True, help="Look once.")
@common
def watch(name: str, every_s: float, once: bool, root: str | None, as_json: bool) -> None:
    """Watch a swarm until Ctrl-C, or until it is removed. With --json: an object a line when something changed."""
    folder, clock, last = _folder(root), SystemClock(), None
    live = draws(sys.stdout) and not as_json
    while True:
        view, commands = views.swarm(folder, name), views.commands(folder, name)
        shown = {**asdict(view), "commands": [asdict(one) for one in commands]}
        essence = {key: value for key, value in shown.items() if key not in ("max_staleness_s", "watermark")}
        if as_json and essence != last:
            answer(shown)
        elif not as_json and (live or essence != last):
            if live:
                click.clear()
            say(page(view, commands))
        last = essence
        if once or view.state == "Removed":
            return
        clock.sleep(every_s)


def _list(folder: str, *, removed: bool, as_json: bool) -> None:
    shown = views.swarms(folder, removed=removed)
    if as_json:
        answer({"swarms": [asdict(view) for view in shown], "orchestrator": views.orchestrator_runs(folder)})
    elif not shown:
        say("no swarm here; make one: farro swarm apply FILE")
    else:
        say(listing(shown))
        _warn(folder, shown)


def _warn(folder: str, shown: list[SwarmView]) -> None:
    """Warn if no orchestrator runs, or if it reports a problem."""
    if not views.orchestrator_runs(folder):
        complain("no orchestrator runs here; the next command of `farro swarm` starts one")
    elif any(one.health == "Unknown" for one in shown):
        problem = processes.orchestrator_problem(folder)
        if problem is not None:
            complain(f"the orchestrator says: {problem}")


def _folder(root: str | None) -> str:
    path, _ = read_root(root)
    return service.folder(path)


# --- logs ---

_TAIL = 50
_LOOK_S = 0.2


@click.command(short_help="What the components of a swarm wrote.")
@click.argument("name", metavar="SWARM")
@click.argument("instance", metavar="[INSTANCE]", required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on with what is written, until Ctrl-C.")
@click.option(
    "--tail", "-n", default=_TAIL, show_default=True, type=click.IntRange(min=0), help="The last lines of each log."
)
@common
def logs(name: str, instance: str | None, follow: bool, tail: int, root: str | None, as_json: bool) -> None:
    """What the components of a swarm wrote to stdout and stderr: of all of them and of its controller, each line with
    its name; or of one. With --json an object a line."""
    path, settings = read_root(root)
    files = service.files(path, settings)
    views.existing(files, name)
    found = swarm_logs.logs(files, name, instance)
    if not found:
        note(f"swarm {name} has no logs yet")
    readers = {who: LogReader.at_end(path, tail) for who, path in found.items()}
    alone, clock = instance is not None, SystemClock()
    for who, reader in readers.items():
        while lines := reader.run_once():
            _print(who, lines, alone=alone, width=_width(readers), as_json=as_json)
        if not follow and reader.rest():
            _print(who, [reader.rest()], alone=alone, width=_width(readers), as_json=as_json)
    while follow:
        clock.sleep(_LOOK_S)
        if not alone:  # components that were started meanwhile
            for who, path in swarm_logs.logs(files, name).items():
                readers.setdefault(who, LogReader(path))
        for who, reader in readers.items():
            _print(who, reader.run_once(), alone=alone, width=_width(readers), as_json=as_json)


def _width(readers: dict[str, LogReader]) -> int:
    return max(map(len, readers), default=0)


def _print(who: str, lines: Sequence[str], *, alone: bool, width: int, as_json: bool) -> None:
    if as_json:
        for line in lines:
            answer({"instance": who, "line": line})
    elif lines:
        say("\n".join(line if alone else f"{who:<{width}} | {line}" for line in lines))


# --- dead letters ---

_SHOWN = 20
_WIDTH = 100  # characters of an item in the table


@click.command(short_help="Items that they could not work: look, send again, drop.")
@click.argument("name", metavar="SWARM")
@click.argument("queue", metavar="[QUEUE]", required=False)
@click.option("--resend", is_flag=True, help="Send them again, into the queue in which they died.")
@click.option("--drop", is_flag=True, help="Delete them, for good.")
@click.option("--id", "only", multiple=True, metavar="ID", help="Only this letter; may be repeated.")
@click.option(
    "--limit",
    default=_SHOWN,
    show_default=True,
    type=click.IntRange(1, dead_letters.HELD),
    help="Letters of a queue that are shown.",
)
@common
def dead(
    name: str,
    queue: str | None,
    resend: bool,
    drop: bool,
    only: tuple[str, ...],
    limit: int,
    root: str | None,
    as_json: bool,
) -> int:
    """Dead letters: items of a swarm that its components could not work, of all its queues or of one.

    Looking changes nothing. What is sent again and fails again is a dead letter again.
    """
    if resend and drop:
        raise click.UsageError("--resend and --drop exclude each other")
    if only and not (resend or drop):
        raise click.UsageError("--id says which letters to --resend or to --drop")
    path, settings = read_root(root)
    files = service.files(path, settings)
    views.existing(files, name)
    plan = files.plan(name)
    if plan is None:
        raise InputError(f"swarm {name} has no plan yet, and so no queues")
    wanted = dead_letters.queues(plan, queue)
    verb: Verb | None = "resend" if resend else "drop" if drop else None
    found = asyncio.run(_run_on_bus(path, settings, name, wanted, verb, only, limit))
    if verb is not None:
        _note(files.swarm_folder(name), verb, found)
    if as_json:
        answer({"swarm": name, "queues": [_as_json(group, verb) for group in found]})
    elif verb is None:
        _show(name, found)
    else:
        _show_done(verb, found)
    done = {letter.message_id for group in found for letter in group.letters}
    if missing := [one for one in only if one not in done]:
        raise InputError(f"no dead letter {', '.join(missing)} in swarm {name}")
    return 0


async def _run_on_bus(
    root: str, settings: Settings, name: str, wanted: list[str], verb: Verb | None, only: tuple[str, ...], limit: int
) -> list[QueueLetters]:
    bus: Bus = await service.open_bus(root, settings)
    try:
        if verb is None:
            return await dead_letters.look(bus, name, wanted, limit)
        return await dead_letters.resolve(bus, name, wanted, verb, only=only)
    finally:
        await bus.close()


def _note(folder: str, verb: Verb, found: list[QueueLetters]) -> None:
    """Note in the swarm's audit log what was done."""
    from farro.swarm.publish import SwarmAudit

    audit = SwarmAudit(folder, operator_name(), lambda: timestamp(SystemClock().now()), lambda *_: None)
    what = "letters-sent-again" if verb == "resend" else "letters-dropped"
    for group in found:
        if group.letters:
            audit.note(what, queue=group.queue, count=len(group.letters))


def _show(name: str, found: list[QueueLetters]) -> None:
    if not any(group.count for group in found):
        say(f"no dead letters in {', '.join(group.queue for group in found) or name}")
        return
    rows = [("QUEUE", "LETTER", "ITEM")]
    for group in found:
        rows += [(group.queue, letter.message_id, _item(letter)) for letter in group.letters]
    say(table(rows))
    for group in found:
        if group.count > len(group.letters):
            note(f"{group.queue} has {group.count}; the first {len(group.letters)} are shown (--limit)")
    note(f"why: farro swarm status {name}, farro swarm logs {name}; --resend sends them again, --drop deletes them")


def _show_done(verb: Verb, found: list[QueueLetters]) -> None:
    did = "sent again" if verb == "resend" else "dropped"
    lines = [f"{group.queue}: {len(group.letters)} {did}" for group in found if group.letters]
    say("\n".join(lines) or "no dead letters; nothing was done")


def _item(letter: BusMessage) -> str:
    return shortened(" ".join(letter.body.decode("utf-8", "replace").split()), _WIDTH)


def _as_json(group: QueueLetters, verb: Verb | None) -> dict[str, Any]:
    letters = [{"id": letter.message_id, "item": _value(letter.body)} for letter in group.letters]
    if verb is None:
        return {"queue": group.queue, "count": group.count, "letters": letters}
    return {"queue": group.queue, "count": group.count, "done": verb, "letters": [one["id"] for one in letters]}


def _value(body: bytes) -> Any:
    """Return an item as JSON; an item that is not JSON may be a dead letter for that reason."""
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")
