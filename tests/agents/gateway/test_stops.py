"""A budget, a limit or a refused key ends a run: the program is told to stop, and nothing more is forwarded."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest

from agents.gateway.gateway_rig import KEY, LOGIN, MOST_USD, LedgerMeter, RawService, Runs, response
from farro.agents.providers.port import ProviderTrouble, Usage
from farro.store.ledger import CallEnd
from model_server import Dialect, ModelServer
from model_server.client import DIALECTS, ask, key_header, prompt_model

ALL = pytest.mark.parametrize("dialect", DIALECTS)
STOP = {"anthropic": 402, "responses": 400, "chat": 403, "gemini": 400, "code_assist": 400}


def trouble_of(run) -> ProviderTrouble:  # type: ignore[no-untyped-def]
    trouble = run.admission.report().trouble
    assert trouble is not None
    return trouble


@ALL
def test_a_budget_stops_the_program_before_the_request_is_sent(
    runs: Runs, server: ModelServer, dialect: Dialect
) -> None:
    run = runs.start(server.base_url, budget_usd="0.51")
    assert run.ask(dialect, "SCENARIO: edit").status == 200
    stopped = [run.ask(dialect, "SCENARIO: edit", replies=["Well."]) for _ in range(3)]
    assert [answer.status for answer in stopped] == [STOP[dialect]] * 3
    assert b"farro stopped this run" in stopped[0].body
    assert {answer.headers["x-should-retry"] for answer in stopped} == {"false"}
    assert len(server.requests) == len(run.meter.calls) == 1
    assert len(run.meter.reserved) == 2  # after the first refusal the budget is not asked again
    report = run.admission.report()
    assert report.exceeded is not None
    assert (report.requests, report.trouble) == (1, None)


def test_what_an_answer_cost_is_counted_before_the_program_can_ask_again(runs: Runs, server: ModelServer) -> None:
    run = runs.start(server.base_url, budget_usd=str(MOST_USD * 2))  # two estimates would not fit beside an answer
    for dialect in DIALECTS:
        for streamed in (True, False):
            assert run.ask(dialect, "SCENARIO: ok", streamed=streamed).status == 200
            assert run.meter.calls[-1].end == "answered"


@ALL
def test_a_usage_limit_is_kept_with_its_reset_and_stops_the_program(
    runs: Runs, server: ModelServer, dialect: Dialect
) -> None:
    run = runs.start(server.base_url)
    stopped = [run.ask(dialect, "SCENARIO: usage-limit 7200") for _ in range(3)]
    assert [answer.status for answer in stopped] == [STOP[dialect]] * 3
    assert not any("retry-after" in answer.headers for answer in stopped)
    assert b"farro stopped this run" in stopped[0].body
    assert b"limit" not in stopped[0].body  # else some programs try again for a minute
    assert len(server.requests) == 1
    trouble = trouble_of(run)
    assert (trouble.kind, trouble.retryable, trouble.charged) == ("limited", True, False)
    if trouble.until is not None:
        assert 7190 < trouble.until.timestamp() - time.time() < 7205
    assert (trouble.until is None) == (dialect in ("gemini", "code_assist"))
    assert trouble.until is not None or trouble.retry_after_s == 7200
    assert run.meter.ends == ["not_charged"]
    assert [exchange.status for exchange in run.kept] == [429]
    assert run.admission.report().cost_usd == 0


@ALL
@pytest.mark.parametrize("seconds", [2, 90])
def test_a_rate_limit_says_how_long_to_wait(runs: Runs, server: ModelServer, dialect: Dialect, seconds: int) -> None:
    run = runs.start(server.base_url)
    assert run.ask(dialect, f"SCENARIO: rate-limit {seconds}").status == STOP[dialect]
    trouble = trouble_of(run)
    assert trouble.kind == "limited"
    wait_s = trouble.retry_after_s
    if wait_s is None:
        assert trouble.until is not None
        wait_s = (trouble.until - datetime.now(UTC)).total_seconds()
    assert wait_s == pytest.approx(seconds, abs=1.9)


@ALL
def test_a_limit_of_unknown_length_is_a_limit(runs: Runs, server: ModelServer, dialect: Dialect) -> None:
    run = runs.start(server.base_url)
    run.ask(dialect, "SCENARIO: usage-limit-unknown")
    trouble = trouble_of(run)
    assert (trouble.kind, trouble.until, trouble.retry_after_s) == ("limited", None, None)


@ALL
@pytest.mark.parametrize("scenario", ["bad-key", "no-credit"])
def test_a_refused_key_stops_the_program(runs: Runs, server: ModelServer, dialect: Dialect, scenario: str) -> None:
    run = runs.start(server.base_url)
    assert [run.ask(dialect, f"SCENARIO: {scenario}").status for _ in range(2)] == [STOP[dialect]] * 2
    assert len(server.requests) == 1
    assert (trouble_of(run).kind, trouble_of(run).retryable) == ("refused", False)


def test_a_login_that_cannot_begin_is_refused(runs: Runs) -> None:
    with RawService(response(b'{"error": {"message": "no"}}', status="401 Unauthorized")) as service:
        run = runs.start(service.base_url, login=LOGIN)
        answer = ask(
            run.admission.base_url, "/v1internal:loadCodeAssist", {}, key_header("code_assist", run.admission.token)
        )
        assert answer.status == 400
        assert trouble_of(run).kind == "refused"
        run.ask("code_assist", "SCENARIO: ok")
        assert len(service.requests) == 1


@ALL
@pytest.mark.parametrize("scenario", ["overloaded", "server-error"])
def test_an_overloaded_service_stops_one_request(
    runs: Runs, server: ModelServer, dialect: Dialect, scenario: str
) -> None:
    run = runs.start(server.base_url)
    assert run.ask(dialect, f"SCENARIO: {scenario}").status == STOP[dialect]
    assert (trouble_of(run).kind, trouble_of(run).retryable) == ("overloaded", True)
    assert run.ask(dialect, "SCENARIO: ok").status == 200
    assert run.admission.report().trouble is None
    assert run.meter.ends == ["failed", "answered"]


@ALL
def test_a_request_that_the_service_does_not_like_is_the_programs_affair(
    runs: Runs, server: ModelServer, dialect: Dialect
) -> None:
    run = runs.start(server.base_url)
    direct = prompt_model(server.base_url, dialect, "SCENARIO: bad-request", key=KEY)
    answer = run.ask(dialect, "SCENARIO: bad-request")
    assert (answer.status, answer.json["error"]) == (400, direct.json["error"])
    assert trouble_of(run).kind == "denied"
    assert run.ask(dialect, "SCENARIO: ok").status == 200


def test_a_prompt_that_is_moderated_does_not_refuse_the_account(runs: Runs) -> None:
    said = b'{"error": {"code": 403, "message": "Your input was flagged", "metadata": {"reasons": ["violence"]}}}'
    with RawService(response(said, status="403 Forbidden")) as service:
        run = runs.start(service.base_url)
        assert run.ask("chat", "Hello").body == said
    assert trouble_of(run).kind == "denied"


@ALL
def test_an_error_in_the_middle_of_a_stream_is_passed_on_and_noted(
    runs: Runs, server: ModelServer, dialect: Dialect
) -> None:
    run = runs.start(server.base_url)
    answer = run.ask(dialect, "SCENARIO: overloaded-in-stream")
    assert answer.status == 200
    assert b"overloaded" in answer.body
    assert trouble_of(run).kind == "overloaded"
    assert run.meter.ends == ["failed"]
    assert not run.kept[0].whole


def test_a_limit_in_the_middle_of_a_stream_ends_the_run(runs: Runs) -> None:
    error = {"type": "usage_limit_reached", "message": "The limit was reached", "resets_at": time.time() + 600}
    event = f"data: {json.dumps({'type': 'response.failed', 'response': {'error': error}})}\n\n"
    with RawService(response(event.encode(), kind="text/event-stream")) as service:
        run = runs.start(service.base_url)
        assert run.ask("responses", "Hello").body == event.encode()
        assert trouble_of(run).kind == "limited"
        assert trouble_of(run).until is not None
        assert run.ask("responses", "Hello").status == 400
        assert len(service.requests) == 1


def test_a_redirect_is_not_followed(runs: Runs, server: ModelServer) -> None:
    moved = response(b"", status="307 Temporary Redirect", Location=f"{server.base_url}/v1/messages?secret=1")
    with RawService(moved) as service:
        run = runs.start(service.base_url)
        answer = run.ask("anthropic", "SCENARIO: ok")
        assert answer.status == 402
        assert "location" not in answer.headers
    assert server.requests == []
    assert trouble_of(run).kind == "denied"
    assert f"redirect to {server.base_url.rpartition(':')[0]}," in str(trouble_of(run))


def test_a_service_out_of_reach_costs_nothing(runs: Runs) -> None:
    with RawService() as service:
        base_url = service.base_url
    run = runs.start(base_url)
    assert run.ask("chat", "Hello").status == 403
    assert (trouble_of(run).kind, trouble_of(run).retryable) == ("failed", True)
    assert base_url.removeprefix("http://") in str(trouble_of(run))
    assert run.meter.ends == ["not_charged"]


class FailingMeter(LedgerMeter):
    """A ledger whose disk is full."""

    fails_to_settle = False

    def reserve(self, model: str | None, prompt_bytes: int, max_output_tokens: int | None) -> str:
        if self.fails_to_settle:
            return super().reserve(model, prompt_bytes, max_output_tokens)
        raise OSError(28, "No space left on device")

    def settle(self, call_id: str, end: CallEnd, usage: Usage | None, model: str | None) -> None:
        raise OSError(28, "No space left on device")


def test_what_cannot_be_recorded_is_not_sent(runs: Runs, server: ModelServer, tmp_path) -> None:  # type: ignore[no-untyped-def]
    run = runs.start(server.base_url, meter=FailingMeter(tmp_path / "root"))
    assert [run.ask("chat", "SCENARIO: ok").status for _ in range(2)] == [403, 403]
    assert server.requests == []
    assert trouble_of(run).kind == "failed"
    assert "No space left on device" in str(trouble_of(run))


def test_a_run_whose_cost_cannot_be_recorded_ends(runs: Runs, server: ModelServer, tmp_path) -> None:  # type: ignore[no-untyped-def]
    meter = FailingMeter(tmp_path / "root")
    meter.fails_to_settle = True
    run = runs.start(server.base_url, meter=meter)
    assert run.ask("chat", "SCENARIO: ok").status == 200
    assert run.ask("chat", "SCENARIO: ok").status == 403
    assert len(server.requests) == 1
    assert run.meter.ends == [None]  # what was reserved counts
    assert run.admission.report().cost_usd is None
