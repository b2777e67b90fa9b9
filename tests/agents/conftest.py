from __future__ import annotations

from pathlib import Path

import pytest

from agents.stage import Make, Stage


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(**config: object) -> Stage:
        (tmp_path / "root").mkdir()
        return Stage(tmp_path / "root", **config)  # type: ignore[arg-type]

    return made
