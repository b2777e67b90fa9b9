"""pydantic's findings in the words, and with the places, of the document.

What is valid lives in the models (plans, settings).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from farro.documents.model import Document, Path, refusal, show
from farro.errors import BadDocument, Problem

if TYPE_CHECKING:
    from pydantic import ValidationError

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


def problems_from_pydantic(
    document: Document,
    error: ValidationError,
    *,
    known: Callable[[Path], Collection[str]] = lambda _: (),
    original: Callable[[Path], Path] = lambda path: path,
) -> BadDocument:
    """Every error of a validation in the words and with the places of the document, all at once.

    `known` names the fields that may stand beside an unknown one; `original` leads from the validated shape's path back
    to the document's, where a loader reshaped the data.
    """
    return refusal(document.source, list(pydantic_problems(document, error, known=known, original=original)))


def pydantic_problems(
    document: Document,
    error: ValidationError,
    *,
    known: Callable[[Path], Collection[str]],
    original: Callable[[Path], Path],
    skip: Collection[Path] = (),
) -> Iterator[Problem]:
    """The same one by one, for a loader that has found problems of its own; it leaves out the paths in `skip`."""
    for entry in error.errors(include_url=False):
        path, kind = tuple(entry["loc"]), entry["type"]
        is_key = path[-1:] == ("[key]",)
        path = path[:-1] if is_key else path
        if path in skip or (kind == "too_short" and len(entry["input"]) >= entry["ctx"]["min_length"]):
            continue  # pydantic counts only valid items: a list of wrong ones is called short as well
        message = _explain(kind, entry["input"], entry.get("ctx", {}), entry["msg"])
        if kind == "extra_forbidden":
            message = _unknown_field(path, known(path))
        yield document.problem(original(path), message, key=is_key or kind == "extra_forbidden")


def _explain(kind: str, value: object, context: Mapping[str, Any], fallback: str) -> str:
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}, not {_describe(value)}"
    if kind == "missing":
        return "is required"
    if kind in ("too_short", "string_too_short"):
        return f"must have at least {context['min_length']}; it has {_length(value)}"
    if kind in ("too_long", "string_too_long"):
        return f"may have at most {context['max_length']}; it has {_length(value)}"
    if kind == "literal_error":
        return f"must be {context['expected']}, not {_describe(value)}"
    if kind == "finite_number":
        return "must be a finite number"
    bounds = {"greater_than": "more than", "greater_than_equal": "at least", "less_than": "less than"}
    bounds["less_than_equal"] = "at most"
    if kind in bounds:
        return f"must be {bounds[kind]} {next(iter(context.values()))}, not {show(value)}"
    return fallback


def _length(value: object) -> object:
    return len(value) if isinstance(value, (str, list, tuple, dict)) else show(value)


def _describe(value: object) -> str:
    """What stands there, never text itself: it may be a secret."""
    if value is None or isinstance(value, bool):
        return show(value)
    if isinstance(value, (int, float)):
        return f"the number {show(value)}"
    return {"str": "text", "list": "a list", "dict": "an object"}.get(type(value).__name__, type(value).__name__)


def _unknown_field(path: Path, known: Collection[str]) -> str:
    if not known:
        return "is not a known field; take it out"
    near = get_close_matches(str(path[-1]), known, n=1)
    return (
        f"is not a known field; did you mean {near[0]}?" if near else f"is not a known field; known: {', '.join(known)}"
    )
