"""SUBSCRIBE, PSUBSCRIBE and their ends.

What is published lives in channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from farro.agq.channels import MAX_SUBSCRIPTIONS
from farro.agq.glob import MAX_LENGTH
from farro.agq.handlers.table import table
from farro.agq.replies import CommandError, Push, Several

if TYPE_CHECKING:
    from farro.agq.connection import Connection


def subscribe(connection: Connection, args: list[bytes]) -> Any:
    return _begin(connection, args, b"subscribe", connection.server.channels.subscribe)


def psubscribe(connection: Connection, args: list[bytes]) -> Any:
    return _begin(connection, args, b"psubscribe", connection.server.channels.psubscribe)


def _begin(connection: Connection, args: list[bytes], word: bytes, begin: Callable[[Any, bytes], None]) -> Any:
    if connection.executing:
        raise CommandError("no subscriptions between MULTI and EXEC")
    if any(len(name) > MAX_LENGTH for name in args[1:]):
        raise CommandError(f"the name of a channel has at most {MAX_LENGTH} bytes")
    if _count(connection) + len(args) - 1 > MAX_SUBSCRIPTIONS:
        raise CommandError(f"at most {MAX_SUBSCRIPTIONS} subscriptions of one connection")
    answers = []
    for name in args[1:]:
        begin(connection, name)
        answers.append(Push((word, name, _count(connection))))
    connection.server.feed_updates()
    return Several(tuple(answers))


def unsubscribe(connection: Connection, args: list[bytes]) -> Any:
    names = args[1:] or sorted(connection.channels)
    return _end(connection, names, b"unsubscribe", connection.server.channels.unsubscribe)


def punsubscribe(connection: Connection, args: list[bytes]) -> Any:
    names = args[1:] or sorted(connection.patterns)
    return _end(connection, names, b"punsubscribe", connection.server.channels.punsubscribe)


def _end(connection: Connection, names: list[bytes], word: bytes, end: Callable[[Any, bytes], None]) -> Any:
    if connection.executing:
        raise CommandError("no subscriptions between MULTI and EXEC")
    answers = []
    for name in names:
        end(connection, name)
        answers.append(Push((word, name, _count(connection))))
    return Several(tuple(answers or [Push((word, None, _count(connection)))]))


def _count(connection: Connection) -> int:
    return len(connection.channels) + len(connection.patterns)


TABLE = table(
    ("SUBSCRIBE", subscribe, 1, None),
    ("PSUBSCRIBE", psubscribe, 1, None),
    ("UNSUBSCRIBE", unsubscribe, 0, None),
    ("PUNSUBSCRIBE", punsubscribe, 0, None),
)
