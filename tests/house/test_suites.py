"""Check that `make test` runs every folder of tests."""

from __future__ import annotations

import re
from pathlib import Path

from support import ROOT


def test_no_folder_of_tests_is_left_out_of_the_run() -> None:
    text = (Path(ROOT) / "scripts" / "suites.py").read_text()
    found = re.search(r"^SUITES = \((.*?)^\)$", text, re.MULTILINE | re.DOTALL)
    assert found
    named = set(re.findall(r'"([a-z_]+)"', found[1]))
    folders = {
        path.parent.relative_to(Path(ROOT) / "tests").parts[0] for path in (Path(ROOT) / "tests").rglob("test_*.py")
    }
    assert folders == named & folders
