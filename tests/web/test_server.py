"""The server's main loop: it wakes once a second for the Date header, and at once to stop."""

from __future__ import annotations

import asyncio

import pytest
import uvicorn

from farro.web import server as serving
from http_stage import WebStage
from support import PATIENCE_S, eventually


def test_date_header_follows_the_clock(front: WebStage, monkeypatch: pytest.MonkeyPatch) -> None:
    later = "Thu, 01 Jan 2099 00:00:00 GMT"
    assert front.get("/healthz").headers["date"] != later
    monkeypatch.setattr("uvicorn.server.formatdate", lambda *args, **more: later)
    eventually(lambda: front.get("/healthz").headers["date"] == later)


def test_idle_server_sleeps_until_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "TICK_S", 3600.0)
    server = serving.QuietServer(uvicorn.Config(app=""))
    looks: list[bool] = []

    async def look(counter: int) -> bool:
        looks.append(server.should_exit)
        return server.should_exit

    monkeypatch.setattr(server, "on_tick", look)

    async def life() -> None:
        running = asyncio.create_task(server.main_loop())
        await asyncio.sleep(0.3)  # uvicorn itself would have woken three more times
        server.should_exit = True
        server.wake()
        async with asyncio.timeout(PATIENCE_S):
            await running

    asyncio.run(life())
    assert looks == [False, True]
