"""Write replies in each dialect: whole, as the events of a stream, and the errors of the real services."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from farro.store.ledger import Usage
from model_server.conversation import Conversation, Dialect, tool_for_command, tool_for_file
from model_server.scenarios import Fail, RunCommand, Say, Turn, WriteFile

Event = tuple[str | None, Any]  # its name, and its data
_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A good answer: text, or the call of a tool."""

    conversation: Conversation
    pieces: Sequence[str]  # of the text
    usage: Usage
    tool: tuple[str, Any] | None = None
    delay_s: float = 0.0  # before each piece
    reasoning: int = 5  # tokens of the output that no text shows
    id: str = field(default_factory=lambda: f"{next(_numbers):06}")

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def arguments(self) -> str:
        """Return the arguments of the tool as they are sent."""
        assert self.tool is not None
        return self.tool[1] if isinstance(self.tool[1], str) else json.dumps(self.tool[1])


def reply_to(dialect: Dialect, conversation: Conversation, turn: Turn, within: Sequence[str]) -> Reply:
    """Return the answer of a turn. A turn that needs a tool which the program lacks is answered with OK."""
    tool, text, count, delay_s = None, "OK", 1, 0.0
    if conversation.answer_schema is not None:
        text = json.dumps(_sample(conversation.answer_schema))
    elif isinstance(turn, WriteFile):
        tool = tool_for_file(conversation, turn.path, turn.text, within)
        if tool is None and "SEARCH/REPLACE" in conversation.text_of("system"):  # aider edits by its answer
            text = f"{turn.path}\n```\n<<<<<<< SEARCH\n=======\n{turn.text}>>>>>>> REPLACE\n```\n"
        elif tool is None and "file listing" in conversation.text_of("system"):  # or by whole files
            text = f"{turn.path}\n```\n{turn.text}```\n"
    elif isinstance(turn, RunCommand):
        tool = tool_for_command(conversation, turn.command)
    elif isinstance(turn, Say):
        text, count, delay_s = turn.text, turn.pieces, turn.delay_s
    else:
        count = 2  # so that something comes before the trouble
    size = max(1, -(-len(text) // count))
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    usage = _usage(dialect, conversation, text if tool is None else json.dumps(tool))
    return Reply(conversation=conversation, pieces=pieces, tool=tool, delay_s=delay_s, usage=usage)


def _usage(dialect: Dialect, conversation: Conversation, said: str) -> Usage:
    """Count tokens from the texts: nearly every request costs something else, so that a wrong sum is noticed."""
    asked = conversation.text_of("system", "user", "model", "tool")
    input_tokens = 20 + len(asked.encode()) // 4
    is_first = not any(message.author == "model" for message in conversation.messages)
    return Usage(
        input_tokens=input_tokens,
        output_tokens=6 + len(said.encode()) // 4,
        cache_read_tokens=0 if is_first else input_tokens // 2,
        cache_write_tokens=input_tokens // 4 if is_first and dialect == "anthropic" else 0,
    )


def _sample(schema: Mapping[str, Any]) -> Any:
    """Return a value of a JSON schema: gemini lets a model decide which model is used, and wants its form."""
    kind = str(schema.get("type", "string")).lower()
    if "enum" in schema:
        return schema["enum"][0]
    if kind == "object":
        return {name: _sample(member) for name, member in schema.get("properties", {}).items()}
    return {"number": 50, "integer": 50, "boolean": False, "array": []}.get(kind, "as asked")


# --- answers ---


def anthropic_events(reply: Reply) -> Iterator[Event]:
    usage = _anthropic_usage(reply.usage)
    head = {**_anthropic_head(reply), "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield _typed("message_start", message=head)
    if reply.tool is None:
        block: dict[str, Any] = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": piece} for piece in reply.pieces]
    else:
        block = {"type": "tool_use", "id": f"toolu_{reply.id}", "name": reply.tool[0], "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": reply.arguments}]
    if reply.tool is not None or reply.text:
        yield _typed("content_block_start", index=0, content_block=block)
        yield _typed("ping")
        for delta in deltas:
            yield _typed("content_block_delta", index=0, delta=delta)
        yield _typed("content_block_stop", index=0)
    stop = {"stop_reason": "end_turn" if reply.tool is None else "tool_use", "stop_sequence": None}
    yield _typed("message_delta", delta=stop, usage=usage)
    yield _typed("message_stop")


def anthropic_whole(reply: Reply) -> Any:
    content: list[Any] = [{"type": "text", "text": reply.text}] if reply.text else []
    if reply.tool is not None:
        content = [{"type": "tool_use", "id": f"toolu_{reply.id}", "name": reply.tool[0], "input": reply.tool[1]}]
    stop = "end_turn" if reply.tool is None else "tool_use"
    usage = _anthropic_usage(reply.usage)
    return {**_anthropic_head(reply), "content": content, "stop_reason": stop, "usage": usage}


def _anthropic_head(reply: Reply) -> dict[str, Any]:
    model = reply.conversation.model
    return {"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "model": model, "stop_sequence": None}


def _anthropic_usage(usage: Usage) -> dict[str, Any]:
    """Anthropic counts cached tokens apart from `input_tokens`."""
    return {
        "input_tokens": usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "output_tokens": usage.output_tokens,
        "service_tier": "standard",
    }


def responses_events(reply: Reply) -> Iterator[Event]:
    whole = responses_whole(reply)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    numbers = itertools.count()

    def event(kind: str, **fields: Any) -> Event:
        return _typed(kind, sequence_number=next(numbers), **fields)

    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for at, item in enumerate(whole["output"]):
        yield event("response.output_item.added", output_index=at, item={**item, "status": "in_progress"})
        if item["type"] == "message":
            where = {"item_id": item["id"], "output_index": at, "content_index": 0}
            part = {"type": "output_text", "text": "", "annotations": []}
            yield event("response.content_part.added", **where, part=part)
            for piece in reply.pieces:
                yield event("response.output_text.delta", **where, delta=piece)
            yield event("response.output_text.done", **where, text=reply.text)
            yield event("response.content_part.done", **where, part={**part, "text": reply.text})
        yield event("response.output_item.done", output_index=at, item=item)
    yield event("response.completed", response=whole)


def responses_whole(reply: Reply) -> Any:
    item: dict[str, Any] = {"id": f"item_{reply.id}", "status": "completed"}
    if reply.tool is None:
        content = [{"type": "output_text", "text": reply.text, "annotations": []}]
        item |= {"type": "message", "role": "assistant", "content": content}
    elif isinstance(reply.tool[1], str):
        call = f"call_{reply.id}"
        item |= {"type": "custom_tool_call", "call_id": call, "name": reply.tool[0], "input": reply.tool[1]}
    else:
        call = f"call_{reply.id}"
        item |= {"type": "function_call", "call_id": call, "name": reply.tool[0], "arguments": reply.arguments}
    usage = reply.usage
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed",
        "model": reply.conversation.model,
        "output": [item] if reply.tool is not None or reply.text else [],
        "usage": {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cache_read_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": reply.reasoning},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        },
    }


def chat_events(reply: Reply) -> Iterator[Event]:
    chunk = {**_chat_head(reply), "object": "chat.completion.chunk"}

    def choice(delta: dict[str, Any], finish: str | None = None) -> Event:
        return None, {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield choice({"role": "assistant", "content": "" if reply.tool is None else None})
    if reply.tool is None:
        for piece in reply.pieces:
            yield choice({"content": piece})
        yield choice({}, "stop")
    else:
        yield choice({"tool_calls": [{"index": 0, **_chat_call(reply)}]})
        yield choice({}, "tool_calls")
    if reply.conversation.wants_usage:
        yield None, {**chunk, "choices": [], "usage": _chat_usage(reply)}
    yield None, "[DONE]"


def chat_whole(reply: Reply) -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text if reply.tool is None else None}
    if reply.tool is not None:
        message["tool_calls"] = [_chat_call(reply)]
    finish = "stop" if reply.tool is None else "tool_calls"
    choices = [{"index": 0, "message": message, "finish_reason": finish}]
    return {**_chat_head(reply), "object": "chat.completion", "choices": choices, "usage": _chat_usage(reply)}


def _chat_head(reply: Reply) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.id}", "created": int(time.time()), "model": reply.conversation.model}


def _chat_call(reply: Reply) -> dict[str, Any]:
    assert reply.tool is not None
    function = {"name": reply.tool[0], "arguments": reply.arguments}
    return {"id": f"call_{reply.id}", "type": "function", "function": function}


def _chat_usage(reply: Reply) -> dict[str, Any]:
    usage = reply.usage
    return {
        "prompt_tokens": usage.input_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "completion_tokens": usage.output_tokens,
        "completion_tokens_details": {"reasoning_tokens": reply.reasoning},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def gemini_events(reply: Reply) -> Iterator[Event]:
    whole = gemini_whole(reply)
    pieces = reply.pieces if reply.tool is None else []
    for piece in pieces[:-1]:
        part = {"content": {"role": "model", "parts": [{"text": piece}]}, "index": 0}
        told = {**whole["usageMetadata"], "candidatesTokenCount": 1, "thoughtsTokenCount": 0}
        yield None, {**whole, "candidates": [part], "usageMetadata": told}
    if pieces:
        whole["candidates"][0]["content"]["parts"] = [{"text": pieces[-1]}]
    yield None, whole


def gemini_whole(reply: Reply) -> Any:
    part: dict[str, Any] = {"text": reply.text}
    if reply.tool is not None:
        part = {"functionCall": {"name": reply.tool[0], "args": reply.tool[1]}}
    usage = reply.usage
    return {
        "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": usage.input_tokens,
            "cachedContentTokenCount": usage.cache_read_tokens,
            "candidatesTokenCount": usage.output_tokens - reply.reasoning,
            "thoughtsTokenCount": reply.reasoning,
            "totalTokenCount": usage.input_tokens + usage.output_tokens,
        },
        "modelVersion": reply.conversation.model,
        "responseId": reply.id,
    }


def events(dialect: Dialect, reply: Reply) -> Iterator[Event]:
    """Yield the events of a streamed answer."""
    if dialect == "code_assist":
        yield from ((None, {"response": data, "traceId": reply.id}) for _, data in gemini_events(reply))
        return
    of = {"anthropic": anthropic_events, "responses": responses_events, "chat": chat_events, "gemini": gemini_events}
    yield from of[dialect](reply)


def whole(dialect: Dialect, reply: Reply) -> Any:
    """Return the body of an answer that is not streamed."""
    if dialect == "code_assist":
        return {"response": gemini_whole(reply), "traceId": reply.id}
    of = {"anthropic": anthropic_whole, "responses": responses_whole, "chat": chat_whole, "gemini": gemini_whole}
    return of[dialect](reply)


def _typed(kind: str, **fields: Any) -> Event:
    return kind, {"type": kind, **fields}


# --- errors ---


@dataclass(frozen=True, kw_only=True)
class Refusal:
    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)


def refusal(dialect: Dialect, fail: Fail, *, login: bool, now_s: float | None = None) -> Refusal:
    """Return an error as the service sends it. `login`: the request came with a login instead of a key."""
    now_s = time.time() if now_s is None else now_s
    if dialect == "anthropic":
        return _anthropic_refusal(fail, login, now_s)
    if dialect in ("responses", "chat"):
        return _openai_refusal(fail, now_s)
    return _google_refusal(fail, login)


def error_event(dialect: Dialect, fail: Fail) -> Event:
    """Return the event by which a stream that began well reports an error."""
    body = refusal(dialect, fail, login=False).body
    if dialect == "anthropic":
        return "error", body
    if dialect == "responses":
        code = "server_is_overloaded" if fail.kind == "overloaded" else body["error"]["code"] or "server_error"
        error = {"code": code, "message": body["error"]["message"]}
        return _typed("response.failed", sequence_number=99, response={"status": "failed", "error": error})
    return None, body


def _anthropic_refusal(fail: Fail, login: bool, now_s: float) -> Refusal:
    limited = "This request would exceed your account's rate limit. Please try again later."
    credit = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."
    status, kind, message = {
        "usage_limit": (429, "rate_limit_error", limited),
        "rate_limited": (429, "rate_limit_error", "This request would exceed the rate limit of your organization."),
        "no_credit": (400, "invalid_request_error", credit),
        "server_error": (500, "api_error", "Internal server error"),
        "overloaded": (529, "overloaded_error", "Overloaded"),
        "bad_key": (401, "authentication_error", "Invalid bearer token" if login else "invalid x-api-key"),
        "bad_request": (400, "invalid_request_error", "messages: at least one message is required"),
    }[fail.kind]
    headers: dict[str, str] = {}
    if fail.kind == "usage_limit":
        headers = {
            "anthropic-ratelimit-unified-status": "rejected",
            "anthropic-ratelimit-unified-representative-claim": "five_hour",
            "anthropic-ratelimit-unified-overage-status": "rejected",
            "x-should-retry": "false",
        }
        if fail.wait_s is not None:
            at = str(math.ceil(now_s) + fail.wait_s)
            headers |= {"anthropic-ratelimit-unified-reset": at, "anthropic-ratelimit-unified-5h-reset": at}
    if fail.wait_s is not None and status == 429:
        headers["retry-after"] = str(fail.wait_s)
        if fail.kind == "rate_limited":
            at = datetime.fromtimestamp(now_s + fail.wait_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            headers |= {"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": at}
    error = {"type": kind, "message": message}
    body = {"type": "error", "error": error, "request_id": f"req_{next(_numbers):06}"}
    return Refusal(status=status, body=body, headers=headers)


def _openai_refusal(fail: Fail, now_s: float) -> Refusal:
    wait_s = fail.wait_s
    quota = "You exceeded your current quota, please check your plan and billing details."
    after = "" if wait_s is None else f" Please try again in {wait_s}s."
    status, kind, code, message = {
        "usage_limit": (429, "usage_limit_reached", None, "The usage limit has been reached"),
        "rate_limited": (429, "requests", "rate_limit_exceeded", f"Rate limit reached for requests.{after}"),
        "no_credit": (429, "insufficient_quota", "insufficient_quota", quota),
        "server_error": (500, "server_error", None, "The server had an error while processing your request"),
        "overloaded": (503, "server_error", "server_is_overloaded", "The server is currently overloaded"),
        "bad_key": (401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
        "bad_request": (400, "invalid_request_error", None, "Invalid value: 'x'."),
    }[fail.kind]
    error: dict[str, Any] = {"message": message, "type": kind, "param": None, "code": code}
    headers = {}
    if fail.kind == "usage_limit":
        error["plan_type"] = "pro"
        if wait_s is not None:
            error |= {"resets_at": math.ceil(now_s) + wait_s, "resets_in_seconds": wait_s}
    elif fail.kind == "rate_limited" and wait_s is not None:
        minutes, seconds = divmod(wait_s, 60)
        headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": f"{minutes}m{seconds}s"}
    return Refusal(status=status, body={"error": error}, headers=headers)


def _google_refusal(fail: Fail, login: bool) -> Refusal:
    unknown_key = "API key not valid. Please pass a valid API key."
    no_login = "Request had invalid authentication credentials."
    quota = "You exceeded your current quota, please check your plan and billing details."
    status, name, message = {
        "usage_limit": (429, "RESOURCE_EXHAUSTED", quota),
        "rate_limited": (429, "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota)."),
        "no_credit": (429, "RESOURCE_EXHAUSTED", "Your prepayment credits are depleted."),
        "server_error": (500, "INTERNAL", "An internal error has occurred."),
        "overloaded": (503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
        "bad_key": (401, "UNAUTHENTICATED", no_login) if login else (400, "INVALID_ARGUMENT", unknown_key),
        "bad_request": (400, "INVALID_ARGUMENT", "Please ensure that contents is not empty."),
    }[fail.kind]
    details: list[dict[str, Any]] = []
    if fail.kind == "usage_limit":
        violation = {
            "quotaMetric": "generativelanguage.googleapis.com/generate_content_free_tier_requests",
            "quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier",
            "quotaValue": "50",
        }
        details.append({"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]})
    if fail.wait_s is not None and status == 429:
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{fail.wait_s}s"})
    if fail.kind == "bad_key" and not login:
        details.append({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"})
    return Refusal(
        status=status, body={"error": {"code": status, "message": message, "status": name, "details": details}}
    )
