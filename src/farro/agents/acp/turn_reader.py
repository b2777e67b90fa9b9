"""Read what an ACP agent reports of its turn: its text, its tools, the files that they wrote, and what it cost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from farro.agents.programs.outcomes import ProgramError
from farro.agents.programs.output import Event, at, count_at, json_object, objects_at, text_at
from farro.agents.programs.output_reader import MOST_FILES, EventReader, local_now, usage_beside_cache
from farro.agents.providers.port import Usage
from farro.lazy_dataclass import replace
from farro.roles.money import reported_cost

WRITING = ("edit", "delete", "move")  # kinds of tools
_AUTH_REQUIRED = -32000  # of the protocol


class TurnReader(EventReader):
    """Reads one turn. An event is the `update` of a notification, its members as the protocol names them."""

    def __init__(self, on_progress: Callable[[str], None], now: Callable[[], datetime] = local_now) -> None:
        super().__init__(on_progress, now)
        self.whole = True  # False: cut off at the model's limit of tokens
        self._tools: dict[str, dict[str, Any]] = {}  # by their ids
        self._called = False  # a tool, since the last text

    def take(self, event: Event) -> None:
        match event.get("sessionUpdate"):
            case "agent_message_chunk":
                self._text(text_at(event, "content", "text"))
            case "tool_call" | "tool_call_update":
                self._tool(event)
            case "usage_update" if text_at(event, "cost", "currency") == "USD":
                self.cost_usd = reported_cost(at(event, "cost", "amount"))

    def known(self, tool: Event) -> Event:
        """Return all that is known of a tool's call: later messages name only what has changed."""
        before = self._tools.get(text_at(tool, "toolCallId"), {})
        return {**before, **{name: value for name, value in tool.items() if value is not None}}

    def take_end(self, response: Event) -> None:
        """Take the agent's answer to the prompt."""
        self.said()
        if self._called:
            self.text = ""  # what it said before its last tools is no answer
        self.usage = _usage(response)
        match response.get("stopReason"):
            case "end_turn":
                self.finished = True
            case "max_tokens":
                self.finished, self.whole = True, False
            case "refusal":
                self.error = ProgramError(message="refused to go on", kind="denied")
            case reason:
                self.error = ProgramError(message=f"stopped before its end ({reason})", kind="failed")

    def take_error(self, code: int, message: str, data: object) -> None:
        """Take the error with which the agent answered a request."""
        self.said()
        inner = json_object(message)  # some pass on what the model's service said
        said = text_at(inner, "error", "message") or message
        detail = text_at(data, "details") or text_at(data, "message")
        words = f"{said}: {detail}" if detail and detail not in said else said
        if code == _AUTH_REQUIRED:
            words = f"{words}; it is not signed in: name the variable of its key under `environment`"
            self.error = ProgramError(message=words, kind="refused")
        else:
            self.error = ProgramError(message=words, status=code if 400 <= code < 600 else None)

    def _text(self, piece: str) -> None:
        self.text = piece if self._called else self.text + piece
        self._called = False
        self.say(piece)

    def _tool(self, event: Event) -> None:
        tool_id, tool = text_at(event, "toolCallId"), dict(self.known(event))
        if tool_id not in self._tools:
            self.said()
            self._called = True
            self.progress(text_at(tool, "title"))
        if len(self._tools) < MOST_FILES:
            self._tools[tool_id] = tool
        if event.get("status") == "completed" and tool.get("kind") in WRITING:
            for path in paths_of(tool):
                self.wrote(path)


def paths_of(tool: Event) -> tuple[str, ...]:
    """Return the files that a tool's call names."""
    named = [text_at(one, "path") for one in (*objects_at(tool, "locations"), *objects_at(tool, "content"))]
    return tuple(dict.fromkeys(path for path in named if path))


def _usage(response: Event) -> Usage | None:
    counts = at(response, "usage")
    if not isinstance(counts, dict):
        return None
    told = usage_beside_cache(
        counts,
        fresh="inputTokens",
        output="outputTokens",
        cache_read="cachedReadTokens",
        cache_write="cachedWriteTokens",
    )
    thoughts = count_at(counts, "totalTokens") - told.input_tokens - told.output_tokens
    return replace(told, output_tokens=told.output_tokens + max(thoughts, 0))
