"""Parse strict JSON with bounded cost, find positions by a second scan of the text, and encode JSON quickly.

ruamel never reads JSON: it breaks surrogate pairs, NaN and large files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import accumulate
from json import encoder as standard
from typing import Any, NamedTuple

from farro.documents.model import (
    DEFAULT,
    LONE_SURROGATE,
    SURROGATE,
    Document,
    Limits,
    Path,
    Place,
    Spot,
    decode,
    place_of,
    refusal,
    refuse,
    render_path,
)
from farro.errors import Problem

# A quote always matches, up to the end of the text if necessary: otherwise each escaped quote of an unterminated string
# would start another scan, and a megabyte of them would take minutes.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
_STRINGS = re.compile(_STRING, re.DOTALL)
_TOKENS = re.compile(_STRING.decode() + r'|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)
_CONSTANT = re.compile(r"NaN|-?Infinity")
_NUMBER = re.compile(r"-?([0-9]+)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SLOPE = bytes({0x5B: 1, 0x7B: 1, 0x5D: 255, 0x7D: 255}.get(byte, 0) for byte in range(256))  # +1, -1 as signed bytes
_FLAT = bytes(byte for byte in range(256) if not _SLOPE[byte])


def parse_json(text: bytes, *, source: str, limits: Limits = DEFAULT, first_line: int = 1) -> Document:
    """Parse JSON. Refuse duplicate keys, NaN, numbers beyond a float, lone surrogates, and what exceeds the limits."""
    decoded = decode(text, source, limits, first_line)
    openers = text.count(b"[") + text.count(b"{")
    if openers > limits.depth or len(text) > limits.nodes:
        _cap_structure(decoded, text, source, limits, first_line)
    try:
        if len(text) <= limits.digits or re.search(b"[0-9]{%d}" % (limits.digits + 1), text) is None:
            data = _DECODER.decode(decoded)
        else:  # the digits may be inside a string: only the parser knows
            data = json.JSONDecoder(**_HOOKS, parse_int=_bounded_int(limits.digits)).decode(decoded)
        if b"\\u" in text and _ESCAPE.search(text):
            json.dumps(data, ensure_ascii=False).encode()  # fails on a surrogate without its other half
    except json.JSONDecodeError as bad:
        raise refuse(source, f"not JSON: {_why(bad, decoded)}", place_of(decoded, bad.pos, first_line)) from None
    except (ValueError, RecursionError):  # refused by a hook, a lone surrogate, or the interpreter's limit on digits
        faults = list(_json_faults(decoded, limits, first_line))
        unknown = Problem(path="", message="not JSON that can be read here", line=first_line, column=1)
        raise refusal(source, faults or [unknown]) from None
    return Document(data, source, lambda: _json_spots(decoded, first_line))


def _why(bad: json.JSONDecodeError, text: str) -> str:
    if not text.strip():
        return "the document is empty"
    hint = _hint(bad.msg, text, bad.pos)
    what = bad.msg[:1].lower() + bad.msg[1:].removesuffix(" at")
    return f"{what}; {hint}" if hint else what


_TRAILING = "a comma stands before this with nothing after it; take it out"
_QUOTES = "names and text stand in double quotes"
_COMMENT = "JSON has no comments; take it out"
_CUT = "the text ends too early: a } or ] is missing"


def _hint(message: str, text: str, offset: int) -> str:
    """Advise where the JSON parser stopped; empty when its message is enough."""
    here, before = text[offset : offset + 1], text[:offset].rstrip()[-1:]
    said = message.lower()
    if "extra data" in said:
        return "one document ends before this, and one file holds one; a document a line is NDJSON, .ndjson"
    if "control character" in said:
        return r"a line break in text is written \n, a tab \t"
    if "escape" in said:
        return r"a backslash is written \\"
    if "unterminated" in said:
        return "the text that begins here has no closing quote"
    if "trailing comma" in said:
        return "take the comma out"
    if not here.strip() and not text[offset:].strip():
        return _CUT
    if here in "]}" and before == ",":
        return _TRAILING
    if here in "/#":
        return _COMMENT
    if here == "'" or (here.isalpha() and ("property name" in said or "value" in said)):
        return _QUOTES
    return "a comma is missing before this" if "',' delimiter" in said and here in '"{[' else ""


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
    """Check depth and node count without recursion or a Python loop. Exact as far as the text is valid JSON."""
    bare = _STRINGS.sub(b'"', text).translate(None, b" \t\r\n")
    slopes = memoryview(bare.translate(_SLOPE, _FLAT)).cast("b")
    deep = max(accumulate(slopes), default=0) > limits.depth
    nodes = 1 + bare.count(b",") + bare.count(b"[") + bare.count(b"{") - bare.count(b"[]") - bare.count(b"{}")
    if not deep and nodes <= limits.nodes:
        return
    values = (token for token in _json_tokens(decoded, first_line) if not token.is_key)
    for count, token in enumerate(values, start=1):
        if count > limits.nodes:
            raise refuse(source, f"more than {limits.nodes} values", token.place, token.path)
        if token.text in "[{" and len(token.path) >= limits.depth:
            raise refuse(source, f"nested deeper than {limits.depth} levels", token.place)


class _Token(NamedTuple):
    path: Path
    place: Place
    text: str
    is_key: bool


def _json_tokens(text: str, first_line: int) -> Iterator[_Token]:
    """Yield keys and values in text order; for broken text, correct up to the error."""
    path: list[str | int] = []  # the last item is the current key or index of the innermost open container
    key_next = False
    line, line_start, seen = first_line, 0, 0  # counted from token to token; from the start would be quadratic
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
        return LONE_SURROGATE if SURROGATE.search(_unquote(token)) else ""
    # Prefixes, as the parser reads them: `1e999x` is refused for its size before the x.
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


def encoder(
    *,
    ensure_ascii: bool = False,
    sort_keys: bool = False,
    separators: tuple[str, str] = (", ", ": "),
    allow_nan: bool = False,
    default: Callable[[Any], Any] | None = None,
) -> Callable[[Any], str]:
    """Return an encode function like `json.JSONEncoder(...).encode`. Its C part is built once; the standard library
    builds it for each call, which takes longer than encoding a small text. Cyclic data raises RecursionError."""
    plain = json.JSONEncoder(
        ensure_ascii=ensure_ascii,
        sort_keys=sort_keys,
        separators=separators,
        allow_nan=allow_nan,
        default=default,
        check_circular=False,
    )
    make = getattr(standard, "c_make_encoder", None)
    if make is None:  # an interpreter without the C encoder
        return plain.encode
    text = standard.encode_basestring_ascii if ensure_ascii else standard.encode_basestring
    item, key = separators
    chunks = make(None, plain.default, text, None, key, item, sort_keys, False, allow_nan)
    join = "".join

    def encode(data: Any) -> str:
        return join(chunks(data, 0))

    return encode
