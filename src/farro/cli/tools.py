"""`farro tools`: list the tools that steps may name here."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from farro.cli.options import application, common, read_root_or_here
from farro.cli.tables import shortened, show_table
from farro.cli.terminal import answer, say
from farro.execution import tool_catalog as operations
from farro.execution.tool_catalog import ProgramSearch, ToolInfo

_WIDEST = 60


@click.command()
@click.argument("tool", required=False)
@click.option("--path", "on_path", is_flag=True, help="Also programs on the PATH called agx-… or farro-….")
@common
def tools(tool: str | None, on_path: bool, root: str | None, as_json: bool) -> None:
    """List the tools that steps may name, with their descriptions; or show one in full.

    Programs are asked with --describe, and answer in JSON within two seconds, or are listed without a description.
    """
    cwd, settings = read_root_or_here(root)
    known, place = application().tools(settings, cwd), ProgramSearch(env=os.environ, cwd=cwd)
    if tool is not None:
        found = operations.one(known, place, tool, configured=list(settings.tools))
        answer(asdict(found)) if as_json else _say_whole(found)
        return
    listed = operations.listed(known, place, configured=list(settings.tools), on_path=on_path)
    if as_json:
        answer({"tools": [asdict(each) for each in listed]})
        return
    rows = [("TOOL", "KIND", "FROM", "WHERE", "WHAT IT DOES")]
    rows += [(each.name, each.kind, each.comes_from, each.where or "-", _remark(each)) for each in listed]
    show_table(rows)


def _remark(tool: ToolInfo) -> str:
    if not tool.usable:
        return f"cannot be used: {_short(tool.trouble or '')}"
    if tool.trouble is not None:
        return f"({_short(tool.trouble)})"
    version = f" ({tool.said.version})" if tool.said.version else ""
    return _short(tool.said.description) + version


def _short(text: str) -> str:
    return shortened(" ".join(text.split()), _WIDEST)


def _say_whole(tool: ToolInfo) -> None:
    version = f" {tool.said.version}" if tool.said.version else ""
    say(f"{tool.name}{version}  ({tool.kind}, from {tool.comes_from})")
    if tool.where:
        say(f"  lies in   {tool.where}")
    if tool.trouble is not None:
        say(f"  {'trouble' if tool.usable else 'unusable':<9} {tool.trouble}")
    if tool.said.description:
        say(f"  does      {tool.said.description}")
    if tool.said.commands:
        say("  commands")
        rows = [(" ".join((each.name, *each.args)), each.description) for each in tool.said.commands]
        show_table(rows, indent="    ")
    command = tool.said.commands[0].name if tool.said.commands else "echo" if tool.name == "unix" else "COMMAND"
    say(f'  in a plan {{"id": "a", "tool": "{tool.name}", "command": "{command}", "args": ["…"]}}')
