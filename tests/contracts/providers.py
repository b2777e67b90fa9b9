"""The providers under the contract suite: how a test scripts each one, and what it can observe.

To test another kind, add a class to STAGES. test_provider.py checks the guarantees.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import psutil

from fake_providers import FakeProvider, Reply, answers, hangs, is_cut, raw, says
from farro.agents.providers.port import Provider, Reach, Request, Usage
from farro.agents.providers.registry import make_provider
from farro.config.settings import ProviderSettings, Secret
from farro.host.process_tree import MARKER
from farro.testing.provider import BEHAVIOURS, KEY, WORDS, ProviderStage, Trouble, request
from support import ROOT, eventually

USAGE = Usage(input_tokens=120, output_tokens=7, cache_read_tokens=64)
OVER_HTTP: dict[str, Trouble] = {
    "is_rate_limited": ("limited", True),
    "fails": ("overloaded", True),
    "refuses": ("refused", False),
    "talks_rubbish": ("failed", True),
    "breaks_off": ("cut", True),
    "hangs": ("timed_out", True),
}


class Http:
    tries = 4
    keeps_locals = True
    usage = USAGE
    behaviours = BEHAVIOURS
    troubles = OVER_HTTP

    def __init__(self, kind: str, *, stream: bool) -> None:
        self._kind = kind
        self._stream = stream
        self._server: FakeProvider | None = None
        self._made: list[Provider] = []
        make_ready(kind)

    def provider(self, *behaviours: str) -> Provider:
        self._server = FakeProvider(self._kind, *(_replies(self._kind)[behaviour] for behaviour in behaviours))
        settings = ProviderSettings(
            kind=self._kind,
            api_key=Secret("CANARY"),
            base_url=self._server.base_url,
            model=MODELS[self._kind],
            stream=self._stream,
        )
        self._made.append(make_provider("p", settings, root="/nowhere", environ={"CANARY": KEY}))
        return self._made[-1]

    def request(self, number: int, **more: Any) -> Request:
        return request(number, **more)

    def began(self) -> None:
        assert self._server is not None
        assert self._server.arrived.wait(60)

    def made(self) -> int | None:
        assert self._server is not None
        return len(self._server.asked)

    def ended(self) -> None:
        assert self._server is not None
        assert self._server.left.wait(60)

    def close(self) -> None:
        for provider in self._made:
            provider.close()
        if self._server is not None:
            self._server.close()


MODELS = {"openai": "gpt-x", "google": "gemini-x", "openrouter": "somebody/model-x"}


def _replies(kind: str) -> dict[str, Reply]:
    return {
        "answers": says(WORDS),
        "is_cut_short": says(WORDS, finish="length"),
        "is_rate_limited": answers(429, f"slow down, {KEY}", Retry_After="7"),
        "fails": answers(500, f"oh no, {KEY}"),
        "refuses": answers(401, f"nobody knows the key {KEY}"),
        "talks_rubbish": raw(200, f"<html>{KEY}".encode()),
        "breaks_off": is_cut,
        "hangs": hangs,
    }


@functools.cache
def make_ready(kind: str) -> None:
    """Import the libraries of this kind now: that takes seconds, which would count for the first call."""
    provider = make_provider(
        "p",
        ProviderSettings(kind=kind, model=MODELS[kind], base_url="http://127.0.0.1:1"),
        root="/",
        environ={},
    )
    try:
        provider.answer(request(1, timeout_s=120))
    except Exception as error:
        assert getattr(error, "kind", "") == "failed", error  # noqa: PT017 - no server listens at port 1
    finally:
        provider.close()


class Scripted:
    tries = 4
    keeps_locals = True
    usage = USAGE
    behaviours = BEHAVIOURS
    troubles = OVER_HTTP

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def provider(self, *behaviours: str) -> Provider:
        entries = [{**_ENTRIES[behaviour], "times": 1} for behaviour in behaviours]
        del entries[-1]["times"]
        (self._folder / "answers.json").write_text(json.dumps({"answers": entries}))
        settings = ProviderSettings(kind="scripted", file="answers.json", model="m")
        return make_provider("p", settings, root=str(self._folder), environ={})

    def request(self, number: int, **more: Any) -> Request:
        return request(number, **more)

    def began(self) -> None:
        pass

    def made(self) -> int | None:
        return None

    def ended(self) -> None:
        pass  # the call has only its thread

    def close(self) -> None:
        pass


_ENTRIES: dict[str, dict[str, Any]] = {
    "answers": {"answer": WORDS, "usage": {"input_tokens": 120, "output_tokens": 7, "cache_read_tokens": 64}},
    "is_cut_short": {"answer": WORDS, "whole": False},
    "is_rate_limited": {"error": {"kind": "limited", "retry_after_s": 7}},
    "fails": {"error": {"kind": "overloaded"}},
    "refuses": {"error": {"kind": "refused"}},
    "talks_rubbish": {"error": {"kind": "failed"}},
    "breaks_off": {"error": {"kind": "cut"}},
    "hangs": {"answer": WORDS, "delay_s": 3600},
}


_SAID = json.dumps({"said": WORDS})
_PROGRAMS = {
    "answers": f"echo '{_SAID}'",
    "fails": "exit 3",
    "refuses": "exit 9",
    "talks_rubbish": "echo hello",
    "breaks_off": "kill -9 $$",
    "hangs": "sleep 3600",
}


class Processes:
    """Providers that start a process for each call, in a root of their own."""

    tries = 2
    keeps_locals = False  # the environment of the process is among them

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("root", "step"):
            (folder / name).mkdir()
        (folder / "step" / "calls").mkdir()

    @property
    def _root(self) -> Path:
        return self._folder / "root"

    @property
    def _calls(self) -> Path:
        return self._folder / "step" / "calls"

    def request(self, number: int, **more: Any) -> Request:
        marker = {MARKER: f"contract-{self._folder.name}-{number}"}
        return request(number, **more, folder=str(self._calls), env=marker, reach=Reach(root=str(self._root)))

    def began(self) -> None:
        eventually(self._living, "no program was started")

    def made(self) -> int | None:
        return len(list(self._calls.iterdir()))

    def ended(self) -> None:
        assert self._living() == []

    def close(self) -> None:
        pass

    def _living(self) -> list[int]:
        return [
            process.pid
            for process in psutil.process_iter()
            if any(f"contract-{self._folder.name}-" in value for value in _environment(process))
        ]


class Cli(Processes):
    """Providers that are programs. A program learns the number of its call from its working folder."""

    usage = None
    behaviours: ClassVar[tuple[str, ...]] = tuple(_PROGRAMS)
    troubles: ClassVar[dict[str, Trouble]] = {
        "fails": ("failed", True),
        "refuses": ("failed", False),
        "talks_rubbish": ("failed", True),
        "breaks_off": ("cut", True),
        "hangs": ("timed_out", True),
    }

    def provider(self, *behaviours: str) -> Provider:
        cases = "".join(f"{number}) {_PROGRAMS[does]};;\n" for number, does in enumerate(behaviours, start=1))
        number = 'n=$(basename "$(dirname "$PWD")")'
        script = f'{number}\ncat > /dev/null\ncase "$n" in\n{cases}*) {_PROGRAMS[behaviours[-1]]};;\nesac\n'
        settings = ProviderSettings(
            kind="cli",
            command=("sh", "-c", script),
            environment=("CANARY",),
            answer_field="said",
            fatal_exit_codes=(9,),
            model="m",
        )
        return make_provider("p", settings, root=str(self._root), environ={**os.environ, "CANARY": KEY})


_TURNS = {
    "answers": f"turn.bills(56, 7, 64)\nawait turn.say({WORDS!r})",
    "is_cut_short": f"turn.stop = 'max_tokens'\nawait turn.say({WORDS!r})",
    "fails": "raise acp.RequestError(500, 'oh no, ' + os.environ['CANARY'])",
    "refuses": "raise acp.RequestError(401, 'nobody knows the key ' + os.environ['CANARY'])",
    "talks_rubbish": "turn.stop = 'max_turn_requests'",
    "breaks_off": "os.kill(os.getpid(), 9)",
    "hangs": "await asyncio.sleep(3600)",
}


class Acp(Processes):
    """ACP agents. An agent learns the number of its call from its home."""

    usage = USAGE
    behaviours: ClassVar[tuple[str, ...]] = tuple(_TURNS)
    troubles: ClassVar[dict[str, Trouble]] = {
        "fails": ("overloaded", True),
        "refuses": ("refused", False),
        "talks_rubbish": ("failed", True),
        "breaks_off": ("cut", True),
        "hangs": ("timed_out", True),
    }

    def provider(self, *behaviours: str) -> Provider:
        number = "number = int(Path(os.environ['HOME']).parts[-3])\n"
        cases = "".join(
            f"if number == {at}:\n{textwrap.indent(_TURNS[does], '    ')}\n    return\n"
            for at, does in enumerate(behaviours, start=1)
        )
        act = self._folder / "act.py"
        act.write_text(f"{number}{cases}{_TURNS[behaviours[-1]]}\n")
        settings = ProviderSettings(
            kind="acp",
            command=(sys.executable, f"{ROOT}/tests/agents/acp_agent.py", str(act)),
            environment=("CANARY",),
        )
        return make_provider("p", settings, root=str(self._root), environ={**os.environ, "CANARY": KEY})


def _environment(process: psutil.Process) -> list[str]:
    try:
        return list(process.environ().values())
    except psutil.Error:
        return []


STAGES: dict[str, Callable[[Path], ProviderStage]] = {
    **{kind: lambda _, kind=kind: Http(kind, stream=True) for kind in MODELS},
    **{f"{kind} at once": lambda _, kind=kind: Http(kind, stream=False) for kind in MODELS},
    "scripted": Scripted,
    "cli": Cli,
    "acp": Acp,
}
