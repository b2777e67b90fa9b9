"""Queues that give out no job: `agents/<Role>/.paused`, which says who did that, when and why.

Claims look for it first (claim). A crash leaves it there or not; a call that raised may have been carried out.
"""

from __future__ import annotations

import contextlib
import errno

from farro.host import fs
from farro.store.files.context import Ground
from farro.store.port import QueuePause

RESUMED = ".resumed"  # moved into a queue for a moment: whoever watches it looks again
_BYTES = 64 << 10
_UNREADABLE = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.ELOOP})  # another user's, or no file at all


def path(ground: Ground, role: str) -> str:
    return f"{ground.root}/agents/{role}/.paused"


def is_paused(ground: Ground, role: str) -> bool:
    return fs.exists(path(ground, role))


def pause(ground: Ground, role: str, paused: QueuePause) -> bool:
    place = path(ground, ground.check_role(role))
    staged = fs.temporary(ground.staging)
    try:
        fs.create(staged, paused.to_json() + b"\n")
        ground.sync([staged])
        fs.move(staged, place)
    except BaseException as error:
        with contextlib.suppress(OSError):
            fs.unlink(staged)
        if isinstance(error, FileExistsError):
            return False
        raise
    ground.sync([place.rsplit("/", 1)[0]])
    return True


def resume(ground: Ground, role: str) -> bool:
    place = path(ground, ground.check_role(role))
    try:
        fs.unlink(place)
    except FileNotFoundError:
        return False
    ground.sync([place.rsplit("/", 1)[0]])
    bell = f"{ground.incoming(role)}/{RESUMED}"
    with contextlib.suppress(OSError):  # it goes on all the same: who is not woken looks in a while by itself
        staged = fs.temporary(ground.staging)
        fs.create(staged, b"")
        fs.replace(staged, bell)
        fs.unlink(bell)
    return True


def paused(ground: Ground) -> dict[str, QueuePause]:
    found = {}
    for role in ground.roles():
        try:
            found[role] = QueuePause.from_json(fs.read_bytes(path(ground, role), _BYTES))
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            found[role] = QueuePause.from_json(b"")  # claims find it all the same
    return found
