"""Text → data with positions: JSON, NDJSON and YAML within limits, and the problems of a document with their places.

No meaning (`plans`, `settings` give it), no files (bytes come in), no operating system.

Sizes are judged before parsing by scans that run in C; positions are found by a second look at the text, only when
asked. ruamel never reads JSON: it breaks surrogate pairs, NaN and large files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from farro.errors import BadDocument, Problem

if TYPE_CHECKING:
    from pydantic import ValidationError

Path = tuple[str | int, ...]
Place = tuple[int, int]  # line and column, both from 1

MAX_PROBLEMS = 100  # a hostile document may hold one problem a byte; nobody reads more than these


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a document may cost. Each is checked before the parser could pay for it."""

    size: int = 1 << 20  # bytes
    depth: int = 64  # containers inside containers
    nodes: int = 100_000  # values, containers included
    digits: int = 640  # of one integer: converting is quadratic, and beyond 640 an interpreter may refuse


DEFAULT = Limits()
DEFAULT_YAML = Limits(size=1 << 18)  # ruamel reads about 200 KiB a second


class Spot(NamedTuple):
    """Where a member stands: its value, and its key (the same place for a list's item)."""

    value: Place
    key: Place


class Document:
    """Data and where it came from. Treat `data` as read-only."""

    __slots__ = ("_find", "_spots", "data", "source")

    def __init__(self, data: Any, source: str, find: Callable[[], dict[Path, Spot]] = dict) -> None:
        self.data = data
        self.source = source
        self._find = find
        self._spots: dict[Path, Spot] | None = None

    def locate(self, path: Path, *, key: bool = False) -> Place | None:
        """Line and column of the value (or the key) at that path; None when the text has no such member."""
        if self._spots is None:
            self._spots = self._find()
        spot = self._spots.get(path)
        return None if spot is None else spot.key if key else spot.value

    def problem(self, path: Path, message: str, *, key: bool = False) -> Problem:
        """A problem at that path; what is missing stands where the innermost container that exists begins."""
        place = self.locate(path, key=key)
        for length in range(len(path) - 1, -1, -1):
            place = place or self.locate(path[:length])
        line, column = place or (None, None)
        return Problem(path=render_path(path), message=message, line=line, column=column)


def parse(text: bytes, source: str) -> Document:
    """YAML where the source's name ends in .yaml or .yml, else JSON."""
    return (parse_yaml if source.lower().endswith((".yaml", ".yml")) else parse_json)(text, source=source)


def parse_ndjson(text: bytes, source: str, *, limits: Limits = DEFAULT) -> list[Document]:
    """One document a line that is not blank; the limits hold for each line. Bad lines are refused all at once."""
    documents: list[Document] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.split(b"\n"), start=1):  # only \n: U+2028 may stand inside a JSON string
        if line and not line.isspace():
            try:
                documents.append(parse_json(line, source=source, limits=limits, first_line=number))
            except BadDocument as bad:
                problems += bad.problems
    if problems:
        raise refusal(source, problems)
    return documents


def parse_json(text: bytes, *, source: str, limits: Limits = DEFAULT, first_line: int = 1) -> Document:
    """Strict JSON: no duplicate key, no NaN, no number beyond a float, no lone surrogate, nothing beyond the limits."""
    decoded = _decode(text, source, limits, first_line)
    openers = text.count(b"[") + text.count(b"{")
    if openers > limits.depth or len(text) > limits.nodes:
        _cap_structure(decoded, text, source, limits, first_line)
    try:
        if len(text) <= limits.digits or re.search(b"[0-9]{%d}" % (limits.digits + 1), text) is None:
            data = _DECODER.decode(decoded)
        else:  # digits may stand in a string: only the parser knows
            data = json.JSONDecoder(**_HOOKS, parse_int=_bounded_int(limits.digits)).decode(decoded)
        if b"\\u" in text and _SURROGATE_ESCAPE.search(text):
            json.dumps(data, ensure_ascii=False).encode()  # fails on a surrogate without its other half
    except json.JSONDecodeError as bad:
        what = bad.msg[:1].lower() + bad.msg[1:] if decoded.strip() else "the document is empty"
        raise _refuse(source, f"not JSON: {what}", _place(decoded, bad.pos, first_line)) from None
    except (ValueError, RecursionError):  # a hook's refusal, a lone surrogate, the interpreter's own cap on digits
        faults = list(_json_faults(decoded, limits, first_line))
        unknown = Problem(path="", message="not JSON that can be read here", line=first_line, column=1)
        raise refusal(source, faults or [unknown]) from None
    return Document(data, source, lambda: _json_spots(decoded, first_line))


def canonical(data: Any) -> bytes:
    """The one spelling of this data: what content hashes are made of."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def _decode(text: bytes, source: str, limits: Limits, first_line: int) -> str:
    if len(text) > limits.size:
        raise _refuse(source, f"{len(text)} bytes; at most {limits.size} are read")
    if text.startswith(b"\xef\xbb\xbf"):
        raise _refuse(source, "begins with a byte order mark; save it as UTF-8 without BOM", (first_line, 1))
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as bad:
        before = text[: bad.start].decode("utf-8")
        message = f"byte 0x{text[bad.start]:02x} is not UTF-8 here"
        raise _refuse(source, message, _place(before, len(before), first_line)) from None


# --- JSON: refusing, and finding places ---------------------------------------------------------------------------

LONE_SURROGATE = "half of a surrogate pair is not a character; write the character itself"
# A quote always matches, if need be up to the end of the text: otherwise each escaped quote of an unterminated
# string would start a scan of its own, and a megabyte of them would take minutes.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
_STRINGS = re.compile(_STRING, re.DOTALL)
_TOKENS = re.compile(_STRING.decode() + r'|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)
_CONSTANT = re.compile(r"NaN|-?Infinity")
_NUMBER = re.compile(r"-?([0-9]+)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SLOPE = bytes({0x5B: 1, 0x7B: 1, 0x5D: 255, 0x7D: 255}.get(byte, 0) for byte in range(256))  # +1, -1 as signed bytes
_FLAT = bytes(byte for byte in range(256) if not _SLOPE[byte])


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError
    return members


def _finite(token: str) -> float:
    value = float(token)
    if value - value != 0:  # inf; nan has no token
        raise ValueError
    return value


def _constant(token: str) -> float:
    raise ValueError


def _bounded_int(digits: int) -> Callable[[str], int]:
    def convert(token: str) -> int:
        if len(token.lstrip("-")) > digits:
            raise ValueError
        return int(token)

    return convert


_HOOKS: dict[str, Any] = {"object_pairs_hook": _object, "parse_float": _finite, "parse_constant": _constant}
_DECODER = json.JSONDecoder(**_HOOKS)


def _cap_structure(decoded: str, text: bytes, source: str, limits: Limits, first_line: int) -> None:
    """Depth and node count, exact for every prefix that is JSON, without recursion and without a Python loop."""
    bare = _STRINGS.sub(b'"', text).translate(None, b" \t\r\n")
    slopes = memoryview(bare.translate(_SLOPE, _FLAT)).cast("b")
    deep = max(accumulate(slopes), default=0) > limits.depth
    nodes = 1 + bare.count(b",") + bare.count(b"[") + bare.count(b"{") - bare.count(b"[]") - bare.count(b"{}")
    if not deep and nodes <= limits.nodes:
        return
    values = (token for token in _json_tokens(decoded, first_line) if not token.is_key)
    for count, token in enumerate(values, start=1):
        if count > limits.nodes:
            raise _refuse(source, f"more than {limits.nodes} values", token.place, token.path)
        if token.text in "[{" and len(token.path) >= limits.depth:
            raise _refuse(source, f"nested deeper than {limits.depth} levels", token.place)


class _Token(NamedTuple):
    path: Path
    place: Place
    text: str
    is_key: bool


def _json_tokens(text: str, first_line: int) -> Iterator[_Token]:
    """Keys and values in text order. Right for JSON; for a broken text right up to where it breaks."""
    path: list[str | int] = []  # last: the key or index that the innermost open container is at
    key_next = False
    line, line_start, seen = first_line, 0, 0  # counted on from token to token: from the start each time is quadratic
    for match in _TOKENS.finditer(text):
        word, offset = match[0], match.start()
        line += text.count("\n", seen, offset)
        line_start = max(line_start, text.rfind("\n", seen, offset) + 1)
        seen, place = offset, (line, offset - line_start + 1)
        if word in "]}":
            key_next = False
            if path:
                path.pop()
        elif word == ",":
            at = path[-1] if path else ""
            key_next = isinstance(at, str)
            if isinstance(at, int):
                path[-1] = at + 1
        elif word == ":":
            key_next = False
        elif key_next and path:
            path[-1] = _unquote(word)
            key_next = False
            yield _Token(tuple(path), place, word, True)
        else:
            yield _Token(tuple(path), place, word, False)
            if word in "[{":
                path.append(0 if word == "[" else "")
                key_next = word == "{"


def _unquote(token: str) -> str:
    try:
        return str(json.loads(token))
    except ValueError:
        return token


def _json_faults(text: str, limits: Limits, first_line: int) -> Iterator[Problem]:
    seen: set[Path] = set()
    twice: set[Path] = set()
    for path, place, token, is_key in _json_tokens(text, first_line):
        message = _scalar_fault(token, limits)
        if is_key and path in seen and not any(path[:length] in twice for length in range(1, len(path))):
            twice.add(path)
            message = "this key is in the object twice; keep one"
        seen.update((path,) if is_key else ())
        if message:
            yield Problem(path=render_path(path), message=message, line=place[0], column=place[1])


def _scalar_fault(token: str, limits: Limits) -> str:
    if token[0] == '"':
        return LONE_SURROGATE if _SURROGATE.search(_unquote(token)) else ""
    # Beginnings, as the parser reads: `1e999x` is refused for its size before the x is met.
    if constant := _CONSTANT.match(token):
        return f"{constant[0]} is not JSON; write a number, a string or null"
    number = _NUMBER.match(token)
    if number is None:
        return ""
    if number[2] is None and number[3] is None:
        digits = len(number[1])
        return f"an integer of {digits} digits; at most {limits.digits} are read" if digits > limits.digits else ""
    return "this number is too large for a float" if abs(float(number[0])) == float("inf") else ""


def _json_spots(text: str, first_line: int) -> dict[Path, Spot]:
    spots: dict[Path, Spot] = {}
    key: Place | None = None
    for path, place, _, is_key in _json_tokens(text, first_line):
        if is_key:
            key = place
        else:
            spots[path] = Spot(place, key or place)
            key = None
    return spots


def _place(text: str, offset: int, first_line: int = 1) -> Place:
    return first_line + text.count("\n", 0, offset), offset - text.rfind("\n", 0, offset)


# --- YAML ---------------------------------------------------------------------------------------------------------

_YAML_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_YAML_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_YAML_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_YAML_FOREIGN = (  # what some YAML reader takes for something else than text, and JSON has no word for
    (re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"), "is not a finite number"),
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \t].*)?"), "is a date in YAML; quote it to have text"),
    (
        re.compile(r"[-+]?0[0-9]+|[-+]?0[xob][0-9a-fA-F_]+"),
        "is octal to some readers and decimal to others; write it plainly",
    ),
)


def parse_yaml(text: bytes, *, source: str, limits: Limits = DEFAULT_YAML) -> Document:
    """The part of YAML 1.2 that JSON can say: no anchors, aliases, tags, merge keys, dates; one document."""
    decoded = _decode(text, source, limits, 1)
    from ruamel.yaml import YAML  # here: importing it takes longer than most commands
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    builder = _YamlBuilder(source, limits)
    try:
        # Events, not nodes: composing is recursive, and would follow an alias before it could be refused.
        for event in YAML(typ="safe", pure=True).parse(decoded):
            builder.take(event)
    except MarkedYAMLError as bad:
        mark = bad.problem_mark or bad.context_mark
        raise builder.refuse(f"not YAML: {bad.problem or bad.context}", mark) from None
    except ReaderError as bad:
        message = f"not YAML: the character U+{bad.character:04X} is not allowed"
        raise _refuse(source, message, _place(decoded, decoded.find(chr(bad.character)))) from None
    except (YAMLError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError, AssertionError) as bad:
        # ruamel stumbles over some broken texts ("\UFFFFFFFF", "%YAML x"): the text is at fault, not farro.
        raise builder.refuse(f"not YAML: {type(bad).__name__} near here", builder.mark) from None
    if not builder.done:
        raise _refuse(source, "not YAML: the document is empty", (1, 1))
    return Document(builder.root, source, lambda: builder.spots)


class _YamlBuilder:
    """Data and places from ruamel's events, with a stack of its own: no text can make it recurse."""

    def __init__(self, source: str, limits: Limits) -> None:
        self.source = source
        self.limits = limits
        self.spots: dict[Path, Spot] = {}
        self.root: Any = None
        self.done = False
        self.mark: Any = None  # of the last event
        self._open: list[Any] = []
        self._path: list[str | int] = []
        self._key: Place | None = None  # of the member whose value comes next

    def refuse(self, message: str, mark: Any) -> BadDocument:
        place = (mark.line + 1, mark.column + 1) if mark else None
        return _refuse(self.source, message, place, tuple(self._path))

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
            raise _refuse(self.source, f"nested deeper than {self.limits.depth} levels", place)
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
        if _SURROGATE.search(text):
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


# --- problems -----------------------------------------------------------------------------------------------------

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def show(value: object, length: int = 60) -> str:
    """A value of the document inside a message: one line, ASCII, short; no control character reaches a terminal."""
    text = json.dumps(value, default=str)
    return text if len(text) <= length else f"{text[: length - 1]}…"


def render_path(path: Path) -> str:
    """`steps[2].input_from_step`; a key that is no plain name is quoted: `env["a b"]`."""
    parts = []
    for part in path:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        else:
            parts.append(f".{part}" if _PLAIN_NAME.fullmatch(part) else f"[{show(part)}]")
    return "".join(parts).removeprefix(".")


def _refuse(source: str, message: str, place: Place | None = None, path: Path = ()) -> BadDocument:
    line, column = place or (None, None)
    return BadDocument(source, [Problem(path=render_path(path), message=message, line=line, column=column)])


def refusal(source: str, problems: list[Problem]) -> BadDocument:
    """All problems in text order; those without a place come last, beyond `MAX_PROBLEMS` only their number is told."""
    problems = sorted(problems, key=lambda problem: (problem.line or 1 << 60, problem.column or 0))
    if (more := len(problems) - MAX_PROBLEMS) > 0:
        problems = [*problems[:MAX_PROBLEMS], Problem(path="", message=f"and {more} more problems")]
    return BadDocument(source, problems)


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
