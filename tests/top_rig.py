"""A `farro top` for tests: the screen over a real root, driven by keys, and read as text.

The fixtures are in tui/conftest.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from textual.pilot import Pilot

from farro.app import App
from farro.config import reader
from farro.host.clock import SystemClock
from farro.queue.admission import Gate
from farro.store.port import Store
from farro.tui.actions import ActionContext
from farro.tui.app import TopApp
from farro.tui.queries import Queries
from flows.program import PATIENCE_S, Program

Size = tuple[int, int]


class Screen:
    """What a person sees, and presses."""

    def __init__(self, pilot: Pilot[None]) -> None:
        self.pilot = pilot
        self.app = pilot.app

    @property
    def text(self) -> str:
        return "\n".join(strip.text.rstrip() for strip in self.app.screen._compositor.render_strips())

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, what: str | Callable[[str], object]) -> str:
        """Wait until the screen says so."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not (what in self.text if isinstance(what, str) else what(self.text)):
                    await self.pilot.pause(0.05)
        except TimeoutError:
            raise AssertionError(f"the screen never said {what}:\n{self.text}") from None
        return self.text


class Top:
    """One root, and the screen over it."""

    def __init__(self, program: Program) -> None:
        self.program = program

    @asynccontextmanager
    async def screen(
        self, size: Size = (80, 24), *, store: Callable[[Store], Store] = lambda made: made
    ) -> AsyncIterator[Screen]:
        root = str(self.program.path)
        settings, clock = reader.with_store(reader.load(root)), SystemClock()
        opened = App().open_store(root, settings, brief=True)
        used = store(opened)
        hands = ActionContext(
            store=used,
            settings=settings,
            gate=Gate.of(settings, user="tester", force=False),
            clock=clock,
            by="top-tester",
        )
        top = TopApp(Queries(used, settings, clock), hands)
        try:
            async with asyncio.timeout(4 * PATIENCE_S), top.run_test(size=size, notifications=True) as pilot:
                yield Screen(pilot)
        finally:
            with contextlib.suppress(OSError):
                opened.close()

    def look(self, what: Callable[[Screen], Awaitable[None]], size: Size = (80, 24)) -> None:
        async def run() -> None:
            async with self.screen(size) as screen:
                await what(screen)

        asyncio.run(run())
