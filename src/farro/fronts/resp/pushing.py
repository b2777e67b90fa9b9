"""Pushes of all connections, taken to the store together: while one batch is on its way the next one gathers.

What may be pushed lives in operations.memo; the command lives in commands.queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from farro.operations.memo import Push

BATCH = 128  # pushes
BATCH_BYTES = 4 << 20
FLIGHTS = 2  # one is checked while the other one is written

Answer = list[str] | Exception


class Pushing:
    def __init__(
        self, push_all: Callable[[Sequence[Push]], Awaitable[Sequence[Answer]]], spawn: Callable[[Any], object]
    ) -> None:
        self._push_all = push_all
        self._spawn = spawn
        self._pending: list[tuple[Push, asyncio.Future[list[str]]]] = []
        self._flights = 0

    async def push(self, asked: Push) -> list[str]:
        future: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._pending.append((asked, future))
        self._depart()
        return await future

    def _depart(self) -> None:
        if self._pending and self._flights < FLIGHTS:
            self._flights += 1
            self._spawn(self._fly(self._batch()))

    def _batch(self) -> list[tuple[Push, asyncio.Future[list[str]]]]:
        count = size = 0
        for asked, _ in self._pending[:BATCH]:
            size += sum(map(len, asked.texts))
            if count and size > BATCH_BYTES:
                break
            count += 1
        batch, self._pending = self._pending[:count], self._pending[count:]
        return batch

    async def _fly(self, batch: list[tuple[Push, asyncio.Future[list[str]]]]) -> None:
        answers: Sequence[Answer]
        try:
            answers = await self._push_all([asked for asked, _ in batch])
        except Exception as error:  # noqa: BLE001 - each of them is told
            answers = [error] * len(batch)
        finally:
            self._flights -= 1
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        self._depart()
