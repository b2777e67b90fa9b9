from __future__ import annotations

from pathlib import Path

import pytest

from agents.agent_root import AgentRoot, MakeRoot


@pytest.fixture
def make(tmp_path: Path) -> MakeRoot:
    def made(**config: object) -> AgentRoot:
        (tmp_path / "root").mkdir()
        return AgentRoot(tmp_path / "root", **config)  # type: ignore[arg-type]

    return made
