"""The kind `scripted`: answers from a file, for tests, demonstrations and work without a network.

Which answer is given depends on the request alone, never on what was asked before: a worker that crashed, another
process and a test that runs twice all get the same. docs/providers.md has the format in full.
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
from farro.config.fields import Amount, Count, FilledText
from farro.config.settings import ProviderSettings
from farro.documents import shapes
from farro.documents.constraints import Bounds, Size
from farro.errors import BadDocument
from farro.host import fs
from farro.lazy_dataclass import dataclass
from farro.roles.money import exact

TRIES = 4  # as over HTTP, for which it stands in
_PASSING = frozenset({"rate_limited", "server", "timeout", "network", "garbage", "failed"})


@dataclass(frozen=True, eq=False)
class RegexRule:
    """A regular expression."""

    def fault(self, value: str, /) -> str | None:
        try:
            re.compile(value)
        except re.error as error:
            return f"is not a regular expression: {error}"
        return None


@dataclass(frozen=True, kw_only=True)
class ScriptedUsage:
    input_tokens: Annotated[int, Bounds(at_least=0)]
    output_tokens: Annotated[int, Bounds(at_least=0)]
    cache_read_tokens: Annotated[int, Bounds(at_least=0)] = 0
    cache_write_tokens: Annotated[int, Bounds(at_least=0)] = 0


@dataclass(frozen=True, kw_only=True)
class ScriptedError:
    kind: TroubleKind
    message: str = "scripted"
    retry_after_s: Amount | None = None
    retryable: bool | None = None  # None: as such a trouble usually is
    charged: bool = False


@dataclass(frozen=True, kw_only=True)
class ScriptedAnswer:
    """One answer, or trouble, and the requests that get it: those that fit everything it names."""

    role: FilledText | None = None
    match: FilledText | None = None  # in the text of the messages
    pattern: Annotated[str, RegexRule()] | None = None  # the same, as a regular expression
    attempt: Count | None = None  # of the job
    times: Count | None = None  # so many calls of an attempt; None: any number
    answer: Any = None  # text; anything else is given as JSON
    error: ScriptedError | None = None
    usage: ScriptedUsage | None = None
    model: FilledText | None = None
    cost_usd: Amount = 0.0
    whole: bool = True
    delay_s: Amount = 0.0


@dataclass(frozen=True, kw_only=True)
class AnswerScript:
    answers: Annotated[tuple[ScriptedAnswer, ...], Size(at_least=1)]


def make(name: str, settings: ProviderSettings, place: Place) -> Provider:
    return ScriptedProvider(name, settings, place.root)


class ScriptedProvider:
    """Answers from a file (port: Provider)."""

    tries = TRIES

    def __init__(
        self, name: str, settings: ProviderSettings, root: str, *, wait: Callable[[float], None] = time.sleep
    ) -> None:
        self._name = name
        self._settings = settings
        self._root = root
        self._wait = wait
        self._read: tuple[tuple[int, ...], AnswerScript] | None = None  # the file as it was

    def answer(self, request: Request) -> Answer:
        entry = self._chosen(request)
        self._take_time(entry.delay_s, request.timeout_s)
        usage = None if entry.usage is None else Usage(**vars(entry.usage))
        cost_usd = exact(entry.cost_usd)
        if entry.error is not None:
            told = entry.error
            retryable = told.kind in _PASSING if told.retryable is None else told.retryable
            raise ProviderTrouble(
                f"provider {self._name}: {told.message}",
                kind=told.kind,
                retryable=retryable,
                retry_after_s=told.retry_after_s,
                usage=usage,
                cost_usd=cost_usd,
                charged=told.charged,
            )
        text = entry.answer if isinstance(entry.answer, str) else json.dumps(entry.answer, ensure_ascii=False, indent=2)
        if request.partial is not None:
            with contextlib.suppress(OSError, ValueError):  # it is for people who read along, no more
                request.partial.write(text.encode("utf-8", "replace"))
                request.partial.flush()
        model = entry.model or request.model or self._settings.model
        return Answer(text=text, model=model, usage=usage, cost_usd=cost_usd, whole=entry.whole)

    def most_usd(self, request: Request) -> Decimal:
        """Port: Foretelling. A script that cannot be read, or has no answer, costs nothing."""
        try:
            return exact(self._chosen(request).cost_usd)
        except ProviderTrouble:
            return Decimal(0)

    def close(self) -> None:
        pass

    def _chosen(self, request: Request) -> ScriptedAnswer:
        """The entries that fit, each as often as its `times` says, in the order of the file; the call's number says
        which of them. Calls after the last get none."""
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
            raise self._trouble(f"{path} cannot be read: {error.strerror}", kind="missing") from None
        except BadDocument as error:
            raise self._trouble(f"its answers cannot be read:\n{error}") from None
        return self._read[1]

    def _path(self) -> str:
        if self._settings.file is None:
            raise self._trouble(f"has no answers; set providers.{self._name}.file", kind="missing")
        return os.path.join(self._root, self._settings.file)

    def _take_time(self, delay_s: float, timeout_s: float) -> None:
        left_s = min(delay_s, timeout_s)
        while left_s > 0:
            self._wait(min(SLICE_S, left_s))
            left_s -= SLICE_S
        if delay_s > timeout_s:
            message = f"provider {self._name} gave no answer within {timeout_s:g} s"
            raise ProviderTrouble(message, kind="timeout", retryable=True, charged=False)

    def _trouble(self, message: str, kind: TroubleKind = "failed") -> ProviderTrouble:
        return ProviderTrouble(f"provider {self._name}: {message}", kind=kind, retryable=False, charged=False)


def _parsed(text: bytes, source: str) -> AnswerScript:
    document = documents.parse(text, source)
    checked = shapes.check(AnswerScript, document.data)
    faults = [*checked.faults]
    if checked.value is not None:
        for index, entry in enumerate(document.data["answers"]):
            if ("answer" in entry) == ("error" in entry):
                faults.append(shapes.Fault(("answers", index), "must have either an answer or an error"))
    if checked.value is None or faults:
        problems = [document.problem(fault.path, fault.message, key=fault.key) for fault in faults]
        raise documents.refusal(source, problems)
    return checked.value


def _fits(entry: ScriptedAnswer, role: str, attempt: int, text: str) -> bool:
    return (
        (entry.role is None or entry.role == role)
        and (entry.attempt is None or entry.attempt == attempt)
        and (entry.match is None or entry.match in text)
        and (entry.pattern is None or re.search(entry.pattern, text) is not None)
    )


def _numbers(key: str) -> tuple[int, int]:
    """Attempt and call of `<job>/<attempt>/<step>/<call>`."""
    parts: Sequence[str] = key.split("/")
    attempt, call = (parts[-3], parts[-1]) if len(parts) >= 4 else ("1", parts[-1])
    return _at_least_one(attempt), _at_least_one(call)


def _at_least_one(text: str) -> int:
    return max(int(text), 1) if text.isascii() and text.isdigit() else 1
