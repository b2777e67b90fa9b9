"""Attach the state of a git repository to a job, so that its run can be reproduced: the tracked files as a tar, and
what differs from the last commit as a diff.

Files that git does not track are left out: among them are the results of builds, and secrets.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile

from farro.errors import InputError, Refused
from farro.host import fs, programs

TAR, DIFF = "workspace.tar", "workspace.diff"
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
_NAMES = 64 << 20  # bytes of the list of names
_PATIENCE_S = 60.0


def take(folder: str, limit: int) -> dict[str, bytes]:
    """Return the two files by name. The same state gives the same bytes. Refused: they are larger than `limit`."""
    names = _git(folder, "ls-files", "-z", "--full-name", ".", limit=_NAMES).split(b"\0")
    top = os.fsdecode(_git(folder, "rev-parse", "--show-toplevel", limit=1 << 16)).removesuffix("\n")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted({os.fsdecode(name) for name in names if name}):
            _add(tar, f"{top}/{name}", name)
            if archive.tell() > limit:
                raise _too_large(folder, limit)
    base = "HEAD" if _answer(folder, "rev-parse", "--verify", "HEAD", limit=1 << 16).code == 0 else "--cached"
    diff = _git(folder, "diff", "--binary", "--no-ext-diff", "--no-textconv", base, "--", ".", limit=limit + 1)
    found = {TAR: archive.getvalue(), DIFF: diff}
    if sum(map(len, found.values())) > limit:
        raise _too_large(folder, limit)
    return found


def _add(tar: tarfile.TarFile, path: str, name: str) -> None:
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return  # deleted in the working tree; the diff says so
    entry = tarfile.TarInfo(name)
    entry.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
    if stat.S_ISLNK(status.st_mode):
        entry.type, entry.linkname = tarfile.SYMTYPE, fs.readlink(path) or ""
        tar.addfile(entry)
    elif stat.S_ISREG(status.st_mode):
        data = fs.read_bytes(path)
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))


def _git(folder: str, *words: str, limit: int) -> bytes:
    answer = _answer(folder, *words, limit=limit)
    if answer.trouble is not None or answer.code != 0:
        told = _answer(folder, *words, limit=limit, errors=True).stdout.decode("utf-8", "replace").strip().splitlines()
        why = answer.trouble or (told[-1] if told else "it failed")
        raise InputError(f"the workspace {folder} cannot be attached: git {words[0]}: {why}")
    return answer.stdout


def _answer(folder: str, *words: str, limit: int, errors: bool = False) -> programs.ProgramAnswer:
    argv = (*_GIT, *words)
    return programs.ask(argv, timeout_s=_PATIENCE_S, limit=limit, cwd=folder, env=os.environ, errors=errors)


def _too_large(folder: str, limit: int) -> Refused:
    return Refused(f"the workspace {folder} is too large: {limit} bytes are left for this job (security.max_job_bytes)")
