"""The registry of chosen ids, jobs/.ids: one link per id, with the target `<hash of the content>.<name in staging>`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from farro.errors import Damaged, FarroError, SyncFailed
from farro.host import fs, trees
from farro.store.files import folder as folders
from farro.store.files.context import FilesContext
from farro.store.port import Submission


def registered(context: FilesContext, job_id: str) -> tuple[str, str]:
    """Return the content's hash and the staging name of a registered id; empty strings when the id is not
    registered."""
    target = fs.readlink(f"{context.registry}/{job_id}") or ""
    digest, _, name = target.partition(".")
    if target and (len(digest) != 64 or not name.startswith(f"{job_id}.") or "/" in name):
        raise Damaged(f"jobs/.ids/{job_id} does not point at a staged job: {ascii(target)[:100]}")
    return digest, name


def digest(submission: Submission, prompt: bytes) -> str:
    return _hash(submission.role, prompt, (submission.narrative or "").encode(), submission.payload)


def _hash(role: str, prompt: bytes, narrative: bytes, payload: Mapping[str, bytes]) -> str:
    import hashlib  # imported here: only submissions with a chosen id are hashed

    whole = hashlib.sha256()
    parts = [role.encode(), prompt, narrative]
    for name in sorted(payload):
        parts += [name.encode(), payload[name]]
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.hexdigest()


def digest_of(folder: str) -> str | None:
    """Recompute the digest of a staged job from its files; None when they can no longer be read."""
    try:
        role = folders.read_lifecycle(folder).role
        narrative = fs.read_bytes(f"{folder}/prompt.md") if fs.exists(f"{folder}/prompt.md") else b""
        names = fs.listdir(f"{folder}/payload") if fs.exists(f"{folder}/payload") else []
        payload = {name: fs.read_bytes(f"{folder}/payload/{name}") for name in names}
        return _hash(role, fs.read_bytes(f"{folder}/prompt.json"), narrative, payload)
    except (FarroError, OSError):
        return None


def make_durable(context: FilesContext, name: str) -> None:
    """Sync a folder that another submitter staged: so far, only that submitter's journal may keep it. If the folder is
    gone, another process has published it, after a sync or a record of its own."""
    if not context.policy.durable:
        return
    folder = f"{context.staging}/{name}"
    for path in (*trees.everything(folder), folder, context.staging):
        try:
            fd = fs.open_read(path)
        except FileNotFoundError:
            return
        try:
            fs.sync_descriptor(fd, path)
        except OSError as error:
            raise SyncFailed(f"{path}: {error.strerror}; {name} is not queued; check the device (dmesg)") from error
        finally:
            os.close(fd)
