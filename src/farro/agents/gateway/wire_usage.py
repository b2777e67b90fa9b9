"""Read from an answer, as it passes, what it cost, which model gave it, and how it ended."""

from __future__ import annotations

import json
import re

from farro.agents.gateway.port import DialectName, ModelExchange
from farro.agents.programs.output import LONGEST_LINE, Lines, at, count_at, json_object, text_at
from farro.agents.programs.output_reader import usage_beside_cache
from farro.agents.providers.port import Usage

# Events without these are not parsed: a stream is mostly short pieces of text. Inside a text the quotes are escaped.
_TELLING = re.compile(
    r'"(?:usage|usageMetadata)"\s*:\s*\{|"(?:finish_reason|finishReason)"\s*:\s*"|"error"\s*:'
    r'|"type"\s*:\s*"(?:message_stop|error|response\.(?:completed|incomplete|failed))"|^data:\s*\[DONE\]'
)
_OPENAI_NAMES = {"responses": ("input", "output"), "chat": ("prompt", "completion")}


class WireReader:
    """Reads one answer, whole or as a stream of events."""

    def __init__(self, dialect: DialectName, *, streamed: bool) -> None:
        self.usage: Usage | None = None  # as told so far
        self.model: str | None = None
        self.finished = False  # the answer says that it is complete
        self.ended = False  # nothing follows that matters
        self.error: object = None  # the event by which a stream reports an error
        self._dialect = dialect
        self._lines = Lines(self._on_line) if streamed else None
        self._whole = bytearray()
        self._counts: dict[str, object] = {}  # of Anthropic

    def feed(self, data: bytes) -> None:
        if self._lines is not None:
            self._lines.feed(data)
        elif len(self._whole) <= LONGEST_LINE:
            self._whole += data

    def end(self) -> None:
        """Take what has no line break, or the whole answer."""
        if self._lines is not None:
            self._lines.end()
            return
        try:
            found = json.loads(self._whole)
        except (ValueError, RecursionError):
            return
        for event in found if isinstance(found, list) else [found]:  # Google's stream may be one list
            self._take(event)
        self.finished = self.ended = self.error is None and isinstance(found, (dict, list))

    def _on_line(self, line: str) -> None:
        if line.startswith("data:") and _TELLING.search(line):
            if line[5:].strip() == "[DONE]":
                self.finished = self.ended = True
            elif (event := json_object(line[5:])) is not None:
                self._take(event)

    def _take(self, event: object) -> None:
        kind = text_at(event, "type")
        if at(event, "error") or kind in ("error", "response.failed"):
            self.error = event
        if self._dialect == "anthropic":
            self._anthropic(event)
            self.finished = self.ended = self.ended or kind == "message_stop"
        elif self._dialect == "responses":
            self._openai(at(event, "response") or event)
            self.finished = self.ended = self.ended or kind in ("response.completed", "response.incomplete")
        elif self._dialect == "chat":
            self._openai(event)
            self.finished = self.finished or bool(text_at(event, "choices", 0, "finish_reason"))
        else:
            self._google(at(event, "response") or event)

    def _anthropic(self, event: object) -> None:
        message = at(event, "message") or event
        self.model = text_at(message, "model") or self.model
        told = at(message, "usage")
        if not isinstance(told, dict):
            return
        self._counts |= {name: count for name, count in told.items() if count is not None}  # later ones replace
        self.usage = usage_beside_cache(
            self._counts,
            fresh="input_tokens",
            output="output_tokens",
            cache_read="cache_read_input_tokens",
            cache_write="cache_creation_input_tokens",
        )

    def _openai(self, answer: object) -> None:
        self.model = text_at(answer, "model") or self.model
        told, (asked, said) = at(answer, "usage"), _OPENAI_NAMES[self._dialect]
        if isinstance(told, dict):
            self.usage = Usage(
                input_tokens=count_at(told, f"{asked}_tokens"),
                output_tokens=count_at(told, f"{said}_tokens"),
                cache_read_tokens=count_at(told, f"{asked}_tokens_details", "cached_tokens"),
                cache_write_tokens=count_at(told, f"{asked}_tokens_details", "cache_write_tokens"),
            )

    def _google(self, answer: object) -> None:
        self.model = text_at(answer, "modelVersion") or self.model
        told = at(answer, "usageMetadata")
        if isinstance(told, dict):
            self.usage = Usage(
                input_tokens=count_at(told, "promptTokenCount") + count_at(told, "toolUsePromptTokenCount"),
                output_tokens=count_at(told, "candidatesTokenCount") + count_at(told, "thoughtsTokenCount"),
                cache_read_tokens=count_at(told, "cachedContentTokenCount"),
            )
        # A prompt that is blocked has no candidate. The last event has the final counts, and nothing marks the end.
        if text_at(answer, "candidates", 0, "finishReason") or at(answer, "promptFeedback", "blockReason"):
            self.finished = self.ended = True


def read_again(exchange: ModelExchange) -> tuple[str | None, Usage | None]:
    """Return the model and the tokens that a kept answer tells."""
    reader = WireReader(exchange.dialect, streamed="event-stream" in exchange.content_type)
    reader.feed(exchange.response)
    reader.end()
    return reader.model or exchange.model, reader.usage
