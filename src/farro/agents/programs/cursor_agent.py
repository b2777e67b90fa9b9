"""Cursor's agent, `cursor-agent`: https://cursor.com/docs/cli/headless. Written from its documentation.

It reaches models through Cursor's service only, with a key of its own, so no gateway counts its tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from farro.agents.programs.output import Event, at, text_at, tool_line
from farro.agents.programs.port import SESSION, Dialect, NewSession, ProgramLaunch, ProgramRun, Reader
from farro.agents.programs.services import missing_own_key
from farro.agents.programs.session_files import session_file
from farro.agents.programs.stream_json import StreamJsonReader

_KEY = "CURSOR_API_KEY"
_WRITERS = ("editToolCall", "writeToolCall")


class CursorAgent:
    """Cursor's agent (port: AgentProgram)."""

    name = "cursor-agent"
    command: tuple[str, ...] = ("cursor-agent",)
    dialects: tuple[Dialect, ...] = ()
    new_session: NewSession = "reported"
    by_hand: tuple[str, ...] = ("--resume", SESSION)

    def launch(self, run: ProgramRun) -> ProgramLaunch:
        if run.gateway is not None or _KEY not in run.variables:
            raise missing_own_key(self.name, "Cursor", _KEY)
        args = ["-p", "--output-format", "stream-json", "--trust"]
        args += ["--mode", "ask"] if run.read_only else ["--force"]
        if run.model is not None:
            args += ["--model", run.model]
        if run.resume and run.session_id is not None:
            args += ["--resume", run.session_id]
        return ProgramLaunch(args=tuple(args))

    def reader(self, run: ProgramRun, on_progress: Callable[[str], None]) -> Reader:
        return CursorReader(on_progress, resumed=run.resume)

    def resumable(self, home: str, session_id: str, cwd: str) -> bool:
        return session_file(home, ".cursor", "chats", "*", session_id) is not None

    def read_paths(self, executable: str) -> tuple[str, ...]:
        return ()


class CursorReader(StreamJsonReader):
    """Reads one run. Calls of tools are events of their own."""

    def take(self, event: Event) -> None:
        super().take(event)
        if event.get("type") != "tool_call":
            return
        calls = at(event, "tool_call")
        for name, call in calls.items() if isinstance(calls, dict) else ():
            if event.get("subtype") == "started":
                self.progress(tool_line(re.sub("ToolCall$", "", name), at(call, "args")))
            elif event.get("subtype") == "completed" and name in _WRITERS and at(call, "result", "success") is not None:
                self.wrote(text_at(call, "args", "path"))


CURSOR_AGENT = CursorAgent()
