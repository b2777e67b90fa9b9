"""Run docs/python.md: write its modules, and type its examples in one session beside a real worker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from flows.program import PATIENCE_S, Program
from support import ROOT

PAGE = Path(ROOT, "docs", "python.md").read_text(encoding="utf-8")
SESSION = """
import doctest, sys
text = open("session.txt", encoding="utf-8").read()
test = doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, "docs/python.md", None, 0)
failed = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed
sys.exit(failed > 0)
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_of_the_python_api_does_what_it_says(farro: Program) -> None:
    for module in blocks("python"):
        name = re.match(r"# (\w+\.py)\n", module)
        assert name, f"which file is this?\n{module}"
        (farro.path / name[1]).write_text(module, encoding="utf-8")
    (farro.path / "session.txt").write_text("\n".join(blocks("pycon")), encoding="utf-8")
    farro.start("worker").started()
    done = subprocess.run(
        [sys.executable, "-c", SESSION],
        cwd=farro.path,
        env=farro.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout


def test_everything_public_is_on_the_page() -> None:
    import farro as module

    missing = [name for name in module.__all__ if not name.startswith("__") and name not in PAGE]
    assert missing == []
