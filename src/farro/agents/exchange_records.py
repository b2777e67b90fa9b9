"""Keep what a program and the models said to each other: `steps/<id>/calls/<n>.exchanges.gz`, one file for each call.

Each exchange is a line of JSON, compressed by itself and appended when its answer has ended, so a crash costs the last
one at most. Only `farro replay` reads these records, so they are not synced.

Each request of an agent repeats the conversation before it. A line has only what differs from the request before: the
bytes that both begin and end with are counted. The files of an attempt's step together are at most a tenth of
`security.max_job_bytes`; later exchanges are not kept. [test_what_does_not_fit_is_not_kept_and_fails_nothing]
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from farro.agents.gateway.port import ModelExchange
from farro.agents.providers.port import Usage
from farro.host import fs
from farro.lazy_dataclass import replace
from farro.sandbox.redaction import Redactor

SHARE = 10  # of the bytes of a job, one part
_SUFFIX = ".exchanges.gz"
_LIMIT = 64 << 20  # of a file, and of what it holds
_PLAIN = ("number", "dialect", "path", "status", "content_type", "whole", "model")


class ExchangeRecorder:
    """Writes the exchanges of one step in one attempt. Safe from many threads."""

    def __init__(self, folder: str, redactor: Redactor, *, most_bytes: int) -> None:
        self._folder = folder
        self._redactor = redactor
        self._left = most_bytes
        self._lock = threading.Lock()
        with contextlib.suppress(FileNotFoundError):
            for name in fs.listdir(folder):
                if name.endswith(_SUFFIX):  # of an earlier try of this step
                    fs.unlink(f"{folder}/{name}")

    def of_call(self, number: int) -> Callable[[ModelExchange], None]:
        """Return what keeps an exchange of that call."""
        path, before = f"{self._folder}/{number}{_SUFFIX}", b""

        def keep(exchange: ModelExchange) -> None:
            nonlocal before
            clean = self._clean(exchange)
            with self._lock:
                line = _line(clean, before)
                if len(line) > self._left:
                    self._left = 0  # what follows would be a conversation with a gap
                    return
                file = fs.open_append(path)
                try:
                    fs.write(file, line)
                finally:
                    os.close(file)
                self._left -= len(line)
                before = clean.request

        return keep

    def _clean(self, exchange: ModelExchange) -> ModelExchange:
        data = self._redactor.data
        return replace(
            exchange,
            path=self._redactor.text(exchange.path),
            request=data(exchange.request),
            response=data(exchange.response),
        )


def recorded_calls(folder: str) -> list[int]:
    """Return the numbers of the calls of which exchanges are kept."""
    with contextlib.suppress(FileNotFoundError):
        names = [name.removesuffix(_SUFFIX) for name in fs.listdir(folder) if name.endswith(_SUFFIX)]
        return sorted(int(name) for name in names if name.isdigit())
    return []


def recorded_exchanges(folder: str, number: int) -> Iterator[ModelExchange]:
    """Return the exchanges of a call in the order in which they ended, up to one that is damaged or cut off."""
    before = b""
    with contextlib.suppress(FileNotFoundError, ValueError, LookupError, TypeError):
        for line in _lines(f"{folder}/{number}{_SUFFIX}"):
            exchange = _exchange(json.loads(line), before)
            before = exchange.request
            yield exchange


def _lines(path: str) -> Iterator[bytes]:
    packed = fs.read_bytes(path, _LIMIT)
    with contextlib.suppress(EOFError, OSError, zlib.error), gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        left = _LIMIT
        while left > 0 and (line := file.readline(left)).endswith(b"\n"):
            left -= len(line)
            yield line


def _line(exchange: ModelExchange, before: bytes) -> bytes:
    begin = _same(before, exchange.request)
    end = _same(before[begin:][::-1], exchange.request[begin:][::-1])
    data = {
        **{name: getattr(exchange, name) for name in _PLAIN},
        "usage": None if exchange.usage is None else exchange.usage.to_json(),
        "same": [begin, end],
        "request": _text(exchange.request[begin : len(exchange.request) - end]),
        "response": _text(exchange.response),
    }
    return gzip.compress(json.dumps(data).encode() + b"\n", 6)


def _exchange(data: Mapping[str, Any], before: bytes) -> ModelExchange:
    begin, end = data["same"]
    return ModelExchange(
        **{name: data[name] for name in _PLAIN},
        usage=None if data["usage"] is None else Usage(**data["usage"]),
        request=before[:begin] + _bytes(data["request"]) + before[len(before) - end :],
        response=_bytes(data["response"]),
    )


def _same(one: bytes, other: bytes) -> int:
    """Return how many bytes both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
