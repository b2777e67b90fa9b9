"""Where things of the files bus lie, and how a message is spelled.

    bus/.lock                               one declaration at a time
    bus/.bindings                           another word after each declaration, none while one goes on
    bus/.staging/                           messages and queues that are being made
    bus/queues/<queue>/queue.json           its bindings, its dead letters
    bus/queues/<queue>/.lease               of an exclusive queue: flock'd by whoever declared it
    bus/queues/<queue>/ready/<message>      waiting, in the order of the names
    bus/queues/<queue>/taken/<consumer>/    a consumer's folder with its .lease, and what it has taken

A message is one line of JSON and its body as it is. Its name begins with the time at which it was sent, and ends in ~N
when it was given to N consumers before.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import time
from collections.abc import Iterator

from farro.errors import BadName, Damaged
from farro.host import fs, trees
from farro.swarm.bus.port import Message

READY, TAKEN, ABOUT, LEASE = "ready", "taken", "queue.json", ".lease"
ABOUT_LIMIT = 1 << 20
MESSAGE_LIMIT = 64 << 20
KEEP_S = 3600.0  # nobody stages for an hour

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,199}")
_MESSAGE = re.compile(r"[0-9]{20}\.[0-9]{10}\.[0-9a-f]{16}(?:~([0-9]{1,6}))?")


def check(name: str) -> str:
    """Of a queue or an exchange: no path is built from anything else."""
    if _NAME.fullmatch(name) is None or ".." in name:
        raise BadName(f"{ascii(name)[:100]} is no name of a queue or an exchange")
    return name


def is_message(name: str) -> bool:
    return _MESSAGE.fullmatch(name) is not None


def given_before(name: str) -> bool:
    return "~" in name


def given_again(name: str) -> str:
    """Its name when it goes back: the same place in the order."""
    found = _MESSAGE.fullmatch(name)
    assert found is not None, name
    return f"{name.partition('~')[0]}~{int(found[1] or 0) + 1}"


def encode(message: Message) -> bytes:
    head = {"key": message.key, "message_id": message.message_id, "headers": dict(message.headers)}
    return json.dumps(head).encode() + b"\n" + message.body


def decode(data: bytes, path: str) -> Message:
    head, _, body = data.partition(b"\n")
    try:
        told = json.loads(head)
        return Message(
            key=str(told["key"]), message_id=str(told["message_id"]), headers=dict(told["headers"]), body=body
        )
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise Damaged(f"{path} is no message: {error}") from error


class Layout:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.staging = f"{folder}/.staging"
        self.queues = f"{folder}/queues"
        self.lock = f"{folder}/.lock"
        self._word = f"{folder}/.bindings"
        self._numbers = itertools.count()

    def make(self) -> None:
        with contextlib.suppress(FileExistsError):
            fs.mkdir_private(self.folder)  # what is said, plans with their `env` among it, is nobody else's
        for path in (self.staging, self.queues):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(path)

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Queues or bindings are changed inside, under the lock. Whoever has read them reads them again: those who look
        now, every time; those who look later, once. One that dies inside leaves it so that everybody looks."""
        fs.write_atomic(self._word, b"", sync=False)
        yield
        fs.write_atomic(self._word, os.urandom(8).hex().encode(), sync=False)

    def generation(self) -> str | None:
        """The same as long as no queue and no binding changed; read before they are. None: look every time."""
        try:
            return fs.read_bytes(self._word, 64).decode() or None
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        return [name for name in fs.subdirectories(self.queues) if _NAME.fullmatch(name)]

    def queue(self, queue: str) -> str:
        return f"{self.queues}/{queue}"

    def about(self, queue: str) -> str:
        return f"{self.queues}/{queue}/{ABOUT}"

    def ready(self, queue: str) -> str:
        return f"{self.queues}/{queue}/{READY}"

    def taken(self, queue: str) -> str:
        return f"{self.queues}/{queue}/{TAKEN}"

    def new_name(self) -> str:
        return f"{time.time_ns():020d}.{next(self._numbers):010d}.{os.urandom(8).hex()}"

    def old(self, path: str) -> bool:
        return time.time() - fs.lstat(path).st_mtime > KEEP_S

    def remove(self, queue: str) -> None:
        """Out of everybody's sight first, then for good: a publisher meets it whole or not at all."""
        aside = fs.temporary(self.staging)
        try:
            fs.move(self.queue(queue), aside)
        except FileNotFoundError:
            return
        trees.remove_tree(aside)
