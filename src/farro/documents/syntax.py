"""Advise on syntax errors: the parsers say what they met, this says what to change."""

from __future__ import annotations

import re

_TRAILING = "a comma stands before this with nothing after it; take it out"
_QUOTES = "names and text stand in double quotes"
_COMMENT = "JSON has no comments; take it out"
_CUT = "the text ends too early: a } or ] is missing"


def json_hint(message: str, text: str, offset: int) -> str:
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


def yaml_hint(problem: str) -> str:
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
