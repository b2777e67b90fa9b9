"""A session can be resumed when the program would find its files; ids that could be paths or options are dropped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agents.programs.transcripts import RUN
from farro.agents.programs.registry import BUILT_IN, find_program
from farro.agents.programs.session_files import is_session_id
from farro.agents.providers.port import Usage
from farro.lazy_dataclass import replace

SESSION = "5f0c3d0e-6f6a-4a57-9d0e-2b6d3a1c7e11"


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return a home in which every program has left the session."""
    write(tmp_path / f".claude/projects/-srv-job-repository/{SESSION}.jsonl")
    write(tmp_path / f".codex/sessions/2026/11/19/rollout-2026-11-19T06-00-00-{SESSION}.jsonl")
    write(tmp_path / ".gemini/projects.json", json.dumps({"projects": {"/srv/job/repository": "repository"}}))
    chat = tmp_path / ".gemini/tmp/repository/chats/session-2026-11-19T06-00-5f0c3d0e.jsonl"
    write(chat, f'{{"sessionId":"{SESSION}"}}\n{{"type":"gemini","content":"OK"}}\n')
    write(tmp_path / ".local/share/opencode/opencode.db", "\0")
    write(tmp_path / ".local/share/opencode/opencode.db-wal", f"\0\0{SESSION}\0")
    write(tmp_path / ".local/share/goose/sessions/sessions.db", f"\0{SESSION}\0")
    write(tmp_path / f".cursor/chats/1a2b/{SESSION}/store.db")
    return tmp_path


FOUND = [name for name in BUILT_IN if name not in ("aider", "amp", "generic")]


@pytest.mark.parametrize("program", FOUND)
def test_a_kept_session_can_be_resumed(program: str, kept: Path) -> None:
    assert find_program(program).resumable(str(kept), SESSION, "/srv/job/repository")


@pytest.mark.parametrize("program", FOUND)
def test_another_session_cannot(program: str, kept: Path, tmp_path: Path) -> None:
    other = "00000000-6f6a-4a57-9d0e-2b6d3a1c7e11"
    assert not find_program(program).resumable(str(kept), other, "/srv/job/repository")
    assert not find_program(program).resumable(str(tmp_path / "nothing"), SESSION, "/srv/job/repository")


def test_gemini_finds_the_sessions_of_the_same_folder_only(kept: Path) -> None:
    assert not find_program("gemini").resumable(str(kept), SESSION, "/srv/job/elsewhere")


def test_gemini_finds_no_session_without_an_answer(kept: Path) -> None:
    write(
        kept / ".gemini/tmp/repository/chats/session-2026-11-19T06-00-5f0c3d0e.jsonl", f'{{"sessionId":"{SESSION}"}}\n'
    )
    assert not find_program("gemini").resumable(str(kept), SESSION, "/srv/job/repository")


def test_gemini_compares_the_whole_id(kept: Path) -> None:
    assert not find_program("gemini").resumable(str(kept), SESSION[:-1] + "2", "/srv/job/repository")


@pytest.mark.parametrize("program", ["aider", "generic"])
def test_a_program_without_sessions_resumes_none(program: str, kept: Path) -> None:
    assert not find_program(program).resumable(str(kept), SESSION, "/srv/job/repository")


def test_amp_keeps_its_threads_itself(tmp_path: Path) -> None:
    assert find_program("amp").resumable(str(tmp_path), "T-5f0c3d0e", "/srv/job/repository")


@pytest.mark.parametrize("text", ["", "-c", "--resume", "../up", "a/b", "a b", "a" * 200, "a\n"])
def test_what_could_be_a_path_or_an_option_is_no_session_id(text: str) -> None:
    assert not is_session_id(text)


def test_a_reader_keeps_no_session_id_that_could_be_an_option() -> None:
    reader = find_program("codex").reader(RUN, print)
    reader.feed(b'{"type": "thread.started", "thread_id": "--dangerously-bypass-approvals-and-sandbox"}\n')
    assert reader.session_id is None


def test_a_session_id_is_known_as_soon_as_it_is_written() -> None:
    reader = find_program("claude").reader(RUN, lambda line: None)
    reader.feed(b'{"type": "system", "subtype": "init", "session_id": "%s"}\n' % SESSION.encode())
    assert reader.session_id == SESSION


# --- tokens of a resumed session of codex ---


def tokens(count: int) -> str:
    usage = {"input_tokens": count, "cached_input_tokens": count // 2, "output_tokens": count // 10}
    payload = {"type": "token_count", "info": {"total_token_usage": usage}}
    return json.dumps({"type": "event_msg", "payload": payload}) + "\n"


def resumed_codex(home: Path, *events: str) -> Usage | None:
    run = replace(RUN, home=str(home), session_id=SESSION, resume=True)
    reader = find_program("codex").reader(run, lambda line: None)
    reader.feed(b'{"type": "thread.started", "thread_id": "%s"}\n' % SESSION.encode())
    for event in events:
        reader.feed(event.encode() + b"\n")
    return reader.end(0, "").usage


def completed(count: int) -> str:
    usage = {"input_tokens": count, "cached_input_tokens": count // 2, "output_tokens": count // 10}
    return json.dumps({"type": "turn.completed", "usage": usage})


@pytest.fixture
def rollout(kept: Path) -> Path:
    return kept / f".codex/sessions/2026/11/19/rollout-2026-11-19T06-00-00-{SESSION}.jsonl"


def test_tokens_of_earlier_runs_are_not_counted_again(kept: Path, rollout: Path) -> None:
    rollout.write_text(tokens(100) + tokens(1000) + "not JSON\n")
    usage = resumed_codex(kept, completed(1500))
    assert usage == Usage(input_tokens=500, output_tokens=50, cache_read_tokens=250)


def test_all_tokens_count_when_the_earlier_run_had_no_answer(kept: Path) -> None:
    usage = resumed_codex(kept, completed(1500))
    assert usage == Usage(input_tokens=1500, output_tokens=150, cache_read_tokens=750)


def test_tokens_are_unknown_when_the_earlier_ones_are(tmp_path: Path) -> None:
    assert resumed_codex(tmp_path, completed(1500)) is None
