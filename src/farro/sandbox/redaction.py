"""Redact the values of secrets in everything that farro writes. docs/secrets.md lists what is found and what cannot be.

It finds the value itself and its forms in JSON, URLs, HTML, Python's `repr` and base64, in base64 also inside a longer
text (an Authorization header encodes `user:key` as one). Overlapping occurrences are merged: else the end of one secret
would remain after the mark of another.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from farro.config.settings import Settings
from farro.roles.provider_rules import names_a_secret

SHORTEST = 6  # a shorter value occurs in too many innocent texts
_SHORTEST_PART = 8  # … and so does a shorter piece of base64
_SHORTEST_LINE = 16  # of a value of several lines, such as a private key
_BEGINNING = 8
_PLAIN = "***"  # where the usual mark would itself contain a secret

Occurrence = tuple[int, int, str]  # from, to, whose


class Redactor:
    """Replaces each value of `values` (name → value) by `[redacted:NAME]`. Immutable; safe from many threads."""

    def __init__(self, values: Mapping[str, str]) -> None:
        known: dict[bytes, str] = {}
        for name, value in values.items():
            if len(value) >= SHORTEST:
                for form in _forms(value):
                    known.setdefault(form, name)
        self._forms = sorted(known.items(), key=lambda item: (-len(item[0]), item[0]))
        self._longest = len(self._forms[0][0]) if self._forms else 0
        # Most texts contain none, and searching a short prefix takes a tenth of the time.
        self._beginnings = tuple({form[:_BEGINNING] for form in known})

    @classmethod
    def of_variables(cls, names: Iterable[str], environ: Mapping[str, str]) -> Redactor:
        """Redact the values of these variables, also without surrounding blanks, as they are used."""
        known = {name: environ[name] for name in names if name in environ}
        return cls({**known, **{f"{name} ": value.strip() for name, value in known.items()}})

    def __bool__(self) -> bool:
        """Return whether there is anything to redact."""
        return bool(self._forms)

    def text(self, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        clean = self.data(data)
        return text if clean is data else clean.decode("utf-8", "surrogatepass")

    def data(self, data: bytes) -> bytes:
        """Return the redacted bytes; the same object if nothing is found."""
        for mark in (_mark, _plain_mark):
            found = self._found(data)
            if not found:
                return data
            data = _replaced(data, found, mark)
        while found := self._found(data):  # a mark and its neighbours contain a secret: remove them
            data = _replaced(data, found, lambda name: b"")
        return data

    def tree(self, data: Any) -> Any:
        """Return JSON data with the secrets redacted in every string, object keys included."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, Mapping):
            return {self.tree(name): self.tree(value) for name, value in data.items()}
        if isinstance(data, (list, tuple)):
            return [self.tree(value) for value in data]
        return data

    def stream(self, write: Callable[[bytes], object]) -> RedactedStream:
        """Return a stream that passes its input to `write` redacted, also if a secret arrives in two pieces."""
        return RedactedStream(self, write)

    def _found(self, data: bytes) -> list[Occurrence]:
        """Return every occurrence in order; overlapping ones are merged under the first one's name."""
        if not any(beginning in data for beginning in self._beginnings):
            return []
        places: list[tuple[int, int, str]] = []
        for form, name in self._forms:
            at = data.find(form)
            while at >= 0:
                places.append((at, -(at + len(form)), name))
                at = data.find(form, at + 1)
        return _merged((begin, -end, name) for begin, end, name in sorted(places))


class RedactedStream:
    """Redacts what is written to it. It holds back as many bytes as may be the beginning of a secret."""

    def __init__(self, redactor: Redactor, write: Callable[[bytes], object]) -> None:
        self._redactor = redactor
        self._write = write
        self._held = b""
        self._covered = 0  # held bytes that belong to a secret whose mark is already written

    def write(self, data: bytes) -> int:
        self._held += data
        self._pass(max(0, len(self._held) - max(0, self._redactor._longest - 1)))
        return len(data)

    def close(self) -> None:
        """Write what was held back. The caller closes the target."""
        self._pass(len(self._held))

    def _pass(self, cut: int) -> None:
        """Write what begins before `cut`: all of it is in the held bytes, so secrets in it are found."""
        if cut == 0:
            return
        known = [(0, self._covered, "")] if self._covered else []
        out, at = [], 0
        for begin, end, name in _merged([*known, *self._redactor._found(self._held)]):
            if begin >= cut:
                break
            out.append(self._held[at:begin])
            out.append(b"" if name == "" else _mark(name))
            at = end
        out.append(self._held[at:cut])
        self._covered = max(0, at - cut)
        self._held = self._held[cut:]
        if clean := b"".join(out):
            self._write(clean)


def _merged(places: Iterable[Occurrence]) -> list[Occurrence]:
    merged: list[Occurrence] = []
    for begin, end, name in places:
        if merged and begin < merged[-1][1]:
            first = merged[-1]
            merged[-1] = (first[0], max(first[1], end), first[2])
        else:
            merged.append((begin, end, name))
    return merged


def _replaced(data: bytes, found: Iterable[Occurrence], mark: Callable[[str], bytes]) -> bytes:
    out, at = [], 0
    for begin, end, name in found:
        out += [data[at:begin], mark(name)]
        at = end
    return b"".join([*out, data[at:]])


def _mark(name: str) -> bytes:
    return f"[redacted:{re.sub(r'[^A-Za-z0-9_.-]', '_', name.strip())}]".encode()


def _plain_mark(name: str) -> bytes:
    return _PLAIN.encode()


# --- the forms that a value takes --------------------------------------------------------------------------------


def _forms(value: str) -> set[bytes]:
    texts = {value, *_lines(value)}
    forms = {form for text in texts for form in _spelled(text)}
    forms |= {part for text in texts for part in _in_base64(text.encode("utf-8", "surrogateescape"))}
    return forms


def _lines(value: str) -> Iterator[str]:
    """Yield the lines of a key: it is often printed line by line. `-----BEGIN …` is no secret."""
    if "\n" in value:
        for line in value.split("\n"):
            if len(line.strip()) >= _SHORTEST_LINE and not line.startswith("-----"):
                yield line.strip()


def _spelled(text: str) -> Iterator[bytes]:
    for errors in ("surrogateescape", "surrogatepass"):  # as in the environment, as in a Python text
        yield text.encode("utf-8", errors)
    in_url = {_in_url(text, safe, code) for safe in (b"", b"/", b"+") for code in ("%%%02X", "%%%02x")}
    in_html = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    once = _quoted(text) | in_url | {in_html, in_html.replace('"', "&quot;").replace("'", "&#x27;")}
    twice = {form for one in once for form in _quoted(one)}  # a text quoted by an error is quoted again by the log
    for form in once | twice:
        yield form.encode("utf-8", "surrogatepass")


# Written by hand: importing the library's function takes longer than a whole command.
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def _in_url(text: str, safe: bytes, code: str) -> str:
    """Quote for a URL. `safe` is not quoted: nothing, or the slashes of a path; `+` quotes as forms do."""
    kept = _UNRESERVED | (frozenset(safe) - {0x2B})
    blank = "+" if safe == b"+" else code % 0x20
    data = text.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if byte in kept else blank if byte == 0x20 else code % byte for byte in data)


def _quoted(text: str) -> set[str]:
    """Return the text as JSON and Python's repr quote it."""
    told = {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    return told | {one.replace("/", "\\/") for one in told} | {repr(text)[1:-1], ascii(text)[1:-1]}


def _in_base64(value: bytes) -> Iterator[bytes]:
    """Yield the parts that every base64 text with the value contains: at three shifts, without the bits that depend on
    neighbouring bytes."""
    for shift in range(3):
        spelled = b2a_base64(bytes(shift) + value, newline=False).rstrip(b"=")
        begin = (0, 2, 3)[shift]
        end = (len(value) + shift) * 8 // 6
        part = spelled[begin:end]
        if len(part) >= _SHORTEST_PART:
            yield part
            yield part.replace(b"+", b"-").replace(b"/", b"_")
    whole = b2a_base64(value, newline=False)
    yield whole
    yield whole.replace(b"+", b"-").replace(b"/", b"_")


# --- which variables hold secrets ---------------------------------------------------------------------------------


def secret_variables(settings: Settings, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that hold secrets: those that the config names; those that programs get by a prefix
    (`ACME_*`) and whose name suggests a secret; and `*_API_KEY`, if a provider names no key of its own."""
    found = dict.fromkeys(settings.secret_variables())
    for provider in settings.providers.values():
        beginnings = tuple(name[:-1] for name in provider.environment if name.endswith("*"))
        found.update((name, None) for name in environ if name.startswith(beginnings) and names_a_secret(name))
        if provider.api_key is None and provider.command is None and provider.base_url is None:
            found.update((name, None) for name in environ if name.endswith("_API_KEY"))
    return tuple(found)


# --- what a process says when it breaks ---------------------------------------------------------------------------


def guard_tracebacks(redactor: Redactor) -> None:
    """Redact the interpreter's own report of an uncaught exception, in every thread."""

    def tell(kind: type[BaseException], error: BaseException | None, trace: Any, about: str = "") -> None:
        import traceback  # here: only a failing process needs it

        if sys.stderr is not None:
            sys.stderr.write(redactor.text(about + "".join(traceback.format_exception(kind, error, trace))))

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:
            name = args.thread.name if args.thread is not None else "?"
            tell(args.exc_type, args.exc_value, args.exc_traceback, f"Exception in thread {name}:\n")

    def unraisable(args: sys.UnraisableHookArgs) -> None:
        about = f"{args.err_msg or 'Exception ignored in'}: {args.object!r}\n"
        tell(args.exc_type, args.exc_value, args.exc_traceback, about)

    sys.excepthook = tell
    threading.excepthook = in_thread
    sys.unraisablehook = unraisable
