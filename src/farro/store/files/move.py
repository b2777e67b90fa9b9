"""Moving a job's folder: one rename that never replaces, and what its errors mean (R1, R7).

Who may move, and what is written before, lives in claim, settle, hold and recover.
"""

from __future__ import annotations

import contextlib
import errno
from enum import Enum, auto

from farro.errors import Damaged, StorageTrouble
from farro.host import fs
from farro.jobs import places
from farro.store.files.context import Ground


class Moved(Enum):
    DONE = auto()
    GONE = auto()  # the source is not there any more: somebody else moved it
    NO_DESTINATION = auto()  # the source is there, but the folder that it shall lie in is not


def try_move(source: str, path: str) -> Moved:
    """After an ambiguous error both ends are looked at before anything is decided (R7).

    FileExistsError goes through: the caller knows whether that is a race or damage.
    """
    while True:
        try:
            fs.move(source, path)
        except FileNotFoundError:
            if not fs.exists(source):
                return Moved.GONE
            if not fs.exists(path.rsplit("/", 1)[0]):
                return Moved.NO_DESTINATION
            # Both are there now: it had left and has come back, or the folder was made again. Without this a worker
            # that met a job on its way back was told that it is dead.
            continue
        except OSError as error:
            if error.errno in fs.PASSING and not fs.exists(source) and fs.exists(path):
                return Moved.DONE  # it happened, and the answer was lost
            raise
        return Moved.DONE


def deliver(ground: Ground, folder: str, to: str, job_id: str, *, sync: bool = True) -> bool:
    """Move a folder that we own to a shared place, durably with `sync`. False: it was taken from us.

    A job of that id at the destination means that one id lies in two places: this one goes to quarantine and is shown
    as failed (RELIABILITY 31). A missing destination leaves the source untouched and says so.
    """
    destination = ground.path(to)
    try:
        moved = fs.retried(lambda: try_move(folder, f"{destination}/{job_id}"), folder, ground.clock.sleep)
    except FileExistsError as error:
        quarantine(ground, folder, job_id, f"a job of this id is already in {to}")
        raise Damaged(
            f"{job_id}: a job of this id is already in {to}; this one is now in {places.QUARANTINE}"
        ) from error
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise crossing(ground, job_id, to) from error
        raise
    if moved is Moved.NO_DESTINATION:
        raise StorageTrouble(f"{destination} is missing, so {job_id} stays where it is; `farro init` makes it again")
    if moved is Moved.GONE:
        return False
    if sync:
        ground.sync([destination])
    return True


def crossing(ground: Ground, job_id: str, to: str) -> StorageTrouble:
    """What a move says that a rename cannot make, and the audit log with it (SPEC-1 §5). Copying instead would have the
    job in two places, and nobody could tell whose it is: docs/decisions/a-root-is-one-filesystem.md."""
    ground.audit("cross_volume_forbidden", job_id=job_id, place=to)
    return StorageTrouble(
        f"{job_id}: {to} is on another device or mount than the rest of the root, and a job is handed on by a rename; "
        "nothing was changed. `farro doctor` says what to do"
    )


def quarantine(ground: Ground, folder: str, job_id: str, why: str) -> None:
    """Put aside what contradicts itself, with the reason beside it; never overwritten by a guess."""
    name = job_id
    for _ in range(8):
        with contextlib.suppress(FileNotFoundError, FileExistsError, NotADirectoryError):
            fs.create(f"{folder}/quarantine.txt", why.encode() + b"\n")
        try:
            fs.move(folder, ground.path(places.QUARANTINE, name))
        except FileExistsError:
            name = f"{job_id}.{ground.random_bits(32):08x}"
            continue
        except FileNotFoundError:
            return
        ground.sync([ground.path(places.QUARANTINE)])
        ground.log("critical", "job quarantined", {"job_id": job_id, "why": why})
        # Whoever quarantines has the job in its own folder (R1), which bears its name.
        ground.audit("quarantined", actor=folder.split("/")[-2], job_id=job_id, status="failed")
        return
