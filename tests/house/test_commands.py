"""Check that docs/commands.md lists exactly the commands and options of the program."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from farro.cli.commands import COMMANDS, HELP
from farro.cli.commands import SECTIONS as HEADED
from farro.cli.main import farro
from house.test_documents import DOCUMENTS, FENCE, SPAN, named
from support import ROOT

PAGE = Path(ROOT, "docs", "commands.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^###? farro ([a-z -]+)\n(.*?)(?=^###? |\Z)", PAGE, re.MULTILINE | re.DOTALL))
# An invocation: the program, the command's words, and its arguments up to a pipe, a comment or the end of the line.
USE = re.compile(r"(?<![\w/.-])(farro|agx|agent-cli) ([a-z][a-z-]*(?: [a-z][a-z-]*)*)([^#|;&>\n]*)")
EVERYWHERE = {"--root", "--store", "--json", "--help"}


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield each command with what a user types, in the order of the help; a group precedes its subcommands."""
    context = click.Context(farro)
    for name in COMMANDS:
        yield from _with_inner(name, farro.get_command(context, name), context)


def _with_inner(
    name: str, command: click.Command | None, context: click.Context
) -> Iterator[tuple[str, click.Command]]:
    assert command is not None
    yield name, command
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            yield from _with_inner(f"{name} {inner}", command.get_command(context, inner), context)


TYPED = dict(commands())


def options(name: str) -> set[str]:
    """Return the options that the help of a command shows."""
    shown = [item for item in TYPED[name].params if isinstance(item, click.Option) and not item.hidden]
    return {option for item in shown for option in item.opts}


def test_the_page_has_every_command_in_the_order_of_the_help() -> None:
    assert list(SECTIONS) == list(TYPED)


def test_the_page_begins_with_the_sections_of_the_help() -> None:
    listed = re.findall(r"^\| ([A-Z].*?) \| (\[.*) \|$", PAGE.split("\n## ", 1)[0], re.MULTILINE)
    told = {title: re.findall(r"\[([a-z-]+)\]\(#farro-\1\)", cell) for title, cell in listed}
    assert told == {title: [name for name, _, _ in section] for title, section in HEADED.items()}


def test_no_command_is_in_two_sections_of_the_help() -> None:
    assert len(HELP) == sum(len(section) for section in HEADED.values())


def test_the_page_has_every_other_name_of_the_program() -> None:
    project = tomllib.loads(Path(ROOT, "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = re.findall(r"^\| `([a-z-]+)` \|", PAGE.split("\n## Other names\n")[1], re.MULTILINE)
    assert sorted(listed) == sorted(project["scripts"])


@pytest.mark.parametrize("name", TYPED)
def test_the_page_has_every_option_of_a_command(name: str) -> None:
    listed = re.findall(r"^\| (`-.*?) \|", SECTIONS[name], re.MULTILINE)
    told = {option for cell in listed for option in re.findall(r"`(--?[a-z-]+)`", cell)}
    everywhere = EVERYWHERE | ({"--store"} if name.split()[0] == "agx" else set())
    assert told == options(name) - everywhere


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_documents_name_only_options_that_a_command_has(document: Path) -> None:
    """`farro ls --last 3`, in an example or within a sentence. Arguments after -- are not farro's."""
    wrong = []
    for program, words, rest in USE.findall("\n".join(code_of(document))):
        typed = ["agx", *words.split()] if program == "agx" else words.split()
        names = [" ".join(typed[:count]) for count in range(len(typed), 0, -1)]
        name = next((name for name in names if name in TYPED), None)
        if name is not None:
            written = re.findall(r"(?<!\S)(--[a-z][a-z-]*)", re.split(r"\s--(?:\s|$)", rest)[0])
            wrong += [f"{name} {option}" for option in written if option not in every_option(name)]
    assert wrong == []


def every_option(name: str) -> set[str]:
    """Return every option, including negative forms (--no-…) and hidden ones."""
    of_it = [item for item in TYPED[name].params if isinstance(item, click.Option)]
    return {"--help"} | {option for item in of_it for option in (*item.opts, *item.secondary_opts)}


def code_of(document: Path) -> list[str]:
    """Return the code blocks and the inline code of a page."""
    text = document.read_text(encoding="utf-8")
    return [block for _, block in FENCE.findall(text)] + SPAN.findall(FENCE.sub("", text))


@pytest.mark.parametrize("name", TYPED)
def test_every_command_answers_as_json_and_takes_a_root(name: str) -> None:
    command = TYPED[name]
    assert command.help
    if not isinstance(command, click.Group) or command.invoke_without_command:  # a group only holds commands
        assert {"--root", "--json"} <= options(name)


@pytest.mark.parametrize("name", ["", *(name for name in TYPED if name.split()[0] != "agx")])
def test_help_fits_a_terminal_of_eighty_columns_and_cuts_no_sentence(name: str) -> None:
    """Examples are not wrapped, and click shows one line for each subcommand, which it truncates when too long."""
    command = TYPED[name] if name else farro
    told = command.get_help(click.Context(command, info_name=f"farro {name}".rstrip(), terminal_width=78))
    assert [line for line in told.splitlines() if len(line) > 80] == []
    assert [line for line in told.splitlines()[1:] if line.endswith("...")] == []
