"""Encode JSON quickly, for what is written for every job. Light to import: `farro --version` uses it.

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
