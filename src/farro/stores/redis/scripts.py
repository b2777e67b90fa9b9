"""The scripts: their texts from the folder scripts/, each with the prelude before it, and their digests.

Sending them lives in server; what they do is said at the head of each.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, fields

_FOLDER = os.path.join(os.path.dirname(__file__), "scripts")


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    name: str
    text: str
    sha: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Scripts:
    """A field a file of scripts/."""

    agents: Script
    beat: Script
    claim: Script
    commit: Script
    decide: Script
    enqueue: Script
    fence: Script
    forget: Script
    join: Script
    judged: Script
    leave: Script
    look: Script
    note: Script
    remove: Script
    survey: Script
    unclaim: Script


def load(*, lease_ms: int, keep_changes: int, keep_audit: int) -> Scripts:
    """What is the same for every call of this process stands in the text and is not sent each time."""
    # As texts: what is only passed on would be spelled anew by each call.
    head = f"local LEASE, FEED, LOG = {lease_ms}, '{max(keep_changes, 1)}', '{max(keep_audit, 1)}'\n"
    head += _text("prelude")

    def read(name: str) -> Script:
        text = head + _text(name)
        # Redis knows a script by its SHA-1; nothing here is kept secret by it.
        return Script(name=name, text=text, sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    return Scripts(**{item.name: read(item.name) for item in fields(Scripts)})


def _text(name: str) -> str:
    with open(f"{_FOLDER}/{name}.lua", encoding="utf-8") as file:  # may be a link: some installers make links
        return file.read()
