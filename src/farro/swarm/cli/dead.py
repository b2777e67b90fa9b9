"""`farro swarm dead`: the dead letters of a swarm. What is done with them lives in operations.swarm_letters."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click

from farro.cli.options import common, operator_name, read_root
from farro.cli.tables import shortened, table
from farro.cli.terminal import answer, note, say
from farro.config.settings import Settings
from farro.errors import InputError
from farro.host.clock import SystemClock
from farro.jobs.times import timestamp
from farro.swarm import checks, dead_letters, service
from farro.swarm.bus.port import Bus, Message
from farro.swarm.dead_letters import Pile, Verb

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
    place = service.place(path, settings)
    checks.desired(place, name)
    plan = place.plan(name)
    if plan is None:
        raise InputError(f"swarm {name} has no plan yet, and so no queues")
    wanted = dead_letters.queues(plan, queue)
    verb: Verb | None = "resend" if resend else "drop" if drop else None
    piles = asyncio.run(_asked(path, settings, name, wanted, verb, only, limit))
    if verb is not None:
        _note(place.of(name), verb, piles)
    if as_json:
        answer({"swarm": name, "queues": [_told(pile, verb) for pile in piles]})
    elif verb is None:
        _show(name, piles)
    else:
        _show_done(verb, piles)
    done = {letter.message_id for pile in piles for letter in pile.letters}
    if missing := [one for one in only if one not in done]:
        raise InputError(f"no dead letter {', '.join(missing)} in swarm {name}")
    return 0


async def _asked(
    root: str, settings: Settings, name: str, wanted: list[str], verb: Verb | None, only: tuple[str, ...], limit: int
) -> list[Pile]:
    bus: Bus = await service.open_bus(root, settings)
    try:
        if verb is None:
            return await dead_letters.look(bus, name, wanted, limit)
        return await dead_letters.settle(bus, name, wanted, verb, only=only)
    finally:
        await bus.close()


def _note(folder: str, verb: Verb, piles: list[Pile]) -> None:
    """Into the swarm's audit trail, as everything that is done to it."""
    from farro.swarm.audit import Trail

    trail = Trail(folder, operator_name(), lambda: timestamp(SystemClock().now()), lambda *_: None)
    what = "letters-sent-again" if verb == "resend" else "letters-dropped"
    for pile in piles:
        if pile.letters:
            trail.note(what, queue=pile.queue, count=len(pile.letters))


def _show(name: str, piles: list[Pile]) -> None:
    if not any(pile.count for pile in piles):
        say(f"no dead letters in {', '.join(pile.queue for pile in piles) or name}")
        return
    rows = [("QUEUE", "LETTER", "ITEM")]
    for pile in piles:
        rows += [(pile.queue, letter.message_id, _item(letter)) for letter in pile.letters]
    say(table(rows))
    for pile in piles:
        if pile.count > len(pile.letters):
            note(f"{pile.queue} has {pile.count}; the first {len(pile.letters)} are shown (--limit)")
    note(f"why: farro swarm status {name}, farro swarm logs {name}; --resend sends them again, --drop deletes them")


def _show_done(verb: Verb, piles: list[Pile]) -> None:
    did = "sent again" if verb == "resend" else "dropped"
    told = [f"{pile.queue}: {len(pile.letters)} {did}" for pile in piles if pile.letters]
    say("\n".join(told) or "no dead letters; nothing was done")


def _item(letter: Message) -> str:
    return shortened(" ".join(letter.body.decode("utf-8", "replace").split()), _WIDTH)


def _told(pile: Pile, verb: Verb | None) -> dict[str, Any]:
    letters = [{"id": letter.message_id, "item": _value(letter.body)} for letter in pile.letters]
    if verb is None:
        return {"queue": pile.queue, "count": pile.count, "letters": letters}
    return {"queue": pile.queue, "count": pile.count, "done": verb, "letters": [one["id"] for one in letters]}


def _value(body: bytes) -> Any:
    """An item is JSON; where it is none, that may be why it died."""
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")
