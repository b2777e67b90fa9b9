"""What Tab offers at the prompt of `agx`: what click and cli.completion know of its commands, and what is kept.

Reading lines lives in agx_repl.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from typing import Any

from farro.agx.cli.context import Place
from farro.agx.cli.group import ALIAS, OF_A_PLAN, PLACES, agx
from farro.cli.options import application


class Completer:
    """What Tab offers: commands, options, tools, plans, jobs and files. It must be quick and must not fail."""

    def __init__(self, given: Sequence[str], readline: Any) -> None:
        self._given = list(given)
        self._readline = readline
        self._found: list[str] = []

    def complete(self, text: str, state: int) -> str | None:
        if state == 0:
            try:
                line = self._readline.get_line_buffer()[: self._readline.get_begidx()]
                self._found = self.offered(line, text)
            except Exception:  # noqa: BLE001 - Tab must never end the program, whatever a config or a disk does
                self._found = []
        return self._found[state] if state < len(self._found) else None

    def offered(self, line: str, text: str) -> list[str]:
        before = line.split()
        if " -- " in f" {line}" or "--" in before:
            return _files(text)
        if before[:1] == ["agx"]:
            before = before[1:]
        if not before:
            return [f"{name} " for name in sorted((*PLACES, ALIAS, "help", "exit")) if name.startswith(text)]
        if before[0] == "help":
            return [f"{name} " for name in PLACES if name.startswith(text)]
        if before == [ALIAS]:
            return [f"{name} " for name in OF_A_PLAN if name.startswith(text)]
        if before[-1] == "--tool":
            return [f"{name} " for name in self._tools() if name.startswith(text)]
        return self._of_click(before, text)

    def _of_click(self, before: list[str], text: str) -> list[str]:
        from click.shell_completion import ShellComplete

        asked = ShellComplete(agx, {}, "agx", "_AGX_COMPLETE")
        found = [item.value for item in asked.get_completions([*self._given, *before], text) if item.type == "plain"]
        names = [f"{name} " for name in found]
        wants = self._argument(before)
        if wants is not None and not text.startswith("-"):
            names += [f"{name} " for name in self._kept(wants) if name.startswith(text)]
        return names or _files(text)

    def _argument(self, before: list[str]) -> str | None:
        """Of which kind of thing the name is that the command wants."""
        verbs = [word for word in before if not word.startswith("-")]
        verbs = verbs[1:] if verbs[:1] == [ALIAS] else verbs
        if verbs[:1] in (["get"], ["delete"], ["submit"], ["preview"], ["validate"]) or verbs[:2] in (
            ["job", "submit"],
            ["action", "new"],
        ):
            return "plan"
        return "action" if verbs[:2] in (["action", "submit"], ["action", "get"], ["action", "delete"]) else None

    def _kept(self, kind: str) -> list[str]:
        place = Place.of_options(self._given)
        try:
            lines: Sequence[Any] = place.desk.plans()
            if kind == "action":
                lines = [*place.desk.actions(), *lines]
            return [line.id for line in lines]
        finally:
            place.close()

    def _tools(self) -> list[str]:
        return ["unix", *application().tools(Place.of_options(self._given).settings).names()]


def _files(text: str) -> list[str]:
    found = sorted(glob.glob(glob.escape(os.path.expanduser(text)) + "*"))[:200]
    return [f"{name}/" if os.path.isdir(name) else f"{name} " for name in found]
