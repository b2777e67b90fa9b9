"""The scripts: their texts from the folder scripts/, each with what it needs of the prelude, and their digests.

Sending them lives in server; what they do is said at the head of each.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import fields

from farro.lazy_dataclass import dataclass

_DEFINED = re.compile(r"^local (?:function )?(\w+(?:, \w+)*)", re.MULTILINE)  # names, at the head of a part
_FLAGS = re.compile(r"(#!lua [^\n]*\n)?(.*)", re.DOTALL)  # must stay at the very beginning
_WORD, _COMMENT = re.compile(r"\w+"), re.compile(r"--.*")
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
    enter: Script
    fence: Script
    forget: Script
    join: Script
    judged: Script
    leave: Script
    look: Script
    note: Script
    remove: Script
    resume: Script
    survey: Script
    unclaim: Script


def load(*, lease_ms: int, keep_changes: int, keep_audit: int) -> Scripts:
    """What is the same for every call of this process stands in the text and is not sent each time."""
    # As texts: what is only passed on would be spelled anew by each call.
    head = f"local LEASE, FEED, LOG = {lease_ms}, '{max(keep_changes, 1)}', '{max(keep_audit, 1)}'\n"
    parts = _parts(_text("prelude"))

    def read(name: str) -> Script:
        flags, script = _FLAGS.fullmatch(_text(name)).groups("")  # type: ignore[union-attr]  # matches any text
        text = flags + head + _needed(parts, script)
        # Redis knows a script by its SHA-1; nothing here is kept secret by it.
        return Script(name=name, text=text, sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    return Scripts(**{item.name: read(item.name) for item in fields(Scripts)})


def _parts(prelude: str) -> list[tuple[list[str], str]]:
    """The parts of the prelude, each with the names that it defines."""
    parts = []
    for part in prelude.split("\n\n"):
        defined = [name for names in _DEFINED.findall(part) for name in re.split(r",\s*", names)]
        if defined:
            parts.append((defined, part + "\n"))
    return parts


def _needed(parts: Sequence[tuple[list[str], str]], script: str) -> str:
    """The script behind the parts that it needs: everything there is made anew by every call."""
    text = script
    for defined, part in reversed(parts):
        if not {*defined}.isdisjoint(_WORD.findall(_COMMENT.sub("", text))):
            text = part + text
    return text


def _text(name: str) -> str:
    with open(f"{_FOLDER}/{name}.lua", encoding="utf-8") as file:  # may be a link: some installers make links
        return file.read()
