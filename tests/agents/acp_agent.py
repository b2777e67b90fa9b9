"""An ACP agent for tests: `python acp_agent.py FILE`, where FILE is the body of `async def act(turn)`.

It keeps its sessions in its home, as real agents do: a file for each, with a line for each prompt.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import textwrap
import uuid
from pathlib import Path
from typing import Any

import acp
from acp.schema import (
    AgentCapabilities,
    InitializeResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
    ToolCallLocation,
    ToolCallUpdate,
    Usage,
    UsageUpdate,
)

SESSIONS = Path(os.environ["HOME"], "sessions")
OPTIONS = [
    PermissionOption(option_id="for-ever", name="Allow always", kind="allow_always"),
    PermissionOption(option_id="yes", name="Allow", kind="allow_once"),
    PermissionOption(option_id="no", name="Reject", kind="reject_once"),
]


class TurnOfAgent:
    """What the body of a test can do in one turn."""

    def __init__(self, client: Any, session: str, text: str, number: int) -> None:
        self.client, self.session, self.text = client, session, text
        self.number = number  # of the turns in this home, from 1
        self.cancelled = asyncio.Event()
        self.usage: Usage | None = None
        self.stop = "end_turn"
        self.tools = 0

    async def say(self, text: str) -> None:
        await self.client.session_update(self.session, acp.update_agent_message_text(text))

    async def costs(self, usd: float) -> None:
        update = UsageUpdate(session_update="usage_update", used=1, size=2, cost={"amount": usd, "currency": "USD"})
        await self.client.session_update(self.session, update)

    def bills(self, fresh: int, output: int, cached: int) -> None:
        total = fresh + output + cached
        self.usage = Usage(total_tokens=total, input_tokens=fresh, output_tokens=output, cached_read_tokens=cached)

    async def asks(self, title: str, kind: str, *paths: str, command: str | None = None) -> str:
        """Ask for a permission, and return the chosen option."""
        self.tools += 1
        tool = ToolCallUpdate(
            tool_call_id=f"tool-{self.tools}",
            title=title,
            kind=kind,
            locations=[ToolCallLocation(path=path) for path in paths],
            raw_input=None if command is None else {"command": command},
        )
        answer = await self.client.request_permission(session_id=self.session, tool_call=tool, options=OPTIONS)
        return getattr(answer.outcome, "option_id", "cancelled")

    async def used(self, title: str, kind: str, *paths: str, status: str = "completed") -> None:
        self.tools += 1
        places = [ToolCallLocation(path=path) for path in paths]
        for update in (
            acp.start_tool_call(f"tool-{self.tools}", title, kind=kind, locations=places),
            acp.update_tool_call(f"tool-{self.tools}", status=status),
        ):
            await self.client.session_update(self.session, update)

    async def edits(self, path: str, text: str) -> str:
        """Ask for an edit, make it if that is allowed, and return the chosen option."""
        chosen = await self.asks(f"Write {path}", "edit", path)
        if chosen == "yes":
            Path(path).write_text(text)
            await self.used(f"Write {path}", "edit", path)
        return chosen


class AgentOfTests:
    def __init__(self, act: Any) -> None:
        self.act = act
        self.client: Any = None
        self.turns: dict[str, TurnOfAgent] = {}
        self.repeating: asyncio.Task[None] | None = None

    def on_connect(self, conn: Any) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        loads = "NO_LOAD" not in os.environ
        return InitializeResponse(
            protocol_version=protocol_version, agent_capabilities=AgentCapabilities(load_session=loads)
        )

    async def new_session(self, cwd: str, **_: Any) -> NewSessionResponse:
        if "NOT_SIGNED_IN" in os.environ:
            raise acp.RequestError.auth_required()
        session = uuid.uuid4().hex
        SESSIONS.mkdir(exist_ok=True)
        (SESSIONS / session).write_text("")
        return NewSessionResponse(session_id=session)

    async def load_session(self, cwd: str, session_id: str, **_: Any) -> LoadSessionResponse:
        if not (SESSIONS / session_id).exists():
            raise acp.RequestError.resource_not_found(session_id)
        self.repeating = asyncio.create_task(self._repeat(session_id))  # gemini does not wait for its end, either
        return LoadSessionResponse()

    async def _repeat(self, session_id: str) -> None:
        for line in (SESSIONS / session_id).read_text().splitlines() * 20:
            await self.client.session_update(session_id, acp.update_user_message_text(json.loads(line)))
            await self.client.session_update(session_id, acp.update_agent_message_text("an answer of the past"))

    async def prompt(self, prompt: list[Any], session_id: str, **_: Any) -> PromptResponse:
        text = prompt[0].text
        with open(Path(os.environ["HOME"], "turns"), "a+") as file:
            file.write(json.dumps({"session": session_id, "prompt": text}) + "\n")
            file.seek(0)
            number = len(file.readlines())
        with open(SESSIONS / session_id, "a") as file:
            file.write(json.dumps(text) + "\n")
        turn = self.turns[session_id] = TurnOfAgent(self.client, session_id, text, number)
        acting = asyncio.ensure_future(self.act(turn))
        cancelled = asyncio.ensure_future(turn.cancelled.wait())
        await asyncio.wait({acting, cancelled}, return_when=asyncio.FIRST_COMPLETED)
        if acting.done():
            acting.result()
        return PromptResponse(stop_reason="cancelled" if turn.cancelled.is_set() else turn.stop, usage=turn.usage)

    async def cancel(self, session_id: str, **_: Any) -> None:
        Path(os.environ["HOME"], "cancelled").write_text(session_id)
        self.turns[session_id].cancelled.set()

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return {}

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None: ...


def main() -> None:
    known: dict[str, Any] = {"acp": acp, "asyncio": asyncio, "json": json, "os": os, "sys": sys, "Path": Path}
    body = textwrap.indent(Path(sys.argv[1]).read_text(), "    ")
    exec(f"async def act(turn):\n{body}\n", known)
    asyncio.run(acp.run_agent(AgentOfTests(known["act"])))


if __name__ == "__main__":
    main()
