"""The lexical rules of allowed_paths: what a path means, and which ones nobody may be allowed. Pure text.

What a path leads to on a disk (links, mounts) is the sandbox's matter: guard.

Paths are relative to the root of the repository. `\\` is `/`, `..` and `.` are collapsed, a slash at the end says
"a folder, made if need be". `.` is the whole repository: what is `PROTECTED` in it stays read-only all the same, which
the sandbox sees to. Names are compared without case: on some disks AGENTS.MD is AGENTS.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from farro.documents.model import show
from farro.lazy_dataclass import dataclass

MAX_PATHS = 256  # each is a mount, or a rule, of every process
MAX_LENGTH = 1024

# What the queue, its policy and the swarms are made of, at the root. Whoever may write here may give work to others, or
# to themselves with more rights: so may whoever writes tasks/, which the manager follows, or what is asked of swarms.
# [test_everything_that_farro_makes_in_a_root_is_its_own]
PROTECTED_FOLDERS = ("agents", "bus", "jobs", "logs", "schemas", "schedules", "swarms", "tasks")
PROTECTED_FILES = ("AGENTS.md", "policy.lock.json", "agents-config.json", "agents-config.yaml")
PROTECTED = (*PROTECTED_FOLDERS, *PROTECTED_FILES, ".git")
GIT = ".git"  # also further down: its hooks are programs that others run

_AT_ROOT = frozenset(name.lower() for name in PROTECTED)
_CONFIG = "agents-config."
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_DRIVE = re.compile(r"[A-Za-z]:")


@dataclass(frozen=True, eq=False)
class AllowedPathRule:
    """What any path of the list must be, whatever the config allows."""

    def fault(self, value: str, /) -> str | None:
        return _malformed(value)

    def schema(self) -> dict[str, Any]:
        return {"minLength": 1, "maxLength": MAX_LENGTH, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$"}


AllowedPath = Annotated[str, AllowedPathRule()]


def normalise(path: str) -> str:
    """The one spelling of a path: `src/a/` for `./src//b/../a/`. An absolute path stays absolute; `..` at the front of
    a relative one stays, and is what `fault` calls an escape."""
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
    """Why nobody may be allowed this path; None: lexically it may be. With `root`, an absolute path is also held
    against what is protected in there."""
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
            return f"{show(path)} depends on where its drive stands; write the whole path"
        inside = _beneath(whole, root)
    elif whole.split("/", 1)[0] == "..":
        return f"{show(path)} leads out of the repository; name a path inside it"
    if (name := protected_part(whole, inside)) is not None:
        return f"{show(path)} belongs to the queue or to git ({name}), which no job may write; name another path"
    return None


def protected_part(whole: str, inside: str | None) -> str | None:
    """What of a normalised path is protected. `inside`: as it is relative to the root, where it lies in there."""
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
        return "holds a control character, which no path here can have; take it out"
    if path == "~" or path.startswith(("~/", "~\\")):
        return "begins with ~, which no shell expands here; write the path"
    if "*" in path or "?" in path:
        return f"{show(path)} is a pattern; name the folder, and all in it is meant: src/"
    return None


def _beneath(whole: str, root: str | None) -> str | None:
    if root is None:
        return None
    base = normalise(root).rstrip("/")
    return whole[len(base) + 1 :] if whole.startswith(f"{base}/") else None


def within(path: str, allowed: Sequence[str]) -> bool:
    """Whether what may write `allowed` may write `path`, by their spelling: a folder holds all that is in it."""
    wanted = normalise(path).rstrip("/")
    for each in allowed:
        base = normalise(each).rstrip("/")
        if base == "." and not is_absolute(wanted) and wanted.split("/", 1)[0] != "..":
            return True
        if wanted == base or wanted.startswith(f"{base}/"):
            return True
    return False
