"""Paused queues: `agents/<Role>/.paused` says who paused the queue, when and why.

A claim checks for the file first. After a crash the file is there or not; a call that raised may have taken effect.
"""

from __future__ import annotations

import contextlib
import errno

from farro.host import fs
from farro.store.files.context import FilesContext
from farro.store.port import QueuePause

RESUMED = ".resumed"  # a file moved into a queue for a moment, so that the watching workers look again
_BYTES = 64 << 10
_UNREADABLE = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.ELOOP})  # another user's file, or not a file


def path(context: FilesContext, role: str) -> str:
    return f"{context.root}/agents/{role}/.paused"


def is_paused(context: FilesContext, role: str) -> bool:
    return fs.exists(path(context, role))


def pause(context: FilesContext, role: str, paused: QueuePause) -> bool:
    place = path(context, context.check_role(role))
    staged = fs.temporary(context.staging)
    try:
        fs.create(staged, paused.to_json() + b"\n")
        context.sync([staged])
        fs.move(staged, place)
    except BaseException as error:
        with contextlib.suppress(OSError):
            fs.unlink(staged)
        if isinstance(error, FileExistsError):
            return False
        raise
    context.sync([place.rsplit("/", 1)[0]])
    return True


def resume(context: FilesContext, role: str) -> bool:
    place = path(context, context.check_role(role))
    try:
        fs.unlink(place)
    except FileNotFoundError:
        return False
    context.sync([place.rsplit("/", 1)[0]])
    signal = f"{context.incoming(role)}/{RESUMED}"
    with contextlib.suppress(OSError):  # the queue is resumed in any case: a worker that is not woken rescans later
        staged = fs.temporary(context.staging)
        fs.create(staged, b"")
        fs.replace(staged, signal)
        fs.unlink(signal)
    return True


def paused(context: FilesContext) -> dict[str, QueuePause]:
    found = {}
    for role in context.roles():
        try:
            found[role] = QueuePause.from_json(fs.read_bytes(path(context, role), _BYTES))
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            found[role] = QueuePause.from_json(b"")  # unreadable, but claims respect it
    return found
