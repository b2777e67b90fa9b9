"""Decide what an agent may do when it asks: by a policy, or by asking a person."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from farro.agents.acp.turn_reader import WRITING, paths_of
from farro.agents.permissions import PermissionBox
from farro.agents.programs.output import Event, objects_at, one_line, text_at
from farro.config.settings import ProviderSettings
from farro.lazy_dataclass import dataclass, field

_LOOK_S = 0.2  # how often an answer is looked for
_MOST_LINES = 40  # of a text that is written


@dataclass(kw_only=True)
class PermissionPolicy:
    """Answers the permission requests of one turn. Whatever it allows, the sandbox holds the agent."""

    settings: ProviderSettings
    may_write: Callable[[str], bool]
    cwd: str
    box: PermissionBox | None
    on_progress: Callable[[str], None]
    asked_s: float = field(default_factory=time.monotonic)  # when the agent last waited for a person

    async def permit(self, tool: Event) -> bool:
        """Return whether a tool may be used. A change of what it may not write is refused, whatever the policy."""
        if tool.get("kind") in WRITING:
            paths = [os.path.join(self.cwd, path) for path in paths_of(tool)]
            if not all(self.may_write(path) for path in paths):
                return False
        if self.settings.permissions == "inbox" and self.box is not None:
            return await self._ask(self.box, tool)
        return self.settings.permissions == "allow"

    async def _ask(self, box: PermissionBox, tool: Event) -> bool:
        self.on_progress(f"waits for a person: {text_at(tool, 'title')}")
        path = box.ask(question_of(tool))
        until_s = time.monotonic() + self.settings.permission_timeout_s
        while (answer := box.answer(path)) is None:
            self.asked_s = time.monotonic()
            if self.asked_s >= until_s:
                return box.give_up(path)
            await asyncio.sleep(_LOOK_S)
        return answer


def question_of(tool: Event) -> str:
    """Say what a tool would do, in lines that change no terminal."""
    kind, title, command = text_at(tool, "kind"), text_at(tool, "title"), text_at(tool, "rawInput", "command")
    lines = [f"May the agent do this ({one_line(kind) or 'a tool'})? {one_line(title)}"]
    if command and command not in title:
        lines += [f"  {one_line(line)}" for line in command.splitlines()]
    lines += [one_line(path) for path in paths_of(tool) if path not in title]
    for change in objects_at(tool, "content"):
        lines += [f"+ {one_line(line)}" for line in text_at(change, "newText").splitlines()[:_MOST_LINES]]
    return "\n".join(lines)
