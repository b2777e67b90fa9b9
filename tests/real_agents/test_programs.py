"""The real coding agents, started as farro starts them, against the scripted model server.

claude, codex and gemini run in every form; opencode, goose and aider, which are slow, in the long one.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from farro.agents.programs.port import ReaderReport
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
