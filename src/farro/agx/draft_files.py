"""Keep a user's draft between two commands: one file for each root or queue that plans are submitted to.

The file is private to the user (0600) and replaced whole. Every change is made under a lock and counted: two terminals
that add a step at once both keep theirs, and a change based on an old version (an editor, a slow model) is refused
instead of overwriting a newer one. The file also keeps the drafts before it for `undo`, and undone ones for `redo`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from hashlib import sha256
from typing import Any

from farro.errors import Damaged, InputError, Refused
from farro.host import fs, leases, trees
from farro.lazy_dataclass import dataclass, field

LIMIT = 4 << 20  # bytes of a draft's file
_KEPT = 20  # drafts before this one


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    plan: Mapping[str, Any] = field(default_factory=lambda: {"steps": []})
    version: int = 0  # counts changes; 0: there is none yet
    before: tuple[Mapping[str, Any], ...] = ()  # the newest last
    undone: tuple[Mapping[str, Any], ...] = ()  # the newest first; dropped by the next change

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
        """`place`: the root, or the address of the queue, that the draft belongs to."""
        self._folder = folder
        self._place = place
        self._path = f"{folder}/draft-{sha256(place.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}.json"

    def read(self) -> Draft:
        """Read the draft, an empty one where there is no file. Raise Damaged where the file holds no draft."""
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
        """Replace the plan by what `edit` makes of it, under the lock. Where `edit` raises, nothing is changed."""
        with self._locked():
            before = self.read()
            return self._write(before, edit(before))

    def replace(self, read: Draft, plan: Mapping[str, Any]) -> Draft:
        """Replace a draft that was read before. Raise Refused where it was changed since."""

        def unchanged(now: Draft) -> Mapping[str, Any]:
            if now.version != read.version:
                raise Refused(
                    "the draft was changed elsewhere meanwhile (another terminal?), and is left as it is; "
                    "`agx preview` shows it"
                )
            return plan

        return self.change(unchanged)

    def undo(self) -> Draft:
        """Bring back the draft before the last change."""
        with self._locked():
            now = self.read()
            if not now.before:
                raise InputError("there is nothing to undo")
            undone = (now.plan, *now.undone)[:_KEPT]
            made = Draft(plan=now.before[-1], version=now.version + 1, before=now.before[:-1], undone=undone)
            return self._put(made)

    def redo(self) -> Draft:
        """Take back the last `undo`, unless something else was changed since."""
        with self._locked():
            now = self.read()
            if not now.undone:
                raise InputError("there is nothing to redo: what was undone is kept until the next change")
            before = (*now.before, now.plan)[-_KEPT:]
            made = Draft(plan=now.undone[0], version=now.version + 1, before=before, undone=now.undone[1:])
            return self._put(made)

    def restart(self, plan: Mapping[str, Any]) -> Draft:
        """Begin a new draft, also where the file is damaged."""
        with self._locked():
            try:
                before = self.read()
            except Damaged:
                before = Draft(version=1)
            return self._write(before, plan)

    def _locked(self) -> AbstractContextManager[None]:
        make_folder(self._folder)
        return leases.exclusively(f"{self._folder}/.lock", listening=True)

    def _write(self, before: Draft, plan: Mapping[str, Any]) -> Draft:
        # An empty draft is kept too: undoing the first step of a new draft gives the empty one, not the one before.
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
    """Make the folder and its parents; only this user can enter it."""
    trees.make_folders(os.path.dirname(path))
    with contextlib.suppress(FileExistsError):
        fs.mkdir_private(path)


def write_private(path: str, data: bytes) -> None:
    """Write a file whole or not at all, readable by its owner alone from the start."""
    name = fs.temporary(os.path.dirname(path))
    try:
        fs.create_private(name, data)
        fs.replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            fs.unlink(name)
        raise
