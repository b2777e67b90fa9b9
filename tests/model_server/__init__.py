"""A scripted model server on loopback for tests: coding agents and the gateway talk to it as to the real services.

    with ModelServer() as server:
        ...                               # a program asks server.base_url: "… SCENARIO: edit"
    assert len(server.model_requests) == 2
    assert server.usage == Usage(...)     # what the server would bill

It speaks Anthropic Messages, OpenAI Responses and chat completions, Gemini and its Code Assist, whole or streamed.
The prompt picks the scenario (`SCENARIO: usage-limit 60`), and the number of replies since then picks its turn. So the
server keeps no state: a program that is killed, started again or run beside another one changes nothing.

As a program: `PYTHONPATH=src:tests python -m model_server --help`.
"""

from model_server.conversation import Conversation, Dialect
from model_server.scenarios import (
    SCENARIOS,
    BreakOff,
    Fail,
    Hang,
    RunCommand,
    Say,
    Turn,
    WriteFile,
)
from model_server.server import ModelServer, ServedRequest

__all__ = [
    "SCENARIOS",
    "BreakOff",
    "Conversation",
    "Dialect",
    "Fail",
    "Hang",
    "ModelServer",
    "RunCommand",
    "Say",
    "ServedRequest",
    "Turn",
    "WriteFile",
]
