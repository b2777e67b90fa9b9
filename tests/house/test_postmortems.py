"""Check docs/ops/postmortems.md: every command that the template uses exists."""

from __future__ import annotations

import re
from pathlib import Path

from farro.cli.commands import COMMANDS
from support import ROOT

PAGE = Path(ROOT, "docs", "ops", "postmortems.md").read_text(encoding="utf-8")


def test_a_postmortem_is_filled_from_commands_that_exist() -> None:
    named = set(re.findall(r"farro ([a-z-]+)", PAGE))
    assert {"history", "show", "costs", "logs", "stats", "replay"} <= named
    assert named - {"kept"} <= set(COMMANDS)
    for part in ("What happened", "Why", "What changes", "Evidence", "Impact"):
        assert part in PAGE
