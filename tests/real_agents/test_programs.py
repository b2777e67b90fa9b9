"""The real coding agents, started as farro starts them, against the scripted model server.

claude, codex and gemini run in every form; opencode, goose and aider, which are slow, in the long one.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from agents.gateway.gateway_rig import KEY, LOGIN, MOST_USD, Runs, StartedRun
from farro.agents.gateway.gateway import Gateway
from farro.agents.programs.port import GatewayAddress, ReaderReport
from farro.agents.programs.registry import find_program
from model_server.scenarios import DONE
from model_server.server import ModelServer
from real_agents.programs import Workplace
from support import torture

SESSION = "5f0c3d0e-6f6a-4a57-9d0e-2b6d3a1c7e11"
USUAL = ("claude", "codex", "gemini")
MORE = ("opencode", "goose", "aider")
PROGRAMS = (*USUAL, *MORE) if torture() else USUAL
# These retry a limited account for minutes. The gateway answers them with a stop instead.
PATIENT = ("opencode", "aider")
KEEPING = tuple(name for name in PROGRAMS if name != "aider")  # programs that keep sessions


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ModelServer]:
    with ModelServer(within=[str(tmp_path)]) as models:
        yield models


@pytest.fixture
def place(tmp_path: Path, server: ModelServer) -> Workplace:
    return Workplace(folder=tmp_path / "place", server=server)


def new_session(name: str) -> dict[str, object]:
    return {"session_id": SESSION} if find_program(name).new_session == "chosen" else {}


def trouble(report: ReaderReport) -> str | None:
    return None if report.trouble is None else report.trouble.kind


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_edits_a_file_and_every_token_is_counted_once(name: str, place: Workplace) -> None:
    run = place.run(name, "SCENARIO: edit\n", **new_session(name))
    assert trouble(run.report) is None, run
    assert "def hello" in (place.repository / "src/hello.py").read_text()
    assert [Path(path).name for path in run.report.files] == ["hello.py"]
    assert run.progress
    if name != "aider":  # which rounds its counts, edits in its answer, and keeps no session
        assert run.report.usage == place.server.usage
        assert DONE["summary"] in (run.report.text or "")
        assert find_program(name).new_session == "chosen" or run.report.session_id


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_policy_is_not_given_twice(name: str, place: Workplace) -> None:
    place.run(name, "SCENARIO: prose\n", **new_session(name))
    assert place.server.model_requests
    assert not any(b"POLICY-OF-THE-ROOT" in request.body for request in place.server.requests)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in PATIENT])
def test_a_usage_limit_ends_the_run_at_once(name: str, place: Workplace) -> None:
    run = place.run(name, "SCENARIO: usage-limit\n", **new_session(name))
    assert trouble(run.report) == "limited"
    # gemini lets a model choose the model, and asks the chosen one although that failed; goose tries four times.
    assert len(run.requests) == {"gemini": 2, "goose": 4}.get(name, 1)


@pytest.mark.parametrize("name", ["claude", "codex"])
def test_the_limit_of_a_login_has_its_reset_time(name: str, place: Workplace) -> None:
    run = place.run(name, "SCENARIO: usage-limit 7200\n", login=True, **new_session(name))
    assert trouble(run.report) == "limited"
    assert run.report.trouble is not None
    assert run.report.trouble.until is not None
    left_s = run.report.trouble.until.timestamp() - run.requests[0].at_s
    assert 7195 <= left_s <= 7265  # codex leaves out the seconds, so that the whole minute must pass
    assert {request.credential for request in run.requests} == {place.token}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_bad_key_ends_the_run_at_once(name: str, place: Workplace) -> None:
    place.token = "bad-key"
    run = place.run(name, "SCENARIO: edit\n", **new_session(name))
    assert trouble(run.report) == "refused"
    assert len(run.requests) == (2 if name == "gemini" else 1)
    assert not (place.repository / "src/hello.py").exists()


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_empty_answer_is_no_answer(name: str, place: Workplace) -> None:
    run = place.run(name, "SCENARIO: empty\n", **new_session(name))
    assert trouble(run.report) == "failed"
    assert run.report.text is None


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in PATIENT])
def test_an_answer_that_breaks_off_is_no_answer(name: str, place: Workplace) -> None:
    run = place.run(name, "SCENARIO: cut\n", **new_session(name))
    assert trouble(run.report) == "cut"


@pytest.mark.parametrize("name", KEEPING)
def test_a_killed_session_goes_on_where_it_was(name: str, place: Workplace) -> None:
    program = find_program(name)
    asked = 3 if name == "gemini" else 2  # its first request chooses a model
    killed = place.run(name, "SCENARIO: half-edit\n", until=lambda: place.server.wait_for(asked), **new_session(name))
    assert trouble(killed.report) == "cut"
    assert (place.repository / "src/half.py").exists()
    session = killed.report.session_id or SESSION
    assert program.resumable(str(place.home), session, str(place.repository))
    before = place.server.usage
    resumed = place.run(name, "SCENARIO: prose\n", session_id=session, resume=True)
    assert trouble(resumed.report) is None, resumed
    assert b"half-edit" in resumed.requests[-1].body
    assert resumed.report.session_id in (session, None)
    if name == "goose":
        assert resumed.report.usage is None  # it counts the whole session
    elif resumed.report.usage is not None:
        assert resumed.report.usage.input_tokens == place.server.usage.input_tokens - before.input_tokens


@pytest.mark.parametrize("name", [name for name in KEEPING if find_program(name).new_session == "chosen"])
def test_an_id_that_no_session_has_begins_one(name: str, place: Workplace) -> None:
    program = find_program(name)
    assert not program.resumable(str(place.home), SESSION, str(place.repository))
    run = place.run(name, "SCENARIO: prose\n", session_id=SESSION)
    assert trouble(run.report) is None
    assert program.resumable(str(place.home), SESSION, str(place.repository))


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name in ("claude", "gemini")])
def test_a_read_only_program_has_no_tool_for_writing(name: str, place: Workplace) -> None:
    run = place.run(name, "SCENARIO: edit\n", read_only=True, **new_session(name))
    offered = {tool for request in run.requests for tool in request.tools}
    assert offered
    assert not offered & {"Edit", "Write", "NotebookEdit", "write_file", "replace"}


def test_claude_keeps_to_its_budget(place: Workplace) -> None:
    run = place.run("claude", "SCENARIO: several-turns\n", max_usd=Decimal("0.001"), **new_session("claude"))
    assert trouble(run.report) == "denied"
    assert len(run.requests) == 1


# --- through the gateway ---

WITH_LOGIN = pytest.mark.parametrize("login", [False, True], ids=["key", "login"])


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    gateway = Gateway()
    opened = Runs(gateway, tmp_path)
    yield opened
    opened.close()
    gateway.close()


def through(run: StartedRun, *, login: bool = False) -> dict[str, object]:
    """Return the changes to a run that lead its requests through the gateway."""
    address = GatewayAddress(base_url=run.admission.base_url, token=run.admission.token)
    return {"gateway": address, "login": login}


@pytest.mark.parametrize("name", USUAL)
@WITH_LOGIN
def test_it_edits_through_the_gateway_which_counts_every_token(
    name: str, login: bool, place: Workplace, runs: Runs
) -> None:
    passed = runs.start(place.server.base_url, **({"login": LOGIN} if login else {"key": KEY}))
    run = place.run(name, "SCENARIO: edit\n", **through(passed, login=login), **new_session(name))
    assert trouble(run.report) is None, run
    assert "def hello" in (place.repository / "src/hello.py").read_text()
    assert len(run.requests) == (3 if name == "gemini" else 2)  # gemini lets a model choose the model
    assert {request.credential for request in place.server.requests} == {LOGIN if login else KEY}
    assert not any(passed.admission.token in str(request.headers) for request in place.server.requests)
    report = passed.admission.report()
    assert (report.requests, report.usage, report.trouble) == (len(run.requests), place.server.usage, None)
    assert passed.meter.ends == ["answered"] * len(run.requests)


@pytest.mark.torture
@pytest.mark.parametrize("name", MORE)
def test_more_programs_edit_through_the_gateway(name: str, place: Workplace, runs: Runs) -> None:
    passed = runs.start(place.server.base_url)
    run = place.run(name, "SCENARIO: edit\n", **through(passed), **new_session(name))
    assert "def hello" in (place.repository / "src/hello.py").read_text(), run
    assert {request.credential for request in place.server.model_requests} == {KEY}
    assert passed.admission.report().usage == place.server.usage


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_usage_limit_is_one_request_through_the_gateway(name: str, place: Workplace, runs: Runs) -> None:
    passed = runs.start(place.server.base_url)
    run = place.run(name, "SCENARIO: usage-limit 7200\n", **through(passed), **new_session(name))
    assert len(run.requests) == 1
    met = passed.admission.report().trouble
    assert met is not None
    assert met.kind == "limited"
    assert met.until is not None or met.retry_after_s == 7200
    if name in USUAL:
        assert trouble(run.report) is not None


@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
def test_the_limit_of_a_login_is_one_request_through_the_gateway(name: str, place: Workplace, runs: Runs) -> None:
    passed = runs.start(place.server.base_url, login=LOGIN)
    run = place.run(name, "SCENARIO: usage-limit 7200\n", **through(passed, login=True), **new_session(name))
    assert len(run.requests) == 1
    met = passed.admission.report().trouble
    assert met is not None
    assert met.kind == "limited"


@pytest.mark.parametrize("name", KEEPING)  # aider asks once only
def test_a_budget_ends_the_run_in_the_middle(name: str, place: Workplace, runs: Runs) -> None:
    passed = runs.start(place.server.base_url, budget_usd=str(MOST_USD))  # the first answer leaves less than that
    run = place.run(name, "SCENARIO: several-turns\n", **through(passed), **new_session(name))
    assert len(run.requests) == 1
    assert passed.admission.report().exceeded is not None
    if name in USUAL:
        assert trouble(run.report) is not None
