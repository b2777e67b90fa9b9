"""Generate JSON Schema (2020-12) from the dataclasses that documents are checked against.

A class may add what its annotations cannot say as `schema_more`; what a schema cannot say
either is only checked.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any, Literal

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(shape: Any) -> dict[str, Any]:
    """Return the schema of a dataclass. Nested classes are written inline."""
    hints = typing.get_type_hints(shape, include_extras=True)
    properties = {each.name: {**_of(hints[each.name]), **_default(each)} for each in fields(shape)}
    required = [each.name for each in fields(shape) if each.default is MISSING and each.default_factory is MISSING]
    made: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        made["required"] = required
    if not getattr(shape, "takes_more", False):
        made["additionalProperties"] = False
    return {**made, **getattr(shape, "schema_more", {})}


def _of(hint: Any) -> dict[str, Any]:
    if typing.get_origin(hint) is typing.Annotated:
        inner, *constraints = typing.get_args(hint)
        made = _of(inner)
        for constraint in constraints:
            more = constraint.schema()
            made = {**made, "allOf": [*made.get("allOf", ()), more]} if made.keys() & more.keys() else {**made, **more}
        return made
    if isinstance(hint, type) and is_dataclass(hint):
        own = getattr(hint, "schema", None)  # a class built from text
        return schema(hint) if own is None else dict(own())
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and arguments[1:] == (...,):
        return {"type": "array", "items": _of(arguments[0])}
    if origin in (dict, Mapping):
        key, member = map(_of, arguments)
        names = {name: rule for name, rule in key.items() if name != "type"}
        return {"type": "object", **({"propertyNames": names} if names else {}), "additionalProperties": member}
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin in (typing.Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        return _or_null(_of(next(each for each in arguments if each is not type(None))))
    if origin in (typing.Union, types.UnionType):  # a flag or a list
        return {"anyOf": [_of(each) for each in arguments]}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"type": "string", "enum": [str(member.value) for member in hint]}
    return {} if hint is Any else {"type": _TYPES[hint]}


_TYPES = {str: "string", int: "integer", bool: "boolean", float: "number"}


def _or_null(made: dict[str, Any]) -> dict[str, Any]:
    kind = made.get("type")
    if isinstance(kind, str) and not made.keys() & {"enum", "anyOf", "allOf", "if"}:
        return {**made, "type": [kind, "null"]}  # the other keywords do not apply to null
    return {"anyOf": [made, {"type": "null"}]}


def _default(each: Field[Any]) -> dict[str, Any]:
    """Return the default for editors, when it is a single value; empty lists and objects are left out."""
    value = each.default
    if isinstance(value, tuple) and value and all(isinstance(item, str | int) for item in value):
        return {"default": list(value)}
    return {"default": value} if isinstance(value, str | int | float) else {}
