"""Make one turn with an agent: begin or load its session, tell it the prompt, and answer what it asks meanwhile.

Neither files nor terminals are offered to the agent: its own tools work inside the sandbox, and what this process did
for it would not. gemini 0.61 cannot even make a new file through its client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

from acp.connection import Connection
from acp.exceptions import RequestError
from acp.meta import AGENT_METHODS, CLIENT_METHODS, PROTOCOL_VERSION

from farro.agents.acp.pipes import AgentPipes
from farro.agents.acp.turn_reader import TurnReader
from farro.agents.programs.output import Event, at, number_at, objects_at, text_at
from farro.lazy_dataclass import dataclass

_CANCEL_S = 0.5  # how long an agent that was told to stop may take to say so
_AUTH_REQUIRED = -32000
_OPTIONS = {True: ("allow_once", "allow_always"), False: ("reject_once", "reject_always")}  # the first one offered


@dataclass(frozen=True, kw_only=True)
class TurnPlan:
    """What is wanted of a turn."""

    cwd: str
    prompt: str  # for a new session
    session_id: str | None = None  # to load, if the agent can
    news: str = ""  # for that session
    permit: Callable[[Event], Awaitable[bool]]  # whether a tool may be used


class AgentTurn:
    """One turn. `run` is called once, on an event loop; other threads may read the public members."""

    def __init__(self, plan: TurnPlan, reader: TurnReader) -> None:
        self.session_id: str | None = None
        self.loaded = False
        self.pipes = AgentPipes()
        self._plan = plan
        self._reader = reader
        self._begun = False  # what the agent reports belongs to this turn, and is no history
        self._repeated = 0  # reports before that

    async def run(self, stdin: int, stdout: int) -> None:
        """Make the turn; the reader knows how it ended. Cancelled, it tells the agent to stop."""
        await self.pipes.open(stdin, stdout)
        connection = Connection(self._serve, self.pipes)
        try:
            await self._begin(connection)
            await self._tell(connection)
        except RequestError as error:
            self._reader.take_error(error.code, str(error), error.data)
        except ConnectionError:  # the agent has ended, and its exit code says how
            pass
        finally:
            await connection.close()

    async def _begin(self, connection: Connection) -> None:
        able = await connection.send_request(
            AGENT_METHODS["initialize"],
            {
                "protocolVersion": PROTOCOL_VERSION,
                "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
                "clientInfo": {"name": "farro", "version": version("farro")},
            },
        )
        if number_at(able, "protocolVersion") != PROTOCOL_VERSION:
            raise RequestError(0, f"speaks another version of the protocol than {PROTOCOL_VERSION}")
        where = {"cwd": self._plan.cwd, "mcpServers": []}
        if self._plan.session_id is not None and at(able, "agentCapabilities", "loadSession") is True:
            with contextlib.suppress(RequestError):  # it does not find the session any more
                await connection.send_request(
                    AGENT_METHODS["session_load"], {**where, "sessionId": self._plan.session_id}
                )
                await self._let_it_repeat(connection)
                self.session_id, self.loaded = self._plan.session_id, True
                return
        try:
            made = await connection.send_request(AGENT_METHODS["session_new"], where)
        except RequestError as error:
            method = _sign_in(able)
            if error.code != _AUTH_REQUIRED or method is None:
                raise
            await connection.send_request(AGENT_METHODS["authenticate"], {"methodId": method})
            made = await connection.send_request(AGENT_METHODS["session_new"], where)
        self.session_id = text_at(made, "sessionId")

    async def _let_it_repeat(self, connection: Connection) -> None:
        """Return when the agent has repeated the history of a loaded session. It should have done so before it answered
        the request; gemini goes on afterwards, between other requests."""
        seen = -1
        while seen != self._repeated:
            seen = self._repeated
            with contextlib.suppress(RequestError):  # it does not know this method, and says so
                await connection.send_request("_farro/repeated", {})

    async def _tell(self, connection: Connection) -> None:
        text = self._plan.news if self.loaded else self._plan.prompt
        session = {"sessionId": self.session_id}
        self._begun = True
        prompt = {**session, "prompt": [{"type": "text", "text": text}]}
        asked = asyncio.ensure_future(connection.send_request(AGENT_METHODS["session_prompt"], prompt))
        asked.add_done_callback(lambda task: task.cancelled() or task.exception())  # else asyncio complains on stderr
        try:
            response = await asyncio.shield(asked)
        except asyncio.CancelledError:
            with contextlib.suppress(ConnectionError):
                await connection.send_notification(AGENT_METHODS["session_cancel"], session)
            await asyncio.wait({asked}, timeout=_CANCEL_S)
            raise
        self._reader.take_end(response if isinstance(response, dict) else {})

    async def _serve(self, method: str, params: Any, is_notification: bool) -> Any:
        """Answer a request of the agent. Any other exception than RequestError would be written to stderr."""
        try:
            return await self._answer(method, params)
        except RequestError:
            if is_notification:
                return None
            raise
        except Exception as error:  # noqa: BLE001 - as said above
            raise RequestError(-32603, f"internal error: {type(error).__name__}") from None

    async def _answer(self, method: str, params: Any) -> Any:
        if method == CLIENT_METHODS["session_update"]:
            update = at(params, "update")
            if not self._begun:
                self._repeated += 1
            elif isinstance(update, dict):
                self._reader.take(update)
            return None
        if method == CLIENT_METHODS["session_request_permission"]:
            return {"outcome": await self._decide(params)}
        raise RequestError.method_not_found(str(method))

    async def _decide(self, params: Any) -> Event:
        tool = at(params, "toolCall")
        known = self._reader.known(tool if isinstance(tool, dict) else {})
        allowed = await self._plan.permit(known)
        if not allowed:
            self._reader.deny(text_at(known, "title") or "a tool")
        offered = {text_at(option, "kind"): text_at(option, "optionId") for option in objects_at(params, "options")}
        chosen = next((offered[kind] for kind in _OPTIONS[allowed] if kind in offered), None)
        return {"outcome": "cancelled"} if chosen is None else {"outcome": "selected", "optionId": chosen}


def _sign_in(able: Any) -> str | None:
    """Return the method that signs in with a key of the environment; the others ask a person, in a browser."""
    ids = [text_at(method, "id") for method in objects_at(able, "authMethods")]
    return next((one for one in ids if "api-key" in one), None)
