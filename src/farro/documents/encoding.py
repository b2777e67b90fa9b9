"""Data → JSON text, quickly: for what is written at every job. Light: `farro --version` imports this.

Reading lives in documents.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from json import encoder as standard
from typing import Any


def encoder(
    *,
    ensure_ascii: bool = False,
    sort_keys: bool = False,
    separators: tuple[str, str] = (", ", ": "),
    allow_nan: bool = False,
    default: Callable[[Any], Any] | None = None,
) -> Callable[[Any], str]:
    """As `json.JSONEncoder(...).encode`, but its part in C is made once: the standard library makes it anew for each
    text, which takes longer than a small text itself. Data that contains itself is a RecursionError."""
    plain = json.JSONEncoder(
        ensure_ascii=ensure_ascii,
        sort_keys=sort_keys,
        separators=separators,
        allow_nan=allow_nan,
        default=default,
        check_circular=False,
    )
    make = getattr(standard, "c_make_encoder", None)
    if make is None:  # an interpreter without it
        return plain.encode
    text = standard.encode_basestring_ascii if ensure_ascii else standard.encode_basestring
    item, key = separators
    chunks = make(None, plain.default, text, None, key, item, sort_keys, False, allow_nan)
    join = "".join

    def encode(data: Any) -> str:
        return join(chunks(data, 0))

    return encode
