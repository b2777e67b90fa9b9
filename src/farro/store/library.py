"""The Library port: plans and actions that are saved under a name and submitted repeatedly.

- `put` returns once the document is as durable as the store's jobs. Putting the same document again changes nothing;
  another document under a taken id raises IdConflict, unless `replace` is set. [test_a_plan_is_saved_once]
- A crash during `put` leaves the complete old document or the complete new one.
- `ids` are sorted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

Kind = Literal["plan", "action"]


def kept_already(kind: Kind, name: str) -> str:
    """Return the text of IdConflict, here and over the wire, with the flag that replaces the document."""
    how = ", or replace it: agx save --replace, PLAN.SUBMIT … REPLACE" if kind == "plan" else ""
    return f"{kind} {name} is kept already, with other content; give it another name{how}"


class Library(Protocol):
    def put(self, kind: Kind, name: str, document: Mapping[str, Any], *, replace: bool = False) -> None: ...

    def get(self, kind: Kind, name: str) -> Mapping[str, Any] | None: ...

    def ids(self, kind: Kind) -> list[str]: ...

    def remove(self, kind: Kind, name: str) -> bool:
        """Remove a document. Returns whether it existed."""
