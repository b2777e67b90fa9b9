"""The contract of the Provider port. The fixture `stage` yields a ProviderStage with your provider."""

from __future__ import annotations

import ctypes
import io
import threading
import traceback
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import pytest

from farro.agents.providers.port import Answer, ChatMessage, Provider, ProviderTrouble, Request, Usage

KEY = "sk-canary-5f3c9a7d21"  # the secret of the provider under test: no error may show it
WORDS = "the number is forty-two, and this is why"  # the text of every answer
BEHAVIOURS = ("answers", "is_cut_short", "is_rate_limited", "fails", "refuses", "talks_rubbish", "breaks_off", "hangs")
Trouble = tuple[str, bool]  # its kind, and whether a retry may help


class ProviderStage(Protocol):
    """A provider under test: how a test scripts it, and what it can observe."""

    tries: int
    keeps_locals: bool  # whether the variables of its frames hide the key, too
    usage: Usage | None  # of an answer
    behaviours: Collection[str]  # those of BEHAVIOURS that it can show; the tests of others pass
    troubles: Mapping[str, Trouble]  # the error of each of them

    def provider(self, *behaviours: str) -> Provider:
        """Return a provider with one behaviour for each call; the last one repeats."""

    def request(self, number: int, *, timeout_s: float = 60.0, **more: Any) -> Request:
        """Return a call of one attempt, by the number of the call."""

    def began(self) -> None:
        """Return when a call is running."""

    def made(self) -> int | None:
        """Count the requests on the wire, or the processes started. None: they cannot be counted."""

    def ended(self) -> None:
        """Return when no part of an ended call is running."""

    def close(self) -> None: ...


def request(number: int, *, timeout_s: float = 60.0, **more: Any) -> Request:
    """A call of one attempt, by its number."""
    return Request(
        key=f"job-1/1/step/{number}",
        system="You count.",
        messages=(ChatMessage(author="user", text="What is the number?"),),
        model=None,
        max_output_tokens=500,
        timeout_s=timeout_s,
        **more,
    )


def trouble_of(stage: ProviderStage, provider: Provider, number: int, *, timeout_s: float = 60.0) -> ProviderTrouble:
    with pytest.raises(ProviderTrouble) as raised:
        provider.answer(stage.request(number, timeout_s=timeout_s))
    return raised.value


def test_an_answer_has_its_text_and_usage(stage: ProviderStage) -> None:
    answer = stage.provider("answers").answer(stage.request(1))
    assert (answer.text, answer.whole) == (WORDS, True)
    assert answer.usage == stage.usage


@pytest.mark.parametrize("behaviour", ["is_cut_short"])
def test_an_answer_that_was_cut_short_says_so(stage: ProviderStage, behaviour: str) -> None:
    if behaviour not in stage.behaviours:
        return
    assert not stage.provider(behaviour).answer(stage.request(1)).whole


def test_an_answer_can_be_streamed(stage: ProviderStage) -> None:
    partial = io.BytesIO()
    answer = stage.provider("answers").answer(stage.request(1, partial=partial))
    assert answer.text in partial.getvalue().decode() or partial.getvalue() == b""  # it does not stream


def test_an_error_of_a_stream_reader_does_not_spoil_the_answer(stage: ProviderStage) -> None:
    closed = io.BytesIO()
    closed.close()
    assert stage.provider("answers").answer(stage.request(1, partial=closed)).text == WORDS


@pytest.mark.parametrize("behaviour", [name for name in BEHAVIOURS if name != "hangs"])
def test_one_answer_is_one_request(stage: ProviderStage, behaviour: str) -> None:
    if behaviour not in stage.behaviours:
        return
    provider = stage.provider(behaviour)
    for number in (1, 2):
        if behaviour == "is_cut_short" or behaviour == "answers":
            provider.answer(stage.request(number))
        else:
            trouble_of(stage, provider, number)
        assert stage.made() in (number, None)


@pytest.mark.parametrize("behaviour", ["is_rate_limited", "fails", "refuses", "talks_rubbish", "breaks_off"])
def test_errors_say_whether_a_retry_may_help(stage: ProviderStage, behaviour: str) -> None:
    if behaviour not in stage.behaviours:
        return
    trouble = trouble_of(stage, stage.provider(behaviour), 1)
    assert (trouble.kind, trouble.retryable) == stage.troubles[behaviour]
    assert trouble.retry_after_s == (7.0 if behaviour == "is_rate_limited" else None)


@pytest.mark.parametrize("behaviour", ["is_rate_limited"])
def test_a_rejected_request_costs_nothing(stage: ProviderStage, behaviour: str) -> None:
    if behaviour not in stage.behaviours:
        return
    provider = stage.provider(behaviour, "refuses")
    assert [trouble_of(stage, provider, number).charged for number in (1, 2)] == [False, False]


def test_a_provider_answers_again_after_an_error(stage: ProviderStage) -> None:
    provider = stage.provider("fails", "breaks_off", "talks_rubbish", "answers")
    for number in (1, 2, 3):
        trouble_of(stage, provider, number)
    assert provider.answer(stage.request(4)).text == WORDS


def test_a_hanging_provider_times_out(stage: ProviderStage) -> None:
    provider = stage.provider("answers", "hangs")
    provider.answer(stage.request(1))  # the preparations of the first call are done now
    trouble = trouble_of(stage, provider, 2, timeout_s=2)
    assert (trouble.kind, trouble.retryable) == stage.troubles["hangs"]
    stage.ended()


class Ended(BaseException):
    """Raised as execution.functions raises it in a thread whose step has ended."""


def test_a_cancelled_call_ends_its_request(stage: ProviderStage) -> None:
    provider = stage.provider("hangs")
    come: list[BaseException | Answer] = []

    def work() -> None:
        try:
            come.append(provider.answer(stage.request(1, timeout_s=3600)))
        except BaseException as error:
            come.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    stage.began()
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Ended))
    thread.join(60)
    assert [type(one) for one in come] == [Ended]
    stage.ended()


@pytest.mark.parametrize("behaviour", [name for name in BEHAVIOURS if name not in ("answers", "is_cut_short")])
def test_no_error_shows_the_key(stage: ProviderStage, behaviour: str) -> None:
    if behaviour not in stage.behaviours:
        return
    trouble = trouble_of(stage, stage.provider(behaviour), 1, timeout_s=0.5 if behaviour == "hangs" else 60.0)
    told = "".join(traceback.TracebackException.from_exception(trouble, capture_locals=stage.keeps_locals).format())
    assert KEY not in told
    assert KEY not in repr(vars(trouble))
    assert trouble.__cause__ is None  # the exception of a library contains the request, which contains the key
    assert trouble.__context__ is None or KEY not in repr(vars(trouble.__context__))


def test_calls_from_many_threads_each_get_their_answer(stage: ProviderStage) -> None:
    provider = stage.provider("answers")
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda number: provider.answer(stage.request(number)), range(1, 25)))
    assert {answer.text for answer in answers} == {WORDS}
    assert stage.made() in (24, None)


def test_a_closed_provider_may_be_closed_again(stage: ProviderStage) -> None:
    provider = stage.provider("answers")
    provider.close()
    provider.answer(stage.request(1))
    provider.close()
    provider.close()


def test_the_number_of_tries_is_as_pinned(stage: ProviderStage) -> None:
    assert stage.provider("answers").tries == stage.tries
