"""Parse the JSON subset of YAML 1.2 from ruamel's events, within limits.

ruamel is imported when a YAML text is read, not before: importing it takes longer than most commands.
"""

from __future__ import annotations

import re
from typing import Any

from farro.documents.model import (
    DEFAULT_YAML,
    LONE_SURROGATE,
    SURROGATE,
    Document,
    Limits,
    Path,
    Place,
    Spot,
    decode,
    place_of,
    refuse,
    show,
)
from farro.errors import BadDocument

_YAML_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_YAML_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_YAML_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_YAML_FOREIGN = (  # values that some YAML parsers do not read as text, and that JSON lacks
    (re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"), "is not a finite number"),
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \t].*)?"), "is a date in YAML; quote it to have text"),
    (
        re.compile(r"[-+]?0[0-9]+|[-+]?0[xob][0-9a-fA-F_]+"),
        "is octal to some readers and decimal to others; quote it to have text",
    ),
)


def parse_yaml(text: bytes, *, source: str, limits: Limits = DEFAULT_YAML) -> Document:
    """Parse one YAML document. Refuse anchors, aliases, tags, merge keys and dates."""
    decoded = decode(text, source, limits, 1)
    from ruamel.yaml import YAML  # imported late: it takes longer than most commands
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    builder = _YamlBuilder(source, limits)
    try:
        # Events, not nodes: composing is recursive, and follows an alias before it can be refused.
        for event in YAML(typ="safe", pure=True).parse(decoded):
            builder.take(event)
    except MarkedYAMLError as bad:
        mark = bad.problem_mark or bad.context_mark
        what = str(bad.problem or bad.context)
        hint = _hint(what)
        raise builder.refuse(f"not YAML: {what}; {hint}" if hint else f"not YAML: {what}", mark) from None
    except ReaderError as bad:
        message = f"not YAML: the character U+{bad.character:04X} is not allowed"
        raise refuse(source, message, place_of(decoded, decoded.find(chr(bad.character)))) from None
    except (YAMLError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError, AssertionError):
        # ruamel raises other errors for some broken texts ("\UFFFFFFFF", "%YAML x").
        raise builder.refuse("not YAML: it cannot be read from here on", builder.mark) from None
    if not builder.done:
        raise refuse(source, "not YAML: the document is empty", (1, 1))
    return Document(builder.root, source, lambda: builder.spots)


def _hint(problem: str) -> str:
    """Advise on an error of ruamel; empty when its message is enough."""
    if "'\\t'" in problem:
        return "a tab stands here; YAML is indented by spaces"
    if starts := re.search(r"found character '(.)' that cannot start any token", problem):
        return f"text that begins with {starts[1]} needs quotes"
    if "mapping values are not allowed" in problem:
        return "the indentation is not that of the line before, or a text with a colon in it needs quotes"
    if "could not find expected ':'" in problem:
        return "a key has no colon after it, or a text of several lines needs quotes"
    return ""


class _YamlBuilder:
    """Build data and positions from ruamel's events with an explicit stack: no text makes it recurse."""

    def __init__(self, source: str, limits: Limits) -> None:
        self.source = source
        self.limits = limits
        self.spots: dict[Path, Spot] = {}
        self.root: Any = None
        self.done = False
        self.mark: Any = None  # of the last event
        self._open: list[Any] = []
        self._path: list[str | int] = []
        self._key: Place | None = None  # position of the key whose value comes next

    def refuse(self, message: str, mark: Any) -> BadDocument:
        place = (mark.line + 1, mark.column + 1) if mark else None
        return refuse(self.source, message, place, tuple(self._path))

    def take(self, event: Any) -> None:
        self.mark = event.start_mark
        kind = type(event).__name__
        if kind == "DocumentStartEvent" and self.done:
            raise self.refuse("a second document begins here; one file holds one", self.mark)
        if kind == "AliasEvent" or getattr(event, "anchor", None) is not None:
            raise self.refuse("anchors and aliases are not read; write the value out", self.mark)
        if getattr(event, "tag", None) is not None:
            raise self.refuse("tags are not read; write the plain value", self.mark)
        if kind in ("MappingEndEvent", "SequenceEndEvent"):
            self._open.pop()
            self._path.pop()
            self._advance()
        elif kind in ("ScalarEvent", "MappingStartEvent", "SequenceStartEvent"):
            self._member(event, kind)

    def _member(self, event: Any, kind: str) -> None:
        place = (self.mark.line + 1, self.mark.column + 1)
        if self._open and isinstance(self._open[-1], dict) and self._key is None:
            self._path[-1] = self._member_name(event, kind)
            self._key = place
            return
        self.spots[tuple(self._path)] = Spot(place, self._key or place)
        self._key = None
        if len(self.spots) > self.limits.nodes:
            raise self.refuse(f"more than {self.limits.nodes} values", self.mark)
        value = self._scalar(event) if kind == "ScalarEvent" else {} if kind == "MappingStartEvent" else []
        if not self._open:
            self.root, self.done = value, True
        elif isinstance(self._open[-1], dict):
            self._open[-1][self._path[-1]] = value
        else:
            self._open[-1].append(value)
        if kind == "ScalarEvent":
            self._advance()
            return
        if len(self._open) >= self.limits.depth:
            raise refuse(self.source, f"nested deeper than {self.limits.depth} levels", place)
        self._open.append(value)
        self._path.append("" if isinstance(value, dict) else 0)

    def _advance(self) -> None:
        if self._open and isinstance(self._open[-1], list):
            self._path[-1] = len(self._open[-1])

    def _member_name(self, event: Any, kind: str) -> str:
        self._path[-1] = event.value if kind == "ScalarEvent" else "?"
        name = self._scalar(event) if kind == "ScalarEvent" else None
        if not isinstance(name, str):
            raise self.refuse("a key must be text; quote it", self.mark)
        if name == "<<" and not event.style:
            raise self.refuse("merge keys are not read; write the members out", self.mark)
        if name in self._open[-1]:
            raise self.refuse("this key is in the mapping twice; keep one", self.mark)
        return name

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if SURROGATE.search(text):
            raise self.refuse(LONE_SURROGATE, self.mark)
        if event.style:
            return text
        if text in _YAML_WORDS:
            return _YAML_WORDS[text]
        for pattern, message in _YAML_FOREIGN:
            if pattern.fullmatch(text):
                raise self.refuse(f"{show(text)} {message}", self.mark)
        if _YAML_INT.fullmatch(text):
            if len(text.lstrip("+-")) > self.limits.digits:
                raise self.refuse(
                    f"an integer of {len(text.lstrip('+-'))} digits; at most {self.limits.digits} are read", self.mark
                )
            return int(text)
        if _YAML_FLOAT.fullmatch(text):
            if abs(float(text)) == float("inf"):
                raise self.refuse("this number is too large for a float", self.mark)
            return float(text)
        return text
