"""`farro swarm status`, `watch`, `ls`, `logs` and `dead`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from farro.cli.options import common, operator_name, read_root
from farro.cli.terminal import answer, complain, draws, note, say, seconds, shortened, span, table
from farro.config.settings import Settings
from farro.errors import InputError
from farro.host import fs
from farro.host.clock import SystemClock
from farro.jobs.times import timestamp
from farro.lazy_dataclass import dataclass
from farro.swarm import dead_letters, processes, service, views
from farro.swarm.bus.port import Bus, BusMessage
from farro.swarm.dead_letters import QueueLetters, Verb
from farro.swarm.files import SwarmFiles
from farro.swarm.lifecycle import ComponentState
from farro.swarm.views import CommandView, ComponentView, SwarmView
from farro.swarm.wire import names


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


class SwarmProcesses:
    """The swarms of a root and their components, as `farro ps` shows them."""

    def __init__(self, root: str) -> None:
        self._folder = service.folder(root)
        self.components = processes.component_processes(self._folder, service.runtime(root), SystemClock())
        self._views = views.swarms(self._folder)

    def states(self) -> list[dict[str, Any]]:
        return [
            {"id": one.id, "state": one.state, "health": one.health, "reason": one.reason, "stands": self._is_up(one)}
            for one in self._views
        ]

    def print_states(self) -> None:
        """Print a line for each swarm, and what is wrong with their orchestrator."""
        for view in self._views:
            say(f"swarm {view.id}: {self._words(view)}")
            if (letters := dead_words(view)) is not None:
                say(f"swarm {view.id}: {letters}")
        if self._views:
            _warn(self._folder, self._views)

    def _is_up(self, view: SwarmView) -> bool:
        """Return whether a process of that swarm runs, or one that would start it again."""
        runs = any(one.pid is not None for one in self.components if one.swarm == view.id)
        return runs or bool(view.controller["alive"]) or views.orchestrator_runs(self._folder)

    def _words(self, view: SwarmView) -> str:
        if not self._is_up(view):  # its last state is not its state any more
            again = f"`farro swarm start {view.id}` starts it again"
            return f"not running (it was {view.state} when it was killed, or its machine ended); {again}"
        shown_above = any(one.failure in (view.reason or "") for one in self.components if one.failure)
        return f"{view.state}, {view.health}" + (f" ({view.reason})" if view.reason and not shown_above else "")


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
    found = log_paths(files, name, instance)
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
            for who, path in log_paths(files, name).items():
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


# --- swarms and commands as text: printed by terminal.say, so that no component controls the terminal ---

_NOT_THERE = (ComponentState.PROVISIONING, ComponentState.FAILED)
_COMMANDS = 8  # the newest are shown


def command_words(view: CommandView) -> str:
    """Describe a command and its outcome in one line."""
    about = view.scope.get("instance") or view.scope.get("swarmId", "")
    if view.result is None:
        return f"{about}: {view.signal} goes on"
    if view.result == "success":
        return f"{about}: {view.signal} done, {view.state}" + (f" ({view.notes})" if view.notes else "")
    again = "; it may be asked for again" if view.retryable else ""
    return f"{about}: {view.signal} failed ({view.code}): {view.message}{again}"


def listing(views: list[SwarmView]) -> str:
    rows = [("SWARM", "STATE", "HEALTH", "RUNNING", "STALE", "DEAD LETTERS", "")]
    for view in views:
        totals, dead = view.totals, sum(_dead(view).values())
        running = f"{totals.get('running', 0)}/{totals.get('desired', len(view.components))}"
        stale = span(view.max_staleness_s)
        rows.append((view.id, view.state, view.health, running, stale, str(dead or "-"), view.reason or ""))
    return table(rows, right=(5,))


def dead_words(view: SwarmView) -> str | None:
    """Describe the dead letters. They do not affect a swarm's health, so they are shown apart."""
    dead = _dead(view)
    if not dead:
        return None
    each = ", ".join(f"{count} of {name}" for name, count in dead.items())
    return f"dead letters: {each}; look: farro swarm dead {view.id}"


def _dead(view: SwarmView) -> dict[str, int]:
    """Count the dead letters by queue, as the plan names it."""
    counts = ((str(one.get("name", "")), one.get("deadLetters")) for one in view.queues)
    begin = names.work_exchange(view.id).removesuffix("hive")
    return {name.removeprefix(begin): count for name, count in counts if isinstance(count, int) and count > 0}


def page(view: SwarmView, commands: list[CommandView]) -> str:
    """Describe one swarm completely."""
    totals = view.totals
    lines = [f"{view.id}  {view.state}, {view.health}" + (f": {view.reason}" if view.reason else "")]
    if (dead := dead_words(view)) is not None:
        lines.append(dead)
    if totals:
        counts = ", ".join(f"{totals.get(name, 0)} {name}" for name in ("healthy", "running", "enabled"))
        oldest = "" if view.max_staleness_s is None else f"; oldest word {span(view.max_staleness_s)} ago"
        lines.append(f"of {totals.get('desired', 0)} components {counts}{oldest}")
    alive = "lives" if view.controller["alive"] else "does not run: what follows is what it said last"
    lines.append(f"controller {view.controller['instance']} {alive}")
    if view.durations:
        durations = ", ".join(f"{name} {span(seconds)}" for name, seconds in view.durations.items())
        lines.append(f"took: {durations}")
    if view.failures:
        lines.append("failures: " + ", ".join(f"{code} {count}" for code, count in sorted(view.failures.items())))
    lines += [f"warning: {text}" for text in view.warnings]
    if view.components:
        lines += ["", _components(view)]
        for member in view.components:
            if member.told:
                words = ", ".join(f"{name} {value}" for name, value in member.told.items())
                lines.append(f"{member.instance} tells: {words}")
    if view.queues:
        lines += ["", _queues(view)]
    if view.recent_errors:
        lines += ["", "Recent errors"]
        for error in view.recent_errors[-_COMMANDS:]:
            who, why = error.get("instance", ""), _once(str(error.get("reason", "")), view)
            lines.append(f"  {_clock(error.get('at'))}  {who + '  ' if who else ''}{why}")
    if commands:
        lines += ["", "Commands"]
        for one in commands[-_COMMANDS:]:
            lines.append(f"  {_clock(one.begun_at)}  {_once(command_words(one), view)}")
    return "\n".join(lines)


def ended_words(last_end: Mapping[str, str] | None) -> str:
    """Describe the last end of a component that does not run."""
    if last_end is None:
        return ""
    words = f": {last_end['words']}" if last_end.get("words") else ""
    return f"ended {last_end.get('how', '')} at {_clock(last_end.get('at'))}{words}"


def _once(text: str, view: SwarmView) -> str:
    """Replace reasons that are already shown above."""
    known = [view.reason or "", *(one.failure or "" for one in view.components)]
    for one in sorted(filter(None, known), key=len, reverse=True):
        text = text.replace(one, "see above")
    return text


def _components(view: SwarmView) -> str:
    rows = [("COMPONENT", "ROLE", "STATE", "TPS", "STALE", "STARTS", "")]
    for one in view.components:
        tps = (
            f"{one.tps:g}" if one.enabled and one.tps is not None else "-"
        )  # a stopped component reports its last rate
        rows.append((one.instance, one.role, one.state, tps, span(one.staleness_s), str(one.starts), _why(one, view)))
    return table(rows, right=(3, 4, 5))


def _why(one: ComponentView, view: SwarmView) -> str:
    if one.failure is not None:
        return "see above" if one.failure in (view.reason or "") else one.failure
    return ended_words(one.last_end) if one.state in _NOT_THERE else ""


def _queues(view: SwarmView) -> str:
    rows = [("QUEUE", "READY", "TAKEN", "CONSUMERS", "DEAD LETTERS")]
    for one in view.queues:
        cells = (one.get(name, "-") for name in ("name", "ready", "taken", "consumers", "deadLetters"))
        rows.append(tuple(str(cell) for cell in cells))  # type: ignore[arg-type]
    return table(rows, right=(1, 2, 3, 4))


def _clock(at: object) -> str:
    """Return the time of day, UTC."""
    return str(at)[11:19] if at else "-"


# --- log files ---

_SUFFIX = ".log"
_BLOCK = 1 << 20  # bytes that one read takes of a log
_SEARCHED = 16 << 20  # bytes that are searched for its last lines
_LONGEST = 1 << 16  # bytes of one line


def log_paths(files: SwarmFiles, swarm: str, instance: str | None = None) -> dict[str, str]:
    """Return the log of each component in the order of the plan, then the others: the controller's and those of earlier
    plans. Raises InputError if `instance` has none."""
    folder = f"{files.swarm_folder(swarm)}/logs"
    try:
        found_ = {name.removesuffix(_SUFFIX) for name in fs.listdir(folder) if name.endswith(_SUFFIX)}
    except FileNotFoundError:
        found_ = set()
    plan = files.plan(swarm)
    members = [] if plan is None else [member.instance for member in plan.members()]
    ordered = [name for name in members if name in found_] + sorted(found_.difference(members))
    if instance is None:
        return {name: f"{folder}/{name}{_SUFFIX}" for name in ordered}
    if instance not in found_:
        known = f"known: {', '.join(ordered)}" if ordered else "none of its components was ever started"
        raise InputError(f"{instance[:100]} has no log in swarm {swarm}; {known}")
    return {instance: f"{folder}/{instance}{_SUFFIX}"}


@dataclass
class LogReader:
    """Follow one log. Reading starts over when the file was rotated: it is another file, or shorter than before."""

    path: str
    offset: int = 0
    _file: int | None = None
    _rest: bytes = b""  # an incomplete last line

    @classmethod
    def at_end(cls, path: str, lines: int) -> LogReader:
        """Start so that the last lines come first."""
        from farro.queue.logs import tail_offset  # here: `farro up` does not need what it imports

        with contextlib.suppress(FileNotFoundError):
            return cls(path, tail_offset(path, lines, _SEARCHED)[0])
        return cls(path)

    def run_once(self) -> Sequence[str]:
        """Return the lines since the last call; after a non-empty answer there may be more."""
        try:
            fd = fs.open_read(self.path)
        except OSError:
            return ()
        try:
            status = os.fstat(fd)
            if (self._file is not None and status.st_ino != self._file) or status.st_size < self.offset:
                self.offset, self._rest = 0, b""
            self._file = status.st_ino
            data = fs.read_at(fd, _BLOCK, self.offset)
        finally:
            os.close(fd)
        self.offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST:
            lines, self._rest = [*lines, self._rest], b""
        return [line.decode("utf-8", "replace") for line in lines]

    def rest(self) -> str:
        """Return the incomplete last line."""
        return self._rest.decode("utf-8", "replace")
