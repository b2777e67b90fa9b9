"""docs/commands.md lists every command and every option that the program has, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from farro.cli.main import COMMANDS, HELP, farro
from support import ROOT

PAGE = Path(ROOT, "docs", "commands.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## farro ([a-z-]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
EVERYWHERE = {"--root", "--json", "--help"}


def options(name: str) -> set[str]:
    command = farro.get_command(click.Context(farro), name)
    assert command is not None
    return {option for item in command.params if isinstance(item, click.Option) for option in item.opts} - EVERYWHERE


def test_the_page_has_every_command_in_the_order_of_the_help() -> None:
    assert list(SECTIONS) == list(COMMANDS) == list(HELP)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_has_every_option_of_a_command(name: str) -> None:
    listed = re.findall(r"^\| (`-.*?) \|", SECTIONS[name], re.MULTILINE)
    told = {option for cell in listed for option in re.findall(r"`(--?[a-z-]+)`", cell)}
    assert told == options(name)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_answers_as_json_and_takes_a_root(name: str) -> None:
    command = farro.get_command(click.Context(farro), name)
    assert command is not None
    assert {"--root", "--json"} <= {option for item in command.params for option in item.opts}
    assert command.help
