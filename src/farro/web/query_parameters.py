"""Query parameters as a dataclass: text becomes what the annotation says, then the same rules hold as in documents.

Bodies are documents of their own (`running`).
"""

from __future__ import annotations

import typing
from functools import cache
from types import UnionType
from typing import Any

from starlette.datastructures import QueryParams

from farro.documents import shapes
from farro.errors import BadDocument, Problem

_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def read(shape: type, told: QueryParams) -> Any:
    """BadDocument with all that is wrong. Unknown names are wrong too: a misspelled filter must not list everything."""
    kinds = _kinds(shape)
    data: dict[str, Any] = {}
    problems: list[Problem] = []
    for name in dict.fromkeys(told.keys()):
        values = told.getlist(name)
        kind = kinds.get(name)
        if kind is None:
            known = ", ".join(kinds) or "none"
            problems.append(Problem(path=name, message=f"is not a known parameter; known: {known}"))
        elif kind is tuple:
            data[name] = values
        elif len(values) > 1:
            problems.append(Problem(path=name, message="is given more than once"))
        else:
            data[name] = _value(kind, values[0])
    found: shapes.Checked[Any] = shapes.check(shape, data)
    problems += [Problem(path=str(fault.path[0]), message=fault.message) for fault in found.faults]
    if problems:
        raise BadDocument("query", problems)
    return found.value


@cache
def _kinds(shape: type) -> dict[str, type]:
    hints = typing.get_type_hints(shape)
    return {name: _kind(hint) for name, hint in hints.items()}


def _kind(hint: Any) -> type:
    if typing.get_origin(hint) in (typing.Union, UnionType):
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    if typing.get_origin(hint) is tuple:
        return tuple
    return hint if hint in (int, float, bool) else str


def _value(kind: type, text: str) -> Any:
    """What is no number or word stays text, and is told as what it is not."""
    try:
        if kind is int:
            return int(text) if text.isascii() and len(text) < 20 else text
        if kind is float:
            return float(text) if text.isascii() and "_" not in text else text
    except ValueError:
        return text
    return _WORDS.get(text.lower(), text) if kind is bool else text
