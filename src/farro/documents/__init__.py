"""Parse JSON, NDJSON and YAML within limits, and report the problems of a document with their positions.

Bytes come in; no file is read here. Sizes are checked before parsing by scans that run in C. Positions are found by a
second scan of the text, only when needed.
"""

from __future__ import annotations

from typing import Any

from farro.documents.json_text import encoder, parse_json
from farro.documents.model import (
    DEFAULT,
    DEFAULT_YAML,
    MAX_PROBLEMS,
    Document,
    Limits,
    Path,
    Place,
    did_you_mean,
    refusal,
    refusals,
    render_path,
    show,
    without_schema,
)
from farro.documents.yaml_text import parse_yaml
from farro.errors import BadDocument, Problem

__all__ = [
    "DEFAULT",
    "DEFAULT_YAML",
    "MAX_PROBLEMS",
    "Document",
    "Limits",
    "Path",
    "Place",
    "canonical",
    "did_you_mean",
    "parse",
    "parse_json",
    "parse_ndjson",
    "parse_yaml",
    "refusal",
    "refusals",
    "render_path",
    "show",
    "without_schema",
]


def parse(text: bytes, source: str) -> Document:
    """Parse YAML when the source's name ends in .yaml or .yml, else JSON."""
    return (parse_yaml if source.lower().endswith((".yaml", ".yml")) else parse_json)(text, source=source)


def parse_ndjson(text: bytes, source: str, *, limits: Limits = DEFAULT) -> list[Document]:
    """Parse one document per non-blank line; the limits apply to each line. All bad lines are reported at once."""
    documents: list[Document] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.split(b"\n"), start=1):  # only \n: U+2028 is allowed inside a JSON string
        if line and not line.isspace():
            try:
                documents.append(parse_json(line, source=source, limits=limits, first_line=number))
            except BadDocument as bad:
                problems += bad.problems
    if problems:
        raise refusal(source, problems)
    return documents


def canonical(data: Any) -> bytes:
    """Return the canonical JSON of this data, which content hashes are computed from."""
    return _canonical(data).encode("utf-8")


_canonical = encoder(sort_keys=True, separators=(",", ":"))
