"""The registry of chosen ids, jobs/.ids: one link each, `<hash of the content>.<name in staging>`.

Who makes a link, and when, lives in submit; what becomes of one after a power cut, in replay.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from farro.errors import Damaged, FarroError, SyncFailed
from farro.host import fs, trees
from farro.store.files import folder as folders
from farro.store.files.context import Ground
from farro.store.port import Submission


def registered(ground: Ground, job_id: str) -> tuple[str, str]:
    """What the registry says of an id: the content's hash and the staging name; empty strings when it says nothing."""
    target = fs.readlink(f"{ground.registry}/{job_id}") or ""
    digest, _, name = target.partition(".")
    if target and (len(digest) != 64 or not name.startswith(f"{job_id}.") or "/" in name):
        raise Damaged(f"jobs/.ids/{job_id} does not point at a staged job: {ascii(target)[:100]}")
    return digest, name


def digest(submission: Submission, prompt: bytes) -> str:
    return _hash(submission.role, prompt, (submission.narrative or "").encode(), submission.payload)


def _hash(role: str, prompt: bytes, narrative: bytes, payload: Mapping[str, bytes]) -> str:
    import hashlib  # here: only ids that a caller chose are hashed

    whole = hashlib.sha256()
    parts = [role.encode(), prompt, narrative]
    for name in sorted(payload):
        parts += [name.encode(), payload[name]]
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.hexdigest()


def digest_of(folder: str) -> str | None:
    """Of a staged job's content, as it was computed when it was staged; None when it cannot be read any more."""
    try:
        role = folders.read_lifecycle(folder).role
        narrative = fs.read_bytes(f"{folder}/prompt.md") if fs.exists(f"{folder}/prompt.md") else b""
        names = fs.listdir(f"{folder}/payload") if fs.exists(f"{folder}/payload") else []
        payload = {name: fs.read_bytes(f"{folder}/payload/{name}") for name in names}
        return _hash(role, fs.read_bytes(f"{folder}/prompt.json"), narrative, payload)
    except (FarroError, OSError):
        return None


def make_durable(ground: Ground, name: str) -> None:
    """What another submitter staged under that name, and perhaps only meant to write into a journal. Where it is gone
    somebody has published it, and that one did this or has a record."""
    if not ground.policy.durable:
        return
    folder = f"{ground.staging}/{name}"
    for path in (*trees.everything(folder), folder, ground.staging):
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
