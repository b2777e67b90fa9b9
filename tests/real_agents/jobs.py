"""A root whose roles real coding agents answer, through the gateway, which forwards to the scripted server."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agents.agent_root import AgentRoot
from model_server.server import ModelServer, ServedRequest
from real_agents.programs import executable

KEY = "upstream-key"
OTHERS = ("opencode", "goose", "aider")
MODELS = ("claude-lab", "gpt-lab", "gemini-2.5-pro")
PROGRAMS = ("claude", "codex", "gemini")


def of_agent(name: str, requests: list[ServedRequest]) -> list[ServedRequest]:
    """Leave out the requests with which gemini lets a model choose the model."""
    return [request for request in requests if name != "gemini" or request.tools]


def agent_root(
    path: Path,
    name: str,
    server: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    kind: type[AgentRoot] = AgentRoot,
    **changes: Any,
) -> AgentRoot:
    """Make a root in a repository, in which that program answers for every role."""
    config = {"roles": {"SeniorEngineer": {"provider": name}}, **changes.pop("config", {})}
    path.mkdir()
    (path / "AGENTS.md").write_text("# Policy\n\nPOLICY-OF-THE-ROOT\n")
    provider = {
        "kind": "cli",
        "program": name,
        "command": [executable(name)],
        "api_key": "${UPSTREAM_KEY}",
        "base_url": server.base_url,
        "prices": {model: {"input_usd": 1, "output_usd": 2} for model in MODELS},
        "workspace": "root",
        **({"model": "other/lab"} if name in OTHERS else {}),
        **changes,
    }
    monkeypatch.setenv("UPSTREAM_KEY", KEY)
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(shutil.which("node") or "").parent), os.environ["PATH"])))
    root = kind(path, providers={name: provider}, **config)
    subprocess.run(["git", "init", "-q"], cwd=path, check=True)
    return root
