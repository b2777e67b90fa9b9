"""docs/worked-example.md is run as it stands: every command of its console blocks, with what it must print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from support import ROOT

PAGE = Path(ROOT) / "docs" / "worked-example.md"
PATIENCE_S = 120


def conversation(text: str) -> list[tuple[str, list[str]]]:
    """(command, expected lines) of every console block, in order."""
    talk: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                talk.append((line[2:], []))
            else:
                talk[-1][1].append(line)
    return talk


def pattern(expected: list[str]) -> re.Pattern[str]:
    """`…` stands for anything within a line; a line of its own, for any lines."""
    lines = [".*" if line == "…" else re.escape(line).replace("…", "[^\n]*") for line in expected]
    return re.compile("\n".join(lines), re.DOTALL)


def test_the_worked_example_tells_the_truth(tmp_path: Path) -> None:
    home = tmp_path / "root"
    home.mkdir()
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    environ = {"PATH": path, "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    talk = conversation(PAGE.read_text())
    assert len(talk) > 30
    try:
        for command, expected in talk:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=home,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            said = done.stdout.rstrip("\n")
            assert pattern(expected).fullmatch(said), f"$ {command}\n{said}\n--- expected\n" + "\n".join(expected)
    finally:
        subprocess.run(["pkill", "-9", "-f", "worker --workers 1 --name demo"], check=False)
