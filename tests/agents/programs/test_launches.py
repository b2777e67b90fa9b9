"""How programs are started. launches.json has every word; FARRO_WRITE_LAUNCHES=1 writes it anew."""

from __future__ import annotations

import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agents.programs.transcripts import RUN
from farro.agents.programs.port import ProgramLaunch, ProgramRun
from farro.agents.programs.registry import BUILT_IN, find_program
from farro.errors import InputError
from farro.lazy_dataclass import replace

FILE = Path(__file__).parent / "launches.json"
TOKEN = "job-token-1"
SESSION = "5f0c3d0e-6f6a-4a57-9d0e-2b6d3a1c7e11"
MODEL = {"claude": "opus", "codex": "gpt-5", "gemini": "gemini-3-flash"}
OWN_KEYS = frozenset(
    ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "CURSOR_API_KEY", "AMP_API_KEY", "GOOGLE_API_KEY")
)


def run_of(program: str, **changes: Any) -> ProgramRun:
    return replace(RUN, model=MODEL.get(program, "other/lab"), **changes)


RUNS: dict[str, dict[str, Any]] = {
    "gateway": {},
    "new session": {"session_id": SESSION},
    "resumed": {"session_id": SESSION, "resume": True},
    "read-only": {"read_only": True},
    "budget": {"max_usd": Decimal("1.50")},
    "login": {"login": True},
    "own key": {"gateway": None, "variables": OWN_KEYS},
    "no key": {"gateway": None},
}


def launched(program: str, changes: dict[str, Any]) -> ProgramLaunch | str:
    try:
        return find_program(program).launch(run_of(program, **changes))
    except InputError as refused:
        return str(refused)


def as_json(launch: ProgramLaunch | str) -> Any:
    if isinstance(launch, str):
        return launch
    files = {path: content.decode() for path, content in launch.files.items()}
    return {"args": list(launch.args), "env": dict(launch.env), "files": files}


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    if os.environ.get("FARRO_WRITE_LAUNCHES"):
        made = {name: {run: as_json(launched(name, changes)) for run, changes in RUNS.items()} for name in BUILT_IN}
        FILE.write_text(json.dumps(made, indent=1) + "\n")
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("program", BUILT_IN)
def test_a_program_is_started_as_written_down(program: str, run: str, golden: dict[str, Any]) -> None:
    assert as_json(launched(program, RUNS[run])) == golden[program][run]


@pytest.mark.parametrize("program", BUILT_IN)
def test_the_token_is_on_no_command_line(program: str) -> None:
    for changes in RUNS.values():
        launch = launched(program, changes)
        assert isinstance(launch, str) or not any(TOKEN in word for word in launch.args)


@pytest.mark.parametrize("program", [name for name in BUILT_IN if find_program(name).dialects])
def test_a_program_with_a_gateway_gets_its_address_and_token(program: str) -> None:
    launch = launched(program, {})
    assert isinstance(launch, ProgramLaunch)
    words = json.dumps(as_json(launch))
    assert "http://127.0.0.1:8555" in words
    assert TOKEN in words


@pytest.mark.parametrize("program", ["cursor-agent", "amp"])
def test_a_program_without_dialects_refuses_a_gateway_and_says_what_to_set(program: str) -> None:
    message = launched(program, {})
    assert isinstance(message, str)
    assert "leave out api_key and login of its provider, set environment: [" in message


def test_codex_works_with_openai_api_key_alone() -> None:
    launch = launched("codex", {"gateway": None, "variables": frozenset({"OPENAI_API_KEY"})})
    assert isinstance(launch, ProgramLaunch)
    assert 'env_key="OPENAI_API_KEY"' in " ".join(launch.args)


def test_codex_is_continued_by_hand_with_the_service_under_whose_name_the_session_began() -> None:
    began = find_program("codex").launch(run_of("codex")).args
    assert 'model_provider="farro"' in began
    by_hand = find_program("codex").by_hand
    assert 'model_provider="farro"' in by_hand
    assert any(word.startswith("model_providers.farro=") and "OPENAI_API_KEY" in word for word in by_hand)


def test_codex_without_a_key_says_what_to_set() -> None:
    assert launched("codex", {"gateway": None}) == (
        'codex has no key: set api_key: "${OPENAI_API_KEY}" of its provider, and the variable OPENAI_API_KEY where '
        "workers are started"
    )


def test_codex_with_a_home_of_its_own_keeps_its_own_service() -> None:
    launch = launched("codex", {"gateway": None, "variables": frozenset({"CODEX_HOME"})})
    assert isinstance(launch, ProgramLaunch)
    assert "model_provider" not in " ".join(launch.args)


def test_gemini_uses_vertex_where_its_variable_is_set() -> None:
    launch = launched("gemini", {"gateway": None, "variables": frozenset({"GOOGLE_GENAI_USE_VERTEXAI"})})
    assert isinstance(launch, ProgramLaunch)
    assert b'"vertex-ai"' in launch.files[".gemini/settings.json"]


@pytest.mark.parametrize("program", ["opencode", "goose", "aider"])
@pytest.mark.parametrize(
    ("model", "service", "named"),
    [
        ("anthropic/claude-sonnet-5", "anthropic", "claude-sonnet-5"),
        ("openai/gpt-5", "openai", "gpt-5"),
        ("google/gemini-3-flash", "g", "gemini-3-flash"),
        ("qwen/qwen3-coder", "", "qwen/qwen3-coder"),
        ("local", "", "local"),
    ],
)
def test_the_name_of_a_model_selects_its_service(program: str, model: str, service: str, named: str) -> None:
    launch = find_program(program).launch(replace(RUN, model=model))
    words = json.dumps(as_json(launch))
    assert named in words
    assert service in words


@pytest.mark.parametrize("program", ["opencode", "goose", "aider"])
def test_a_program_of_several_services_without_a_model_says_what_to_set(program: str) -> None:
    with pytest.raises(InputError, match="can ask several services: set model of its provider"):
        find_program(program).launch(RUN)


def test_opencode_with_a_key_of_its_own_chooses_its_own_model() -> None:
    launch = find_program("opencode").launch(replace(RUN, gateway=None))
    assert "--model" not in launch.args


def test_claude_is_kept_from_instructions_outside_its_workspace() -> None:
    launch = find_program("claude").launch(RUN)
    left_out = json.loads(launch.files[".claude/farro.json"])["claudeMdExcludes"]
    assert "/srv/job/repository/AGENTS.md" in left_out  # it is in the prompt
    assert "/srv/job/CLAUDE.md" in left_out
    assert "/srv/job/repository/CLAUDE.md" not in left_out
