"""Constrain a value beyond its type, in an annotation: `Annotated[int, Bounds(at_least=1)]`.

`shapes` checks constraints, `json_schema` writes them as a schema. Any object with both methods is a constraint.

Constraints are equal only to themselves: typing caches `Annotated[int, X]` by equality, and would return one constraint
for another with the same content.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

from farro.documents.model import show
from farro.lazy_dataclass import dataclass


class Constraint(Protocol):
    def fault(self, value: Any, /) -> str | None:
        """Say what is wrong with a value of the right type. Never quote text, which may be a secret."""

    def schema(self) -> dict[str, Any]:
        """Return the constraint as JSON Schema keywords; empty when JSON Schema cannot express it."""


@dataclass(frozen=True, eq=False)
class Matching:
    """Text that matches a pattern."""

    pattern: str
    meaning: str  # "an id"

    def fault(self, value: str, /) -> str | None:
        if _compiled(self.pattern).fullmatch(value) is None:
            return f"is not {self.meaning}; it must match {self.pattern}"
        return None

    def schema(self) -> dict[str, Any]:
        return {"pattern": f"^(?:{self.pattern})$"}


@lru_cache(None)  # bounded by the patterns in the code; faster than re's own cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@dataclass(frozen=True, eq=False)
class Argument:
    """Text without NUL: usable as an argument, a variable or a path."""

    filled: bool = False

    def fault(self, value: str, /) -> str | None:
        if "\0" in value:
            return "holds a NUL, which no argument, variable or path can carry; take it out"
        return "must not be empty" if self.filled and not value else None

    def schema(self) -> dict[str, Any]:
        return {"pattern": r"^[^\u0000]+$"} if self.filled else {"pattern": r"^[^\u0000]*$"}


@dataclass(frozen=True, eq=False)
class Prose:
    """Text for people: not blank, of limited length."""

    at_most: int

    def fault(self, value: str, /) -> str | None:
        if not value or value.isspace():
            return "must not be empty"
        if len(value) > self.at_most:
            return f"may have at most {self.at_most} characters; it has {len(value)}"
        return None

    def schema(self) -> dict[str, Any]:
        return {"maxLength": self.at_most, "pattern": r"\S"}


@dataclass(frozen=True, eq=False)
class Length:
    """The length of a text."""

    at_most: int

    def fault(self, value: str, /) -> str | None:
        if len(value) > self.at_most:
            return f"may have at most {self.at_most} characters; it has {len(value)}"
        return None

    def schema(self) -> dict[str, Any]:
        return {"maxLength": self.at_most}


@dataclass(frozen=True, eq=False)
class Bounds:
    """The range of a number."""

    more_than: float | None = None
    at_least: float | None = None
    at_most: float | None = None

    def fault(self, value: float, /) -> str | None:
        if self.more_than is not None and not value > self.more_than:
            return f"must be more than {self.more_than}, not {show(value)}"
        if self.at_least is not None and not value >= self.at_least:
            return f"must be at least {self.at_least}, not {show(value)}"
        if self.at_most is not None and not value <= self.at_most:
            return f"must be at most {self.at_most}, not {show(value)}"
        return None

    def schema(self) -> dict[str, Any]:
        keywords = {"exclusiveMinimum": self.more_than, "minimum": self.at_least, "maximum": self.at_most}
        return {name: bound for name, bound in keywords.items() if bound is not None}


@dataclass(frozen=True, eq=False)
class Size:
    """The number of items in a list."""

    at_least: int = 0
    at_most: int | None = None

    def fault(self, value: Sequence[Any], /) -> str | None:
        if len(value) < self.at_least:
            return f"must have at least {self.at_least}; it has {len(value)}"
        if self.at_most is not None and len(value) > self.at_most:
            return f"may have at most {self.at_most}; it has {len(value)}"
        return None

    def schema(self) -> dict[str, Any]:
        least = {"minItems": self.at_least} if self.at_least else {}
        return least if self.at_most is None else {**least, "maxItems": self.at_most}


@dataclass(frozen=True, eq=False)
class AnyCase:
    """A `Literal` word, accepted in any case."""

    def fault(self, value: str, /) -> str | None:
        return None

    def schema(self) -> dict[str, Any]:
        return {}
