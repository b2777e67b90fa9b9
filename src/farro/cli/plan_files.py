"""Reading plans from files and standard input, for commands that look at them. What is in them, `plans` says.

`farro enqueue` reads its own way: there, standard input is JSON.
"""

from __future__ import annotations

from farro import documents
from farro.cli.enqueue import MANY_LIMIT, contents, name_of
from farro.documents import Document
from farro.errors import InputError

_LINES = (".ndjson", ".jsonl")


def read_plans(path: str) -> list[Document]:
    """The documents of a file: one, or one a line in an .ndjson file. Standard input may be JSON or YAML."""
    name = name_of(path)
    if path.lower().endswith(_LINES):
        found = documents.parse_ndjson(contents(path, MANY_LIMIT), name)
        if not found:
            raise InputError(f"{name}: no plan in it; one JSON plan a line is wanted")
        return found
    text = contents(path, documents.DEFAULT.size)
    if path == "-" and text.lstrip()[:1] not in (b"{", b"[", b""):
        return [documents.parse_yaml(text, source=name)]
    return [documents.parse(text, name)]
