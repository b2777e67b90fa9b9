"""Run the worked example of the documents command by command, and compare the output with the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.program import PATIENCE_S, Program
from servers import free_port
from support import ROOT, need

PAGES = [
    "README.md",
    "ARCHITECTURE.md",
    "docs/worked-example.md",
    "docs/everyday.md",
    "docs/archive.md",
    "docs/tools.md",
    "docs/agx.md",
    "docs/components.md",
    "docs/http.md",
    "docs/migrate.md",
    "docs/ops/postmortems.md",
    "docs/ops/runbook.md",
]
SERVER = "redis://queue.example:6379/0"  # as on the page; the test replaces it by its own server
PORT = "127.0.0.1:8420"  # of `farro web`; it may be taken where the test runs
FENCE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page: str) -> Iterator[tuple[str, str]]:
    """Yield every command of the page's console blocks with its expected output."""
    for block in FENCE.findall(page):
        command: str | None = None
        printed: list[str] = []
        for line in block.splitlines():
            if line.startswith("$ "):
                if command is not None:
                    yield command, "\n".join(printed)
                command, printed = line[2:], []
            elif line.startswith("> ") and not printed and command is not None:
                command += "\n" + line[2:]
            else:
                assert command is not None, f"{line!r}: no command printed this"
                printed.append(line)
        if command is not None:
            yield command, "\n".join(printed)


def pattern(printed: str) -> re.Pattern[str]:
    """Build the pattern of an expected output: `…` matches any text in a line, alone on a line any number of lines.

    After `…`, the gap between columns may have any width: on a busy machine an age of ten seconds is one character
    longer than one of nine.
    """
    lines = [r"(?:.*\n)*" if line == "…" else f"{_in_line(line)}\n" for line in printed.split("\n") if printed]
    return re.compile("".join(lines))


def _in_line(line: str) -> str:
    first, *others = (re.escape(part) for part in line.split("…"))
    return ".*".join([first, *(re.sub(r"(?:\\ ){2,}", " {2,}", part) for part in others)])


@pytest.mark.parametrize("name", PAGES)
def test_the_worked_example_prints_what_the_page_says(
    empty: Program, name: str, request: pytest.FixtureRequest
) -> None:
    page = Path(ROOT, name).read_text(encoding="utf-8")
    if any(SERVER in command for command, _ in examples(page)):
        page = page.replace(SERVER, request.getfixturevalue("redis_server").url)
    if any("curl" in command for command, _ in examples(page)):
        need("curl")
        page = page.replace(PORT, f"127.0.0.1:{free_port()}")
    found = list(examples(page))
    assert found
    env = {**empty.env, "PATH": os.pathsep.join((os.path.dirname(sys.executable), empty.env["PATH"]))}
    for command, printed in found:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=empty.path,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        said = done.stdout if not done.stdout or done.stdout.endswith("\n") else done.stdout + "\n"
        assert pattern(printed).fullmatch(said), f"$ {command}\n--- the page\n{printed}\n--- printed\n{said}"


def test_agx_add_command_of_the_readme_needs_no_shell(farro: Program) -> None:
    """It is among lines that need a server, which the test does not run."""
    lines = re.findall(r"^agx add -- '(.*?)'", Path(ROOT, "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert lines
    for line in lines:
        assert farro.run("agx", "add", "--", line, code=0).json["warnings"] == []


@pytest.mark.parametrize(
    ("printed", "said", "fits"),
    [
        ("", "", True),
        ("", "x\n", False),
        ("a … c", "a b c\n", True),
        ("a … c", "a b\nc\n", False),
        ("a\n…", "a\n", True),
        ("a\n…", "a\nb\nc\n", True),
        ("a\n…\nd", "a\nb\nc\nd\n", True),
        ("a.", "ab\n", False),
        ("a  …s   b", "a  10s  b\n", True),
        ("a  …s   b", "a  10s b\n", False),
        ("a   …", "a  b\n", False),
    ],
)
def test_comparison_finds_a_difference(printed: str, said: str, fits: bool) -> None:
    assert bool(pattern(printed).fullmatch(said)) is fits


def test_commands_and_their_output_are_distinguished() -> None:
    page = "```console\n$ cat <<END\n> one\n> END\none\n$ true\n```\ntext\n```\n$ not this\n```\n"
    assert list(examples(page)) == [("cat <<END\none\nEND", "one"), ("true", "")]
