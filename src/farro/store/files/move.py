"""Move a job's folder with one rename that never replaces, and interpret its errors (R1, R7)."""

from __future__ import annotations

import contextlib
import errno
from enum import Enum, auto

from farro.errors import Damaged, StorageTrouble
from farro.host import fs
from farro.jobs import places
from farro.store.files.context import FilesContext


class MoveResult(Enum):
    DONE = auto()
    GONE = auto()  # the source does not exist any more: another agent moved it
    NO_DESTINATION = auto()  # the source exists, but the parent folder of the destination does not


def try_move(source: str, path: str) -> MoveResult:
    """Rename `source` to `path`. After an ambiguous error, check both ends before deciding anything (R7).

    Raises FileExistsError: the caller knows whether that is a race or damage.
    """
    while True:
        try:
            fs.move(source, path)
        except FileNotFoundError:
            if not fs.exists(source):
                return MoveResult.GONE
            if not fs.exists(path.rsplit("/", 1)[0]):
                return MoveResult.NO_DESTINATION
            # Both exist now: the job left and came back, or the folder was made again. Without this retry a worker that
            # met a job on its way back was declared dead.
            continue
        except OSError as error:
            if error.errno in fs.TRANSIENT and not fs.exists(source) and fs.exists(path):
                return MoveResult.DONE  # the rename took effect, but its result was lost
            raise
        return MoveResult.DONE


def deliver(context: FilesContext, folder: str, to: str, job_id: str, *, sync: bool = True) -> bool:
    """Move a folder that we own to a shared place, durably with `sync`. False: it was taken from us.

    If a job with that id is already there, one id exists in two places: ours goes to quarantine and is shown as failed
    (RELIABILITY 31). A missing destination raises StorageTrouble and leaves the source untouched.
    """
    destination = context.path(to)
    try:
        moved = fs.retried(lambda: try_move(folder, f"{destination}/{job_id}"), folder, context.clock.sleep)
    except FileExistsError as error:
        quarantine(context, folder, job_id, f"a job of this id is already in {to}")
        raise Damaged(
            f"{job_id}: a job of this id is already in {to}; this one is now in {places.QUARANTINE}"
        ) from error
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise cross_device_error(context, job_id, to) from error
        raise
    if moved is MoveResult.NO_DESTINATION:
        raise StorageTrouble(f"{destination} is missing, so {job_id} stays where it is; `farro init` makes it again")
    if moved is MoveResult.GONE:
        return False
    if sync:
        context.sync([destination])
    return True


def cross_device_error(context: FilesContext, job_id: str, to: str) -> StorageTrouble:
    """Audit a move that a rename cannot make (SPEC-1 §5), and return the error to raise. Copying instead would put the
    job in two places, and no process could tell who owns it: docs/decisions/a-root-is-one-filesystem.md."""
    context.audit("cross_volume_forbidden", job_id=job_id, place=to)
    return StorageTrouble(
        f"{job_id}: {to} is on another device or mount than the rest of the root, and a job is handed on by a rename; "
        "nothing was changed. `farro doctor` says what to do"
    )


def quarantine(context: FilesContext, folder: str, job_id: str, why: str) -> None:
    """Move a job that contradicts itself to quarantine, with the reason in a file. It is never overwritten by a
    guess."""
    name = job_id
    for _ in range(8):
        with contextlib.suppress(FileNotFoundError, FileExistsError, NotADirectoryError):
            fs.create(f"{folder}/quarantine.txt", why.encode() + b"\n")
        try:
            fs.move(folder, context.path(places.QUARANTINE, name))
        except FileExistsError:
            name = f"{job_id}.{context.random_bits(32):08x}"
            continue
        except FileNotFoundError:
            return
        context.sync([context.path(places.QUARANTINE)])
        context.log("critical", "job quarantined", {"job_id": job_id, "why": why})
        # The agent that quarantines has the job in its own folder (R1), and that folder is named after the agent.
        context.audit("quarantined", actor=folder.split("/")[-2], job_id=job_id, status="failed")
        return
