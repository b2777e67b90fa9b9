"""The kind `scripted`: answers from a file, for tests, demonstrations and work without a network.

The answer depends on the request alone, never on earlier calls: after a crash, in another process and in a repeated
test it is the same. docs/providers.md describes the format.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Annotated, Any

from farro import documents
from farro.agents.providers.port import SLICE_S, Answer, Provider, ProviderTrouble, Request, TroubleKind, Usage
from farro.agents.providers.registry import Place
from farro.config.settings import Amount, Count, FilledText, ProviderSettings
from farro.documents import shapes
from farro.documents.constraints import Size
from farro.errors import BadDocument
from farro.host import fs
from farro.lazy_dataclass import dataclass
from farro.roles.money import exact
from farro.roles.provider_rules import HTTP_TRIES

_PASSING = frozenset({"limited", "overloaded", "cut", "timed_out", "failed"})


@dataclass(frozen=True, eq=False)
class RegexRule:
    """Check that a text is a regular expression."""

    def fault(self, value: str, /) -> str | None:
        try:
            re.compile(value)
        except re.error as error:
            return f"is not a regular expression: {error}"
        return None


@dataclass(frozen=True, kw_only=True)
class ScriptedError:
    kind: TroubleKind
    message: str = "scripted"
    retry_after_s: Amount | None = None
    retryable: bool | None = None  # None: the default of the kind
    charged: bool = False


@dataclass(frozen=True, kw_only=True)
class ScriptedAnswer:
    """One answer or error. It is given to requests that match everything it names."""

    role: FilledText | None = None
    match: FilledText | None = None  # a text in the messages
    pattern: Annotated[str, RegexRule()] | None = None  # a regular expression for the messages
    attempt: Count | None = None  # of the job
    times: Count | None = None  # the number of calls of an attempt; None: any number
    answer: Any = None  # a text; any other value is given as JSON
    error: ScriptedError | None = None
    usage: Usage | None = None
    model: FilledText | None = None
    cost_usd: Amount = 0.0
    whole: bool = True
    delay_s: Amount = 0.0


@dataclass(frozen=True, kw_only=True)
class AnswerScript:
    """The file of answers."""

    answers: Annotated[tuple[ScriptedAnswer, ...], Size(at_least=1)]


def make(name: str, settings: ProviderSettings, place: Place) -> Provider:
    return ScriptedProvider(name, settings, place.root)


class ScriptedProvider:
    """Answers from a file (port: Provider)."""

    tries = HTTP_TRIES  # it replaces one of these

    def __init__(
        self, name: str, settings: ProviderSettings, root: str, *, wait: Callable[[float], None] = time.sleep
    ) -> None:
        self._name = name
        self._settings = settings
        self._root = root
        self._wait = wait
        self._read: tuple[tuple[int, ...], AnswerScript] | None = None  # the file's signature and its content

    def answer(self, request: Request) -> Answer:
        entry = self._chosen(request)
        self._take_time(entry.delay_s, request.timeout_s)
        cost_usd = exact(entry.cost_usd)
        if entry.error is not None:
            error = entry.error
            retryable = error.kind in _PASSING if error.retryable is None else error.retryable
            raise ProviderTrouble(
                f"provider {self._name}: {error.message}",
                kind=error.kind,
                retryable=retryable,
                retry_after_s=error.retry_after_s,
                usage=entry.usage,
                cost_usd=cost_usd,
                charged=error.charged,
            )
        text = entry.answer if isinstance(entry.answer, str) else json.dumps(entry.answer, ensure_ascii=False, indent=2)
        if request.partial is not None:
            with contextlib.suppress(OSError, ValueError):  # only for people who watch: never fail the call
                request.partial.write(text.encode("utf-8", "replace"))
                request.partial.flush()
        model = entry.model or request.model or self._settings.model
        return Answer(text=text, model=model, usage=entry.usage, cost_usd=cost_usd, whole=entry.whole)

    def most_usd(self, request: Request) -> Decimal:
        """Port: PricedProvider. A script that cannot be read, or has no answer, costs nothing."""
        try:
            return exact(self._chosen(request).cost_usd)
        except ProviderTrouble:
            return Decimal(0)

    def close(self) -> None:
        pass

    def _chosen(self, request: Request) -> ScriptedAnswer:
        """Choose the answer by the number of the call among the matching answers, each counted `times` times.

        They are used in the order of the file. Calls after the last answer fail.
        """
        attempt, number = _numbers(request.key)
        text = "\n".join(message.text for message in request.messages)
        left = number
        for entry in self._script().answers:
            if _fits(entry, request.role, attempt, text):
                if entry.times is None or left <= entry.times:
                    return entry
                left -= entry.times
        raise self._trouble(
            f"{self._path()} has no answer for call {number} of attempt {attempt} of role {request.role or '(none)'}; "
            "add one to `answers`"
        )

    def _script(self) -> AnswerScript:
        path = self._path()
        try:
            found = os.stat(path)
            signature = (found.st_ino, found.st_size, found.st_mtime_ns)
            if self._read is None or self._read[0] != signature:
                self._read = signature, _parsed(fs.read_regular(path, documents.DEFAULT.size), path)
        except OSError as error:
            raise self._trouble(f"{path} cannot be read: {error.strerror}") from None
        except BadDocument as error:
            raise self._trouble(f"its answers cannot be read:\n{error}") from None
        return self._read[1]

    def _path(self) -> str:
        if self._settings.file is None:
            raise self._trouble(f"has no answers; set providers.{self._name}.file")
        return os.path.join(self._root, self._settings.file)

    def _take_time(self, delay_s: float, timeout_s: float) -> None:
        left_s = min(delay_s, timeout_s)
        while left_s > 0:
            self._wait(min(SLICE_S, left_s))
            left_s -= SLICE_S
        if delay_s > timeout_s:
            message = f"provider {self._name} gave no answer within {timeout_s:g} s"
            raise ProviderTrouble(message, kind="timed_out", retryable=True, charged=False)

    def _trouble(self, message: str) -> ProviderTrouble:
        return ProviderTrouble(f"provider {self._name}: {message}", kind="failed", retryable=False, charged=False)


def _parsed(text: bytes, source: str) -> AnswerScript:
    document = documents.parse(text, source)
    checked = shapes.check(AnswerScript, document.data)
    either = [
        shapes.Fault(("answers", index), "must have either an answer or an error")
        for index, entry in enumerate(document.data["answers"] if checked.value is not None else ())
        if ("answer" in entry) == ("error" in entry)
    ]
    return checked.accepted(document, either)


def _fits(entry: ScriptedAnswer, role: str, attempt: int, text: str) -> bool:
    return (
        (entry.role is None or entry.role == role)
        and (entry.attempt is None or entry.attempt == attempt)
        and (entry.match is None or entry.match in text)
        and (entry.pattern is None or re.search(entry.pattern, text) is not None)
    )


def _numbers(key: str) -> tuple[int, int]:
    """Return attempt and call of a key `<job>/<attempt>/<step>/<call>`."""
    parts: Sequence[str] = key.split("/")
    attempt, call = (parts[-3], parts[-1]) if len(parts) >= 4 else ("1", parts[-1])
    return _at_least_one(attempt), _at_least_one(call)


def _at_least_one(text: str) -> int:
    return max(int(text), 1) if text.isascii() and text.isdigit() else 1
