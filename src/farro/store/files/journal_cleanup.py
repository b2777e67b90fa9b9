"""Forgetting journals: everything that their records stand for is synced, then they go. Also those of dead processes.

Writing them lives in journal; those of an earlier boot are replayed first (replay).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from farro.errors import SyncFailed
from farro.host import fs, leases
from farro.store.files.journal_records import FAILED, FOLDER, names


def mark_failed(root: str, boot_id: str) -> None:
    """A sync of the filesystem failed: what the journals of this boot say may be nowhere else."""
    with contextlib.suppress(OSError):
        fs.create(f"{root}/{FOLDER}/{boot_id}{FAILED}", b"")


def has_failed(root: str, boot_id: str) -> bool:
    return fs.exists(f"{root}/{FOLDER}/{boot_id}{FAILED}")


def forget(root: str, boot_id: str, files: Sequence[tuple[str, leases.Lease]]) -> None:
    """Sync everything that the records stand for, then remove them, durably: a file that came back with the power would
    bring a job back that was pruned meanwhile. SyncFailed: they stay."""
    if has_failed(root, boot_id):
        raise SyncFailed(f"a sync failed since this machine started: {root}/{FOLDER} is kept until it starts again")
    try:
        fs.sync_filesystem(files[0][1].fd, files[0][0])
    except OSError as error:
        mark_failed(root, boot_id)
        raise SyncFailed(f"{root}: sync failed: {error.strerror}; check the device (dmesg)") from error
    for path, _ in files:
        with contextlib.suppress(FileNotFoundError):  # met half made: its maker was refused the lock, and took it away
            fs.unlink(path)
    fs.sync_all([f"{root}/{FOLDER}"])


def sweep(root: str, boot_id: str) -> list[str]:
    """Free the journals of processes that died since the machine started: their folders are written, as far as they
    were, and only have to be synced. [test_a_journal_of_a_dead_process_is_freed_by_a_watchdog]"""
    found = names(root)
    if not boot_id or f"{boot_id}{FAILED}" in found:
        return []
    dead: list[tuple[str, leases.Lease]] = []
    try:
        for name in found:
            if name.startswith(f"{boot_id}."):
                path = f"{root}/{FOLDER}/{name}"
                with contextlib.suppress(FileNotFoundError):
                    lease = leases.take(path)
                    if lease is not None:
                        dead.append((path, lease))
        if dead:
            forget(root, boot_id, dead)
        return [path.rsplit("/", 1)[1] for path, _ in dead]
    finally:
        for _, lease in dead:
            lease.drop()
