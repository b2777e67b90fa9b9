"""What the calls of a day came to, by role, kept up as they come: a budget is looked at before every call.

The calls themselves live in ledger_calls, what a budget makes of the sums in stores.budgets.

A settled call never changes, so it is added once. What is open is few, and summed at each look.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from farro.host import fs
from farro.store.budgets import Spent, spent
from farro.store.files.ledger_calls import Day, parsed


class Sums:
    """Of one day. A look costs a listing of its folder, and reading what is new in it."""

    def __init__(self, day: Day) -> None:
        self._day = day
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._seen: set[str] = set()  # names of files
        self._added: set[str] = set()  # settled calls that are in `_sums`
        self._sums: dict[str, Spent] = {}  # by role
        self._open: dict[str, tuple[str, bool]] = {}  # the others: their role, and whether a settled file is there

    def by_role(self) -> Mapping[str, Spent]:
        with self._lock:
            names = {name for name in self._day.names() if not name.startswith(fs.TEMPORARY)}
            if not self._seen <= names:  # some were taken away: by a person's hand, or by who could not reserve
                self._forget()
            for found in map(parsed, names - self._seen):
                if found is not None and found.stem not in self._added:
                    known = self._open.get(found.stem, (found.role, False))
                    self._open[found.stem] = (found.role, known[1] or found.settled)
                    if found.settled:
                        self._add(found.stem, found.role)
            self._seen = names
            return self._together()

    def _add(self, stem: str, role: str) -> None:
        call = self._day.call(stem, settled=True)
        if call.end is not None:  # else its file is damaged: it stays open, and is read again at the next look
            self._sums[role] = self._sums.get(role, Spent()) + spent([call])
            self._added.add(stem)
            del self._open[stem]

    def _together(self) -> Mapping[str, Spent]:
        sums = dict(self._sums)
        for stem, (role, settled) in sorted(self._open.items()):
            sums[role] = sums.get(role, Spent()) + spent([self._day.call(stem, settled=settled)])
        return sums
