"""A root whose roles real coding agents answer, through an admission that leads straight to the scripted server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.agent_root import AgentRoot
from farro.agents.gateway.port import GatewayReport, GatewayRun
from farro.agents.providers.port import ProviderTrouble, Usage
from farro.app import App
from model_server.server import ModelServer
from real_agents.programs import executable

NOTHING = Usage(input_tokens=0, output_tokens=0)
KEY = "upstream-key"


class StraightAdmission:
    """An admission of one run (port: Admission): every request goes to the scripted server, which knows the key."""

    def __init__(self, server: ModelServer, run: GatewayRun) -> None:
        self.port, self.token, self.base_url = server.port, KEY, server.base_url
        self._server, self._before = server, len(server.model_requests)
        assert run.upstream.key == KEY

    def report(self) -> GatewayReport:
        requests = self._server.model_requests[self._before :]
        trouble = None
        if requests and requests[-1].status == 429:
            trouble = ProviderTrouble("the account has reached its limit", kind="limited", retryable=True)
        return GatewayReport(
            requests=len(requests),
            usage=NOTHING,
            cost_usd=None,
            model=requests[-1].model if requests else None,
            trouble=trouble,
            exceeded=None,
        )

    def serve(self, listener: socket.socket) -> Callable[[], None]:
        return listener.close

    def close(self) -> None: ...

    def __enter__(self) -> StraightAdmission:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def agent_root(
    path: Path, name: str, server: ModelServer, monkeypatch: pytest.MonkeyPatch, **changes: Any
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
        "workspace": "root",
        "network": True,
        **changes,
    }
    monkeypatch.setenv("UPSTREAM_KEY", KEY)
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(shutil.which("node") or "").parent), os.environ["PATH"])))
    monkeypatch.setattr(App, "admit", staticmethod(lambda run: StraightAdmission(server, run)))
    root = AgentRoot(path, providers={name: provider}, **config)
    subprocess.run(["git", "init", "-q"], cwd=path, check=True)
    return root
