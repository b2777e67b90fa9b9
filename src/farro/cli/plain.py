"""Run `farro ls`, `show`, `logs` and `wait` without click, whose import takes a third of their time.

Only a plain command line is read here: whole names of known options, each with a value of its form. Any other one
(help, a mistake, a short option, `--name=value`) is left to click, so that every message is click's.
[test_a_plain_line_is_read_as_click_reads_it]
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module

TYPE_CHECKING = False  # not imported from typing, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

FLAG, TEXT, TEXTS, COUNT = "flag", "text", "texts", "count"
_COMMON = {"--root": ("root", TEXT), "--json": ("as_json", FLAG), "--store": ("store", TEXT)}


class PlainCommand:
    """A command: its function, its argument with how many of them there may be, its options, and values of others."""

    def __init__(
        self,
        function: str,
        options: dict[str, tuple[str, str]],
        *,
        argument: str | None = None,
        most: int = 0,
        others: dict[str, Any] | None = None,
    ) -> None:
        self.function = function
        self.options = {**_COMMON, **options}
        self.argument = argument
        self.most = most
        self.others = others or {}

    def read(self, words: Sequence[str]) -> dict[str, Any] | None:
        """Return the values that click would give the function, and `store`; None where the line is not plain."""
        empty = {FLAG: False, TEXT: None, TEXTS: (), COUNT: None}
        values: dict[str, Any] = {name: empty[kind] for name, kind in self.options.values()}
        values.update(self.others)
        arguments: list[str] = []
        rest = iter(words)
        for word in rest:
            if not word.startswith("-"):
                arguments.append(word)
                continue
            name, kind = self.options.get(word, (None, FLAG))
            value = None if kind == FLAG else next(rest, "")
            if name is None or value == "" or (value is not None and value.startswith("-")):
                return None
            if kind == COUNT and (value is None or not value.isascii() or not value.isdecimal() or int(value) < 1):
                return None
            if kind == TEXTS:
                values[name] = (*values[name], value)
            else:
                values[name] = True if kind == FLAG else int(value or 0) if kind == COUNT else value
        if not ((self.argument and 0 < len(arguments) <= self.most) or (not self.argument and not arguments)):
            return None
        if self.argument is not None:
            values[self.argument] = tuple(arguments) if self.most > 1 else arguments[0]
        return values


COMMANDS = {
    "ls": PlainCommand(
        "farro.cli.jobs:ls",
        {
            "--role": ("roles", TEXTS),
            "--tag": ("tags", TEXTS),
            "--limit": ("limit", COUNT),
            "--last": ("last", COUNT),
        },
        others={"statuses": (), "state": None},
    ),
    "show": PlainCommand("farro.cli.jobs:show", {}, argument="job", most=1),
    "logs": PlainCommand(
        "farro.cli.logs:logs_of",
        {"--follow": ("follow", FLAG), "--tail": ("tail", COUNT)},
        argument="job",
        most=1,
    ),
    "wait": PlainCommand(
        "farro.cli.watch:wait", {"--any": ("first", FLAG)}, argument="jobs", most=100_000, others={"timeout": None}
    ),
}


def run(line: Sequence[str]) -> int | None:
    """Run a command line and return its exit code; None where it is left to click."""
    if "_FARRO_COMPLETE" in os.environ:
        from farro.cli import plain_completion

        return plain_completion.run()
    command = COMMANDS.get(line[0]) if line else None
    values = None if command is None else command.read(line[1:])
    if command is None or values is None:
        return None
    from farro.cli import options, terminal

    call = options.plain_call = options.PlainCall(values.pop("store"))
    module, _, name = command.function.partition(":")
    function = getattr(import_module(module), name)
    gc.freeze()  # modules stay for good: collections can skip them
    gc.enable()
    terminal.make_encodable()

    def act() -> object:
        try:
            return function(**values)
        finally:
            for store in reversed(call.opened):
                store.close()

    try:
        return terminal.guarded(act)
    except Exception as error:
        click = sys.modules.get("click")
        if click is None or not isinstance(error, click.UsageError):
            raise
        return None  # click reads the line again, and says it with the command's usage
    finally:
        options.plain_call = None
