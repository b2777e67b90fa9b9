"""Make a fresh root with the planner in it, and a separate state folder for its drafts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.conftest import empty, farro, fresh_root  # noqa: F401
from flows.program import Done, Program

Agx = Callable[..., Done]


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    for name in ("FARRO_ROOT", "AGQ_KEY", "VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def agx(farro: Program) -> Agx:  # noqa: F811
    """Run `agx(…)` inside this process; without a terminal it prints JSON."""

    def run(*args: str, **how: Any) -> Done:
        return farro.call("agx", *args, **how)

    return run


@pytest.fixture
def provider(farro: Program) -> Callable[..., None]:  # noqa: F811
    """Return `provider(answer, …)`, a scripted provider with these answers in order; the last one repeats."""

    def script(*answers: Any, **config: Any) -> None:
        entries = [{"answer": answer, "times": 1} if not _is_entry(answer) else answer for answer in answers]
        entries[-1].pop("times", None)
        (farro.path / "answers.json").write_text(json.dumps({"answers": entries}))
        settings = json.loads((farro.path / "agents-config.json").read_text())
        settings["providers"] = {"scripted": {"file": "answers.json"}}
        (farro.path / "agents-config.json").write_text(json.dumps({**settings, **config}))

    return script


def _is_entry(answer: Any) -> bool:
    return isinstance(answer, dict) and ("answer" in answer or "error" in answer)


def step(number: int, command: str, *args: str, **more: Any) -> dict[str, Any]:
    """Build a step as a model would write it."""
    return {"step_number": number, "tool": "unix", "command": command, "args": list(args), **more}
