"""Check what openai, google and openrouter send, and how every kind of reply is handled.

tests/contracts/test_provider.py checks what all providers guarantee.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from agents.providers.conftest import Open
from contracts.providers import MODELS
from fake_providers import (
    FakeProvider,
    ReceivedRequest,
    answers,
    drips,
    ends_early,
    floods,
    hangs_in_the_middle,
    hangs_up,
    is_cut,
    raw,
    says,
)
from farro.agents.providers.port import ChatMessage, Provider, ProviderTrouble
from farro.agents.providers.refusals import retry_after_s
from farro.agents.providers.registry import make_provider
from farro.config.settings import ProviderSettings, Secret
from farro.testing.provider import KEY, request

KINDS = list(MODELS)
WAYS = [pytest.param(kind, stream, id=f"{kind}-{stream}") for kind in KINDS for stream in (True, False)]


def trouble_of(provider: Provider, **more: Any) -> ProviderTrouble:
    with pytest.raises(ProviderTrouble) as raised:
        provider.answer(request(1, **more))
    return raised.value


def texts(asked: ReceivedRequest) -> list[tuple[str, str]]:
    """Return the conversation as it was sent: pairs of author and text."""
    if "contents" in asked.body:
        said = [(each["role"], each["parts"][0]["text"]) for each in asked.body["contents"]]
        return [("system", asked.body["systemInstruction"]["parts"][0]["text"]), *said]
    return [(each["role"], each["content"]) for each in asked.body["messages"]]


@pytest.mark.parametrize(("kind", "stream"), WAYS)
def test_policy_conversation_and_limit_are_sent(talk: Open, kind: str, stream: bool) -> None:
    provider, server = talk(kind, says(), stream=stream)
    conversation = (
        ChatMessage(author="user", text="first"),
        ChatMessage(author="assistant", text="second"),
        ChatMessage(author="user", text="third, äöü \U0001f33e"),
    )
    provider.answer(replace(request(1), messages=conversation))
    (asked,) = server.asked
    whom = "model" if kind == "google" else "assistant"
    assert texts(asked) == [
        ("system", "You count."),
        ("user", "first"),
        (whom, "second"),
        ("user", "third, äöü \U0001f33e"),
    ]
    sent = json.dumps(asked.body)
    assert "500" in sent  # max_output_tokens, under whatever name
    assert "temperature" not in sent
    assert MODELS[kind] in asked.line + sent
    assert asked.streamed is stream
    assert asked.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("kind", KINDS)
def test_the_key_is_sent_in_a_header_and_nowhere_else(talk: Open, kind: str) -> None:
    provider, server = talk(kind, says())
    provider.answer(request(1))
    (asked,) = server.asked
    held = {name for name, value in asked.headers.items() if KEY in value}
    assert held == {"x-goog-api-key" if kind == "google" else "authorization"}
    assert KEY not in asked.line + json.dumps(asked.body)


@pytest.mark.parametrize("kind", KINDS)
def test_the_requests_model_overrides_the_providers(talk: Open, kind: str) -> None:
    provider, server = talk(kind, says())
    provider.answer(replace(request(1), model="other/one"))
    assert "other/one" in server.asked[0].line + json.dumps(server.asked[0].body)


@pytest.mark.parametrize(("kind", "stream"), WAYS)
def test_the_model_that_answered_is_reported(talk: Open, kind: str, stream: bool) -> None:
    provider, _ = talk(kind, says(), stream=stream)
    assert provider.answer(request(1)).model == "model-that-answered"


@pytest.mark.parametrize(("kind", "stream"), WAYS)
def test_unreported_tokens_are_unknown_and_not_zero(talk: Open, kind: str, stream: bool) -> None:
    provider, _ = talk(kind, says(usage=False), stream=stream)
    assert provider.answer(request(1)).usage is None


@pytest.mark.parametrize("stream", [True, False])
def test_openrouter_reports_the_cost(talk: Open, stream: bool) -> None:
    provider, server = talk("openrouter", says(), stream=stream)
    assert provider.answer(request(1)).cost_usd == Decimal("0.0042")
    assert server.asked[0].body["usage"] == {"include": True}


@pytest.mark.parametrize("kind", KINDS)
def test_streamed_text_can_be_read_while_the_answer_still_comes(talk: Open, kind: str) -> None:
    provider, _ = talk(kind, hangs_in_the_middle)
    partial = io.BytesIO()
    assert trouble_of(provider, timeout_s=2, partial=partial).kind == "timed_out"
    assert partial.getvalue() == b"fort"


@pytest.mark.parametrize(("kind", "stream"), WAYS)
def test_a_filtered_answer_is_a_refusal_with_its_tokens(talk: Open, kind: str, stream: bool) -> None:
    provider, _ = talk(kind, says(finish="content_filter"), stream=stream)
    trouble = trouble_of(provider)
    assert (trouble.kind, trouble.retryable, trouble.charged) == ("denied", False, True)
    assert trouble.usage is not None
    assert trouble.usage.input_tokens == 120


def test_a_model_that_declines_is_a_refusal_in_its_words(talk: Open) -> None:
    message = {"role": "assistant", "content": None, "refusal": "I would rather not."}
    body = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    provider, _ = talk("openai", raw(200, json.dumps(body).encode()), stream=False)
    trouble = trouble_of(provider)
    assert (trouble.kind, trouble.retryable) == ("denied", False)
    assert "I would rather not." in str(trouble)


@pytest.mark.parametrize(("kind", "stream"), WAYS)
@pytest.mark.parametrize("status", [408, 409, 500, 502, 503, 504, 529])
def test_a_server_error_may_be_retried(talk: Open, kind: str, stream: bool, status: int) -> None:
    provider, server = talk(kind, answers(status, Retry_After="3"), stream=stream)
    trouble = trouble_of(provider)
    assert (trouble.kind, trouble.retryable, trouble.retry_after_s) == ("overloaded", True, 3.0)
    assert len(server.asked) == 1


@pytest.mark.parametrize(("kind", "stream"), WAYS)
@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
def test_a_refused_request_is_not_retried(talk: Open, kind: str, stream: bool, status: int) -> None:
    provider, server = talk(kind, answers(status, "because"), stream=stream)
    trouble = trouble_of(provider)
    about_the_account = status in (401, 402) or (status == 403 and kind != "openrouter")
    wanted = "refused" if about_the_account else "denied"
    assert (trouble.kind, trouble.retryable, trouble.charged) == (wanted, False, False)
    assert "because" in str(trouble)
    assert len(server.asked) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_key_is_reported_by_its_variable_and_a_wrong_model_by_its_name(talk: Open, kind: str) -> None:
    provider, _ = talk(kind, answers(401), answers(404))
    assert "check the variable CANARY" in str(trouble_of(provider))
    assert f"there is no model {MODELS[kind]}" in str(trouble_of(provider))


def test_google_calls_a_wrong_key_a_bad_request(talk: Open) -> None:
    said = {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT"}
    reason = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
    provider, _ = talk("google", raw(400, json.dumps({"error": {**said, "details": [reason]}}).encode()))
    trouble = trouble_of(provider)
    assert trouble.kind == "refused"
    assert "check the variable CANARY" in str(trouble)


def test_google_puts_the_wait_into_the_body(talk: Open) -> None:
    said = {"code": 429, "message": "Quota.", "status": "RESOURCE_EXHAUSTED"}
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37s"}
    provider, _ = talk("google", raw(429, json.dumps({"error": {**said, "details": [info]}}).encode()))
    trouble = trouble_of(provider)
    assert (trouble.kind, trouble.retry_after_s) == ("limited", 37.0)


def test_openai_puts_the_reset_of_a_usage_limit_into_the_body(talk: Open) -> None:
    said = {"message": "The usage limit has been reached", "type": "usage_limit_reached", "resets_in_seconds": 3600}
    provider, _ = talk("openai", raw(429, json.dumps({"error": said}).encode()))
    trouble = trouble_of(provider)
    assert (trouble.kind, trouble.retry_after_s) == ("limited", 3600.0)


@pytest.mark.parametrize("stream", [True, False])
def test_an_account_without_credit_is_not_retried(talk: Open, stream: bool) -> None:
    provider, _ = talk("openai", answers(429, "You exceeded your quota", "insufficient_quota"), stream=stream)
    trouble = trouble_of(provider)
    assert (trouble.kind, trouble.retryable, trouble.charged) == ("refused", False, False)


@pytest.mark.parametrize("stream", [True, False])
def test_openrouter_may_put_an_error_into_a_good_reply(talk: Open, stream: bool) -> None:
    error = {"error": {"code": 502, "message": "upstream is away", "metadata": {}}, "choices": None}
    event = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "provider": "S", **error}
    if stream:
        reply = raw(200, b"data: " + json.dumps(event).encode() + b"\n\n", Content_Type="text/event-stream")
    else:
        reply = raw(200, json.dumps(error).encode())
    provider, server = talk("openrouter", reply, stream=stream)
    trouble = trouble_of(provider)
    assert (trouble.kind, trouble.retryable) == ("overloaded", True)
    assert len(server.asked) == 1


def test_an_impossible_openrouter_model_is_reported_before_anything_is_sent(talk: Open) -> None:
    provider, server = talk("openrouter", says(), model="gpt-x")
    trouble = trouble_of(provider)
    assert (trouble.kind, trouble.retryable, trouble.charged) == ("denied", False, False)
    assert "openai/gpt-x" in str(trouble)
    assert server.asked == []


@pytest.mark.parametrize(("kind", "stream"), WAYS)
def test_a_redirect_is_not_followed(talk: Open, kind: str, stream: bool) -> None:
    elsewhere = FakeProvider(kind, says())
    try:
        provider, server = talk(kind, raw(307, b"", Location=f"{elsewhere.base_url}/x?y"), stream=stream)
        trouble = trouble_of(provider)
        assert (trouble.kind, trouble.retryable, trouble.charged) == ("denied", False, False)
        assert "base_url" in str(trouble)
        assert (len(server.asked), elsewhere.connections) == (1, 0)
    finally:
        elsewhere.close()


@pytest.mark.parametrize(("kind", "stream"), WAYS)
@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(raw(200, b"<html>welcome to the hotel"), id="not json"),
        pytest.param(raw(200, b"<html>", Content_Type="text/html"), id="html"),
        pytest.param(raw(200, b""), id="nothing"),
        pytest.param(raw(200, b"\xff\xfe\x00"), id="bytes"),
        pytest.param(raw(200, b'{"choices": "no"}'), id="another shape"),
        pytest.param(raw(200, b"[]"), id="a list"),
        pytest.param(raw(200, b"data: {nonsense\n\n", Content_Type="text/event-stream"), id="a bad event"),
        pytest.param(raw(200, b"\x1f\x8b\x08", Content_Encoding="gzip"), id="compressed"),
        pytest.param(says(""), id="empty"),
    ],
)
def test_garbage_is_no_answer(talk: Open, kind: str, stream: bool, reply: Any) -> None:
    provider, server = talk(kind, reply, stream=stream)
    trouble = trouble_of(provider)
    assert trouble.kind in ("failed", "cut")  # cut: a stream that never says that it ended
    assert (trouble.retryable, trouble.charged) == (True, True)
    assert len(server.asked) == 1


@pytest.mark.parametrize(("kind", "stream"), WAYS)
@pytest.mark.parametrize("reply", [is_cut, hangs_up])
def test_a_cut_connection_cuts_the_answer(talk: Open, kind: str, stream: bool, reply: Any) -> None:
    provider, server = talk(kind, reply, stream=stream)
    trouble = trouble_of(provider)
    assert (trouble.kind, trouble.retryable, trouble.charged) == ("cut", True, True)
    assert len(server.asked) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_ends_early_is_no_answer(talk: Open, kind: str) -> None:
    provider, _ = talk(kind, ends_early)
    trouble = trouble_of(provider)
    assert (trouble.kind, trouble.retryable) == ("cut", True)


@pytest.mark.parametrize(("kind", "stream"), WAYS)
def test_a_slow_stream_does_not_outlast_the_timeout_of_the_call(talk: Open, kind: str, stream: bool) -> None:
    provider, server = talk(kind, drips, stream=stream)
    assert trouble_of(provider, timeout_s=2).kind == "timed_out"
    assert server.left.wait(60)


@pytest.mark.parametrize(("kind", "stream"), WAYS)
def test_an_endless_reply_is_aborted_before_it_fills_the_memory(talk: Open, kind: str, stream: bool) -> None:
    provider, server = talk(kind, floods, stream=stream)
    trouble = trouble_of(provider)
    assert (trouble.kind, trouble.retryable) == ("failed", True)
    assert server.left.wait(60)


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_connection_costs_nothing(talk: Open, kind: str) -> None:
    provider, server = talk(kind, says())
    server.close()
    trouble = trouble_of(provider)
    assert (trouble.kind, trouble.retryable, trouble.charged) == ("failed", True, False)
    assert "Connection refused" in str(trouble)


def test_the_reason_is_reported_for_a_host_with_two_addresses(talk: Open) -> None:
    provider, server = talk("openai", says())
    server.close()
    provider, _ = talk("openai", says(), base_url=f"http://localhost:{server.port}/v1")
    assert "Connection refused" in str(trouble_of(provider))


@pytest.mark.parametrize("kind", KINDS)
def test_no_test_reaches_beyond_this_machine(talk: Open, kind: str) -> None:
    provider, _ = talk(kind, says(), base_url="http://192.0.2.1")
    assert "A test tried to use socket.socket.connect() with host" in str(trouble_of(provider))


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_is_reused_by_the_next_call(talk: Open, kind: str) -> None:
    provider, server = talk(kind, says())
    for number in (1, 2, 3):
        provider.answer(request(number))
    assert (len(server.asked), server.connections) == (3, 1)


@pytest.mark.parametrize(
    ("kind", "variable"),
    [("openai", "OPENAI_API_KEY"), ("google", "GOOGLE_API_KEY"), ("openrouter", "OPENROUTER_API_KEY")],
)
def test_a_missing_key_is_reported_by_its_variable(kind: str, variable: str) -> None:
    provider = make_provider("p", ProviderSettings(kind=kind, model=MODELS[kind]), root="/", environ={})
    trouble = trouble_of(provider)
    assert (trouble.kind, trouble.retryable, trouble.charged) == ("failed", False, False)
    assert variable in str(trouble)
    named = ProviderSettings(kind=kind, model=MODELS[kind], api_key=Secret("MINE"))
    for environ in ({variable: "x"}, {"MINE": ""}, {"MINE": "sk-a\nb"}, {"MINE": "sk-ä"}, {"MINE": "sk a"}):
        trouble = trouble_of(make_provider("p", named, root="/", environ=environ))
        assert (trouble.kind, trouble.charged) == ("failed", False)
        assert "the variable MINE" in str(trouble)
        assert "sk" not in str(trouble)


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_in_the_environment_is_not_sent_to_another_address(kind: str) -> None:
    server = FakeProvider(kind, says())
    usual = dict.fromkeys(("OPENAI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"), KEY)
    settings = ProviderSettings(kind=kind, model=MODELS[kind], base_url=server.base_url)
    provider = make_provider("p", settings, root="/", environ=usual)
    try:
        provider.answer(request(1))
        assert KEY.encode() not in server.asked[0].raw
    finally:
        provider.close()
        server.close()


def test_a_call_without_a_model_fails_before_it_is_made() -> None:
    provider = make_provider("p", ProviderSettings(kind="openai", api_key=Secret("K")), root="/", environ={})
    assert "providers.p.model" in str(trouble_of(provider))


NOW = datetime(2026, 11, 16, 6, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Mon, 16 Nov 2026 06:01:30 GMT"}, 90.0),
        ({"retry-after": "Mon, 16 Nov 2026 05:00:00 GMT"}, 0.0),
        ({"retry-after": "Mon, 16 Nov 2026 06:00:10 -0000"}, 10.0),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "later"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Fri, 31 Dec 99999999999 23:59:59 GMT"}, None),
    ],
)
def test_retry_after_is_read_in_every_form(headers: dict[str, str], wait_s: float | None) -> None:
    assert retry_after_s(headers, NOW) == wait_s


def test_a_retry_after_date_is_compared_with_now() -> None:
    there = (datetime.now(UTC) + timedelta(hours=1)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    wait_s = retry_after_s({"retry-after": there})
    assert wait_s is not None
    assert 3000 < wait_s <= 3600
