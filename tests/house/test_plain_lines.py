"""Compare `cli.plain`, which reads plain command lines without click, with click."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import click
import pytest

from farro.cli import everyday, plain
from farro.cli.plain import COMMANDS

LINES = {
    "ls": [
        [],
        ["--json"],
        ["--role", "Runner", "--role", "Architect", "--last", "3"],
        ["--limit", "10", "--tag", "gpu", "--root", "/r"],
        ["--store", "files"],
    ],
    "show": [["job-1"], ["job-1", "--json"], ["--root", "/r", "job-1"]],
    "logs": [["job-1"], ["--follow", "job-1", "--tail", "5"], ["job-1", "--json"]],
    "wait": [["a"], ["a", "b", "--any"], ["--json", "a"]],
}
LEFT_TO_CLICK = {
    "ls": [["--help"], ["-h"], ["extra"], ["--last", "0"], ["--last", "x"], ["--root", ""], ["--role"], ["--json=1"]],
    "show": [[], ["a", "b"], ["--", "a"], ["a", "--nope"]],
    "logs": [[], ["--step", "1", "a"], ["-f", "a"], ["a", "--tail", "-1"]],
    "wait": [[], ["a", "--timeout", "3s"]],
}


def by_click(name: str, words: list[str]) -> dict[str, Any]:
    command: click.Command = getattr(everyday, name)
    context = command.make_context(name, list(words))
    return {**context.params, "store": context.meta["farro.store"]}


@pytest.mark.parametrize(("name", "words"), [(name, words) for name, lines in LINES.items() for words in lines])
def test_a_plain_line_is_read_as_click_reads_it(name: str, words: list[str]) -> None:
    values = COMMANDS[name].read(words)
    assert values is not None
    expected = by_click(name, words)
    left_out = {option: value for option, value in expected.items() if option not in values}
    assert {option: expected[option] for option in values} == values
    assert all(value in (None, False, ()) for value in left_out.values()), "what is left out was not given"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_plain_option_is_one_of_the_command(name: str) -> None:
    command: click.Command = getattr(everyday, name)
    known = {option: parameter.name for parameter in command.params for option in parameter.opts}
    assert {option: target for option, (target, _) in COMMANDS[name].options.items()}.items() <= known.items()


@pytest.mark.parametrize(("name", "words"), [(name, words) for name, lines in LEFT_TO_CLICK.items() for words in lines])
def test_any_other_line_is_left_to_click(name: str, words: list[str]) -> None:
    assert COMMANDS[name].read(words) is None
    assert plain.run([name, *words]) is None


def test_a_plain_command_imports_neither_click_nor_inspect() -> None:
    script = (
        "import sys\n"
        "from farro.cli import plain\n"
        "assert plain.run(['ls', '--root', '/no/such']) == 2\n"
        "print(sorted({'click', 'inspect', 'dataclasses', 'uuid'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert "/no/such does not exist" in done.stderr
