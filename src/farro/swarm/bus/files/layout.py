"""The layout of the files bus, and the encoding of a message.

    bus/.lock                               one declaration at a time
    bus/.bindings                           changes with each declaration; empty while one is in progress
    bus/.staging/                           messages and queues that are being made
    bus/queues/<queue>/queue.json           its bindings, its dead letters
    bus/queues/<queue>/.lease               of an exclusive queue: flock'd by the process that declared it
    bus/queues/<queue>/ready/<message>      waiting, in the order of the names
    bus/queues/<queue>/taken/<consumer>/    a consumer's folder with its .lease, and what it has taken

A message is one line of JSON and then its body. Its name begins with the time of sending, and ends in ~N after it was
given to N consumers.
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
from farro.swarm.bus.port import BusMessage

READY, TAKEN, ABOUT, LEASE = "ready", "taken", "queue.json", ".lease"
ABOUT_LIMIT = 1 << 20
MESSAGE_LIMIT = 64 << 20
KEEP_S = 3600.0  # no process stages for an hour

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,199}")
_MESSAGE = re.compile(r"[0-9]{20}\.[0-9]{10}\.[0-9a-f]{16}(?:~([0-9]{1,6}))?")


def check(name: str) -> str:
    """Return a valid name of a queue or an exchange, or raise BadName: names become paths."""
    if _NAME.fullmatch(name) is None or ".." in name:
        raise BadName(f"{ascii(name)[:100]} is not a valid name of a queue or an exchange")
    return name


def is_message(name: str) -> bool:
    return _MESSAGE.fullmatch(name) is not None


def given_before(name: str) -> bool:
    return "~" in name


def given_again(name: str) -> str:
    """Return the name of a message that goes back: it keeps its place in the order."""
    found = _MESSAGE.fullmatch(name)
    assert found is not None, name
    return f"{name.partition('~')[0]}~{int(found[1] or 0) + 1}"


def encode(message: BusMessage) -> bytes:
    head = {"key": message.key, "message_id": message.message_id, "headers": dict(message.headers)}
    return json.dumps(head).encode() + b"\n" + message.body


def decode(data: bytes, path: str) -> BusMessage:
    head, _, body = data.partition(b"\n")
    try:
        fields = json.loads(head)
        return BusMessage(
            key=str(fields["key"]), message_id=str(fields["message_id"]), headers=dict(fields["headers"]), body=body
        )
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise Damaged(f"{path} is not a valid message: {error}") from error


class Layout:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.staging = f"{folder}/.staging"
        self.queues = f"{folder}/queues"
        self.lock = f"{folder}/.lock"
        self._generation_file = f"{folder}/.bindings"
        self._numbers = itertools.count()

    def make(self) -> None:
        with contextlib.suppress(FileExistsError):
            fs.mkdir_private(self.folder)  # messages may hold secrets, such as the `env` of plans
        for path in (self.staging, self.queues):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(path)

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Change queues or bindings inside, under the lock. Publishers read the bindings each time meanwhile, and once
        after it. If a process dies inside, they go on reading them each time."""
        fs.write_atomic(self._generation_file, b"", sync=False)
        yield
        fs.write_atomic(self._generation_file, os.urandom(8).hex().encode(), sync=False)

    def generation(self) -> str | None:
        """Return a value that changes with any queue or binding; None means: read them each time. Read it before
        them."""
        try:
            return fs.read_bytes(self._generation_file, 64).decode() or None
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
        """Remove a queue: moved away first, then deleted, so that a publisher sees all of it or nothing."""
        aside = fs.temporary(self.staging)
        try:
            fs.move(self.queue(queue), aside)
        except FileNotFoundError:
            return
        trees.remove_tree(aside)
