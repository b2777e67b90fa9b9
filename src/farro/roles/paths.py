"""The lexical rules of allowed_paths: what a path means, and which paths no job may be allowed to write.

Pure text. Where a path leads on the disk (links, mounts) is checked by the sandbox.

Paths are relative to the root of the repository. `\\` means `/`, `..` and `.` are collapsed, and a slash at the end
means "a folder, created if necessary". `.` is the whole repository; the sandbox still keeps what is `PROTECTED` in it
read-only. Names are compared without case: on some disks AGENTS.MD is AGENTS.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from farro.documents.model import show
from farro.lazy_dataclass import dataclass

MAX_PATHS = 256  # each is a mount or a rule in every process
MAX_LENGTH = 1024

# What the queue, its policy and the swarms are made of, at the root. A job that may write here may give work to other
# jobs, or to itself with more rights. The same holds for tasks/, which the manager follows, and for requests to swarms.
# [test_everything_that_farro_makes_in_a_root_is_its_own]
PROTECTED_FOLDERS = ("agents", "bus", "jobs", "logs", "schemas", "schedules", "swarms", "tasks")
PROTECTED_FILES = ("AGENTS.md", "policy.lock.json", "agents-config.json", "agents-config.yaml")
PROTECTED = (*PROTECTED_FOLDERS, *PROTECTED_FILES, ".git")
GIT = ".git"  # also in subfolders: its hooks are programs that other users run

_AT_ROOT = frozenset(name.lower() for name in PROTECTED)
_CONFIG = "agents-config."
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_DRIVE = re.compile(r"[A-Za-z]:")


@dataclass(frozen=True, eq=False)
class AllowedPathRule:
    """Check what every path in the list must satisfy, whatever the config allows."""

    def fault(self, value: str, /) -> str | None:
        return _malformed(value)

    def schema(self) -> dict[str, Any]:
        return {"minLength": 1, "maxLength": MAX_LENGTH, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$"}


AllowedPath = Annotated[str, AllowedPathRule()]


def normalise(path: str) -> str:
    """Return the one spelling of a path: `src/a/` for `./src//b/../a/`.

    An absolute path stays absolute. `..` at the front of a relative path stays; `fault` reports it as an escape.
    """
    text = path.replace("\\", "/")
    drive = _DRIVE.match(text)
    head = "" if drive is None else drive[0].upper()
    rest = text[len(head) :]
    absolute = rest.startswith("/")
    parts: list[str] = []
    for part in rest.split("/"):
        if part in ("", "."):
            continue
        if part != "..":
            parts.append(part)
        elif parts and parts[-1] != "..":
            parts.pop()
        elif not absolute:
            parts.append(part)
    if not parts:
        return f"{head}/" if absolute else head or "."
    folder = "/" if rest.endswith(("/", "/.", "/..")) else ""
    return f"{head}{'/' if absolute else ''}{'/'.join(parts)}{folder}"


def is_absolute(path: str) -> bool:
    return path.startswith(("/", "\\")) or _DRIVE.match(path) is not None


def fault(path: str, *, allow_absolute: bool, root: str | None = None) -> str | None:
    """Say why no job may be allowed this path; None if it is lexically allowed.

    With `root`, an absolute path is also compared with what is protected in that root.
    """
    if (wrong := _malformed(path)) is not None:
        return wrong
    whole = normalise(path)
    inside: str | None = whole
    if is_absolute(whole):
        if not allow_absolute:
            return (
                f"{show(path)} is absolute; write it relative to the root of the repository, "
                "or set security.allow_absolute_paths in the config"
            )
        if _DRIVE.match(whole) and whole[2:3] != "/":
            return f"{show(path)} depends on the current folder of its drive; write the whole path"
        inside = _beneath(whole, root)
    elif whole.split("/", 1)[0] == "..":
        return f"{show(path)} leads out of the repository; name a path inside it"
    if (name := protected_part(whole, inside)) is not None:
        return f"{show(path)} belongs to the queue or to git ({name}), which no job may write; name another path"
    return None


def protected_part(whole: str, inside: str | None) -> str | None:
    """Return the protected part of a normalised path, or None. `inside` is its path relative to the root, if any."""
    for part in whole.split("/"):
        if part.lower() == GIT:
            return part
    first = "" if inside is None else inside.split("/", 1)[0]
    return first if first.lower() in _AT_ROOT or first.lower().startswith(_CONFIG) else None


def _malformed(path: str) -> str | None:
    if not path or path.isspace():
        return "must not be empty; write . for the whole repository"
    if len(path) > MAX_LENGTH:
        return f"may have at most {MAX_LENGTH} characters; it has {len(path)}"
    if _CONTROL.search(path):
        return "contains a control character, which no path may have; remove it"
    if path == "~" or path.startswith(("~/", "~\\")):
        return "begins with ~, which no shell expands here; write the path"
    if "*" in path or "?" in path:
        return f"{show(path)} is a pattern; name the folder, which includes everything in it: src/"
    return None


def _beneath(whole: str, root: str | None) -> str | None:
    if root is None:
        return None
    base = normalise(root).rstrip("/")
    return whole[len(base) + 1 :] if whole.startswith(f"{base}/") else None


def within(path: str, allowed: Sequence[str]) -> bool:
    """Tell whether a job that may write `allowed` may write `path`, by spelling alone: a folder includes all in it."""
    wanted = normalise(path).rstrip("/")
    for each in allowed:
        base = normalise(each).rstrip("/")
        if base == "." and not is_absolute(wanted) and wanted.split("/", 1)[0] != "..":
            return True
        if wanted == base or wanted.startswith(f"{base}/"):
            return True
    return False
