"""The Library port: plans and actions that are kept under a name, to be submitted again and again.

What they say and how they become jobs lives in plans.actions and operations.library; adapters live in stores.

- `put` returns once the document is as durable as the store's jobs. The same document again changes nothing; another
  one under a taken id is IdConflict, unless `replace` is asked for. [test_a_plan_is_kept_once]
- A crash during `put` leaves the old document or the new one, whole.
- `ids` are in the order of their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

Kind = Literal["plan", "action"]


def kept_already(kind: Kind, name: str) -> str:
    """What IdConflict says, here and over the wire: which flag replaces."""
    how = ", or replace it: agx save --replace, PLAN.SUBMIT … REPLACE" if kind == "plan" else ""
    return f"{kind} {name} is kept already, with other content; give it another name{how}"


class Library(Protocol):
    def put(self, kind: Kind, name: str, document: Mapping[str, Any], *, replace: bool = False) -> None: ...

    def get(self, kind: Kind, name: str) -> Mapping[str, Any] | None: ...

    def ids(self, kind: Kind) -> list[str]: ...

    def remove(self, kind: Kind, name: str) -> bool:
        """Whether it was there."""
