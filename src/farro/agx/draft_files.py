"""Where a person's draft is kept between two commands: one for each place that plans are handed in at.

What may be done to a draft lives in drafting; the rules of steps in plans.editing.

A draft is a file of the person's own (0600), replaced whole. Every change is made under a lock and counted: two
terminals that add at once both have their step, and what was read long ago (an editor, a model that took its time) is
not written over what came since, but refused. The drafts before it are kept in it, for `undo`, and what was undone,
for `redo`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

from farro.errors import Damaged, InputError, Refused
from farro.host import fs, leases
from farro.lazy_dataclass import dataclass, field

LIMIT = 4 << 20  # bytes of a draft's file
_KEPT = 20  # drafts before this one


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    plan: Mapping[str, Any] = field(default_factory=lambda: {"steps": []})
    version: int = 0  # counts changes; 0: there is none yet
    before: tuple[Mapping[str, Any], ...] = ()  # the newest last
    undone: tuple[Mapping[str, Any], ...] = ()  # the newest first; of no use any more once something is changed

    @property
    def steps(self) -> list[dict[str, Any]]:
        steps = self.plan.get("steps")
        return [dict(step) for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []

    @property
    def name(self) -> str | None:
        named = self.plan.get("plan_id")
        return named if isinstance(named, str) else None


class Drafts:
    def __init__(self, folder: str, place: str) -> None:
        """`place`: the root, or the address of a queue, whose draft it is."""
        self._folder = folder
        self._place = place
        self._path = f"{folder}/draft-{sha256(place.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}.json"

    def read(self) -> Draft:
        """Damaged: somebody else wrote into the file."""
        try:
            text = fs.read_bytes(self._path, LIMIT)
        except FileNotFoundError:
            return Draft()
        try:
            data = json.loads(text)
            plan, version, before, undone = data["plan"], data["version"], data["before"], data.get("undone", [])
            if not (isinstance(plan, dict) and isinstance(version, int)):
                raise ValueError
            if not (isinstance(before, list) and isinstance(undone, list)):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Damaged(f"{self._path} is not a draft; look at it, then begin anew with: agx new") from error
        plans = [tuple(one for one in some if isinstance(one, dict)) for some in (before, undone)]
        return Draft(plan=plan, version=version, before=plans[0], undone=plans[1])

    def change(self, edit: Callable[[Draft], Mapping[str, Any]]) -> Draft:
        """The draft with the plan that `edit` makes of it; nobody else changes it meanwhile. What `edit` raises goes
        through, and nothing was changed."""
        make_folder(self._folder)
        with leases.exclusively(f"{self._folder}/.lock", listening=True):
            before = self.read()
            return self._write(before, edit(before))

    def replace(self, read: Draft, plan: Mapping[str, Any]) -> Draft:
        """The plan instead of the draft that was read before. Refused: it is another one by now."""

        def unchanged(now: Draft) -> Mapping[str, Any]:
            if now.version != read.version:
                raise Refused(
                    "the draft was changed elsewhere meanwhile (another terminal?), and is left as it is; "
                    "`agx preview` shows it"
                )
            return plan

        return self.change(unchanged)

    def undo(self) -> Draft:
        """The draft before the last change."""
        make_folder(self._folder)
        with leases.exclusively(f"{self._folder}/.lock", listening=True):
            now = self.read()
            if not now.before:
                raise InputError("there is nothing to undo")
            undone = (now.plan, *now.undone)[:_KEPT]
            made = Draft(plan=now.before[-1], version=now.version + 1, before=now.before[:-1], undone=undone)
            return self._put(made)

    def redo(self) -> Draft:
        """The draft before the last `undo`, while nothing else was changed since."""
        make_folder(self._folder)
        with leases.exclusively(f"{self._folder}/.lock", listening=True):
            now = self.read()
            if not now.undone:
                raise InputError("there is nothing to redo: what was undone is kept until the next change")
            before = (*now.before, now.plan)[-_KEPT:]
            made = Draft(plan=now.undone[0], version=now.version + 1, before=before, undone=now.undone[1:])
            return self._put(made)

    def restart(self, plan: Mapping[str, Any]) -> Draft:
        """A new draft, also where the file cannot be read."""
        make_folder(self._folder)
        with leases.exclusively(f"{self._folder}/.lock", listening=True):
            try:
                before = self.read()
            except Damaged:
                before = Draft(version=1)
            return self._write(before, plan)

    def _write(self, before: Draft, plan: Mapping[str, Any]) -> Draft:
        # Also one without steps: whoever undoes the first step of a new draft wants that one, not the one before it.
        kept = before.before if plan == before.plan else (*before.before, before.plan)[-_KEPT:]
        return self._put(Draft(plan=plan, version=before.version + 1, before=kept))

    def _put(self, draft: Draft) -> Draft:
        while True:
            kept = {"before": list(draft.before), "undone": list(draft.undone)}
            data = {"place": self._place, "version": draft.version, "plan": draft.plan, **kept}
            text = json.dumps(data, ensure_ascii=True).encode()
            if len(text) <= LIMIT:
                break
            if not draft.before and not draft.undone:
                raise InputError(f"the draft is larger than {LIMIT} bytes; put what is long into a file")
            draft = replace(draft, before=draft.before[1:], undone=draft.undone[:-1])
        write_private(self._path, text)
        return draft


def make_folder(path: str) -> None:
    """The folder, and those above it; what is in it is for its owner alone."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        _make(parent)
    _make(path)
    fs.set_mode(path, 0o700)


def _make(path: str) -> None:
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        _make(parent)
    try:
        fs.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def write_private(path: str, data: bytes) -> None:
    """Whole or not at all, and readable for its owner alone from the first instant."""
    name = fs.temporary(os.path.dirname(path))
    try:
        fs.create(name, b"")
        fs.set_mode(name, 0o600)
        fd = fs.open_append(name)
        try:
            fs.write(fd, data)
        finally:
            os.close(fd)
        fs.replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            fs.unlink(name)
        raise
