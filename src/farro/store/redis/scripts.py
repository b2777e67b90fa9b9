"""Name the keys, and load the Lua scripts with their digests.

Each script gets only those parts of prelude.lua that it uses.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import fields

from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass

_DEFINED = re.compile(r"^local (?:function )?(\w+(?:, \w+)*)", re.MULTILINE)  # the names that a part defines
_FLAGS = re.compile(r"(#!lua [^\n]*\n)?(.*)", re.DOTALL)  # must stay the first line
_WORD, _COMMENT = re.compile(r"\w+"), re.compile(r"--.*")
_FOLDER = os.path.join(os.path.dirname(__file__), "scripts")


class RedisKeys:
    """The keys that Python reads; scripts build theirs from the same prefix. All keys of one store share a hash tag, so
    they are in one cluster slot and a script may use any of them."""

    def __init__(self, name: str) -> None:
        self.prefix = f"farro:{{{name}}}:"
        self.log = f"{self.prefix}log"
        self.names = f"{self.prefix}names"
        self.stale = f"{self.prefix}stale"
        self.open = f"{self.prefix}open"
        self.marked = f"{self.prefix}marked"
        self.paused = f"{self.prefix}paused"

    def job(self, job_id: str) -> str:
        return f"{self.prefix}job:{job_id}"

    def files(self, job_id: str) -> str:
        return f"{self.prefix}files:{job_id}"

    def feed(self, role: str) -> str:
        return f"{self.prefix}feed:{role}"

    def bell(self, role: str) -> str:
        return f"{self.prefix}bell:{role}"

    def due(self, role: str) -> str:
        return f"{self.prefix}due:{role}"

    def waits(self, role: str) -> str:
        return f"{self.prefix}waits:{role}"

    def held(self, agent_id: str) -> str:
        return f"{self.prefix}held:{agent_id}"

    def index(self, role: str, status: Status) -> str:
        return f"{self.prefix}at:{role}:{status}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LuaScript:
    """A script and the digest by which the server knows it."""

    name: str
    text: str
    sha: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LuaScripts:
    """One field for each script file, named after it."""

    agents: LuaScript
    beat: LuaScript
    claim: LuaScript
    commit: LuaScript
    decide: LuaScript
    enqueue: LuaScript
    enter: LuaScript
    fence: LuaScript
    forget: LuaScript
    join: LuaScript
    judged: LuaScript
    late: LuaScript
    leave: LuaScript
    look: LuaScript
    note: LuaScript
    remove: LuaScript
    resume: LuaScript
    survey: LuaScript
    unclaim: LuaScript


def load(*, lease_ms: int, keep_changes: int, keep_audit: int) -> LuaScripts:
    """Load all scripts. Values that never change in this process are constants in their text, not arguments."""
    # Strings, because Lua would convert the numbers in every call that only passes them on.
    head = f"local LEASE, FEED, LOG = {lease_ms}, '{max(keep_changes, 1)}', '{max(keep_audit, 1)}'\n"
    parts = _parts(_text("prelude"))

    def read(name: str) -> LuaScript:
        flags, script = _FLAGS.fullmatch(_text(name)).groups("")  # type: ignore[union-attr]  # matches any text
        text = flags + head + _needed(parts, script)
        # Redis names scripts by SHA-1; no security depends on it.
        return LuaScript(name=name, text=text, sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    return LuaScripts(**{item.name: read(item.name) for item in fields(LuaScripts)})


def _parts(prelude: str) -> list[tuple[list[str], str]]:
    """Split the prelude into its parts, each with the names that it defines."""
    parts = []
    for part in prelude.split("\n\n"):
        defined = [name for names in _DEFINED.findall(part) for name in re.split(r",\s*", names)]
        if defined:
            parts.append((defined, part + "\n"))
    return parts


def _needed(parts: Sequence[tuple[list[str], str]], script: str) -> str:
    """Return the script after the prelude parts that it uses. Unused parts would cost time in every call."""
    text = script
    for defined, part in reversed(parts):
        if not {*defined}.isdisjoint(_WORD.findall(_COMMENT.sub("", text))):
            text = part + text
    return text


def _text(name: str) -> str:
    with open(f"{_FOLDER}/{name}.lua", encoding="utf-8") as file:  # may be a link: some installers create links
        return file.read()
