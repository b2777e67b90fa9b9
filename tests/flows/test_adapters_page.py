"""The test modules of docs/adapters.md run as a package of another author would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import ROOT

PAGE = Path(ROOT, "docs", "adapters.md").read_text(encoding="utf-8")
MODULES = {
    name: text for text, name in re.findall(r"^```python\n(# (test_\w+)\.py\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
}


# Some tests of each suite: tests/contracts runs all of them on the same adapters.
@pytest.mark.parametrize(
    ("name", "some"), [("test_my_runner", "report or released"), ("test_sqlite_store", "name or counts")]
)
def test_a_test_module_of_the_page_passes(name: str, some: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text(MODULES[name], encoding="utf-8")
    path = os.pathsep.join((str(Path(ROOT, "examples", "sqlite_store")), os.environ.get("PYTHONPATH", "")))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", some, str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)


def test_every_test_module_of_the_page_is_run() -> None:
    assert MODULES.keys() == {"test_my_runner", "test_sqlite_store"}
