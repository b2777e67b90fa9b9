"""Read plans from files and standard input."""

from __future__ import annotations

import re
import sys

from farro import documents
from farro.documents import Document
from farro.errors import InputError
from farro.host import fs

MANY_LIMIT = 256 << 20
# How YAML begins, after comments: with a key or an item. JSON begins with a brace or a bracket.
_YAML = re.compile(rb"(?:[ \t]*(?:#[^\n]*)?\r?\n|---[^\n]*\n)*[ \t]*(?:[A-Za-z_][\w-]*[ \t]*:(?=\s|$)|-[ \t])")
_LINES = (".ndjson", ".jsonl")


def read_plan(path: str) -> Document:
    text = contents(path, documents.DEFAULT.size)
    if path == "-" and _YAML.match(text):  # stdin has no file name that tells YAML from JSON
        return documents.parse_yaml(text, source=name_of(path))
    return documents.parse(text, name_of(path))


def read_many(path: str) -> list[Document]:
    found = documents.parse_ndjson(contents(path, MANY_LIMIT), name_of(path))
    if not found:
        raise InputError(f"{name_of(path)}: it contains no plan; --many needs one JSON plan per line")
    return found


def name_of(path: str) -> str:
    return "<stdin>" if path == "-" else path


def contents(path: str, limit: int) -> bytes:
    """Read a whole file or standard input; refuse one that is larger than the limit, without reading it whole."""
    try:
        data = _stdin(limit) if path == "-" else fs.read_regular(path, limit)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{name_of(path)}: cannot be read: {why}") from error
    if len(data) > limit:
        raise InputError(f"{name_of(path)}: is larger than {limit} bytes, and no more than that is read")
    return data


def _stdin(limit: int) -> bytes:
    if sys.stdin is None:
        raise InputError("<stdin>: is closed; name a file, or pipe a plan in")
    return sys.stdin.buffer.read(limit + 1)


def read_plans(path: str) -> list[Document]:
    """Read the documents of a file: one, or one per line of an .ndjson file. Standard input may be JSON or YAML."""
    name = name_of(path)
    if path.lower().endswith(_LINES):
        found = documents.parse_ndjson(contents(path, MANY_LIMIT), name)
        if not found:
            raise InputError(f"{name}: it contains no plan; write one JSON plan per line")
        return found
    text = contents(path, documents.DEFAULT.size)
    if path == "-" and text.lstrip()[:1] not in (b"{", b"[", b""):
        return [documents.parse_yaml(text, source=name)]
    return [documents.parse(text, name)]
