"""What a value must be beyond its type, as data in an annotation: `Annotated[int, Bounds(at_least=1)]`.

Checking lives in `shapes`; `json_schema` writes a schema from the same annotations. Any object with both methods is a
constraint.

Constraints are no tuples, and equal only to themselves: typing keeps `Annotated[int, X]` by what X equals, and would
answer one constraint for another of the same content.
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
        """What is wrong with a value of the right type; never with its text in it, which may be a secret."""

    def schema(self) -> dict[str, Any]:
        """The same as keywords of JSON Schema; empty where it has no words for it."""


@dataclass(frozen=True, eq=False)
class Matching:
    """Text of one pattern."""

    pattern: str
    meaning: str  # "an id"

    def fault(self, value: str, /) -> str | None:
        if _compiled(self.pattern).fullmatch(value) is None:
            return f"is not {self.meaning}; it must match {self.pattern}"
        return None

    def schema(self) -> dict[str, Any]:
        return {"pattern": f"^(?:{self.pattern})$"}


@lru_cache(None)  # as many as there are in the code; quicker than re's own
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@dataclass(frozen=True, eq=False)
class Argument:
    """Text that the operating system can carry as an argument, a variable or a path."""

    filled: bool = False

    def fault(self, value: str, /) -> str | None:
        if "\0" in value:
            return "holds a NUL, which no argument, variable or path can carry; take it out"
        return "must not be empty" if self.filled and not value else None

    def schema(self) -> dict[str, Any]:
        return {"pattern": r"^[^\u0000]+$"} if self.filled else {"pattern": r"^[^\u0000]*$"}


@dataclass(frozen=True, eq=False)
class Said:
    """Words for somebody to read: not blank, and of a length that is read."""

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
    """How long a text may be."""

    at_most: int

    def fault(self, value: str, /) -> str | None:
        if len(value) > self.at_most:
            return f"may have at most {self.at_most} characters; it has {len(value)}"
        return None

    def schema(self) -> dict[str, Any]:
        return {"maxLength": self.at_most}


@dataclass(frozen=True, eq=False)
class Bounds:
    """How large a number may be."""

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
        told = {"exclusiveMinimum": self.more_than, "minimum": self.at_least, "maximum": self.at_most}
        return {name: bound for name, bound in told.items() if bound is not None}


@dataclass(frozen=True, eq=False)
class Size:
    """How many items a list may have."""

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
    """A word of a `Literal` in lower case, however it was written."""

    def fault(self, value: str, /) -> str | None:
        return None

    def schema(self) -> dict[str, Any]:
        return {}
