"""Read policy files, AGENTS.md and AGENTS-ROLE.md: the header with the version, and the version that a job records.

---
version: 1.0.0
role: Architect
---
# Architect …
"""

from __future__ import annotations

import re

from farro.documents.model import refuse, show
from farro.lazy_dataclass import dataclass

SEMVER = (  # semver.org
    r"(?:0|[1-9][0-9]*)\.(?:0|[1-9][0-9]*)\.(?:0|[1-9][0-9]*)"
    r"(?:-(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)
UNVERSIONED = "0.0.0"
OWN = "AGENTS-ROLE.md"
MAX_BYTES = 256 << 10

_RULE = "---"
_FIELD = r"([A-Za-z_][A-Za-z0-9_-]*)\s*:\s*(.*)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """One policy file. `text` is what agents read: everything but the header."""

    version: str | None
    text: str
    warning: str | None = None  # what a person should fix, though the file works


def read(text: str, source: str) -> Policy:
    """Read a policy file.

    A file without a header, or without a version in it, has version None and a warning. A malformed header raises
    BadDocument with its position.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != _RULE:
        return Policy(version=None, text=text, warning=_advice(source, "has no header with its version"))
    end = next((number for number, line in enumerate(lines[1:], start=1) if line.rstrip() == _RULE), None)
    if end is None:
        raise refuse(source, "the header that begins here has no end; write --- on a line of its own after it", (1, 1))
    body = "\n".join(lines[end + 1 :]).strip("\n") + "\n"
    version = None
    for number, line in enumerate(lines[1:end], start=2):
        found = re.fullmatch(_FIELD, line.strip())
        if found is None or found[1].lower() != "version":
            continue  # other fields of the header are free
        if version is not None:
            raise refuse(source, "the version is given twice; keep one", (number, 1))
        version = found[2].split(" #", 1)[0].strip().strip("\"'")
        if re.fullmatch(SEMVER, version) is None:
            message = f"the version is {show(version)}; it must be three numbers, such as 1.0.0 (semver)"
            raise refuse(source, message, (number, 1))
    if version is None:
        return Policy(version=None, text=body, warning=_advice(source, "has no version in its header"))
    return Policy(version=version, text=body)


def file_of(role: str, job_role: str) -> str:
    """Return the file name of a role's policy in a job's snapshot.

    A step of a plan may ask another role than the job's.
    """
    return OWN if role == job_role else f"AGENTS-ROLE.{role}.md"


def policy_version(role_policy: Policy, sha256: str) -> str:
    """Return the version that a job records: the role's, with the start of the snapshot's hash as build metadata."""
    version = role_policy.version or UNVERSIONED
    return f"{version}{'.' if '+' in version else '+'}{sha256[:12]}"


def _advice(source: str, what: str) -> str:
    return f"{source} {what}; begin it with three lines: {_RULE}, version: 1.0.0, {_RULE}"
