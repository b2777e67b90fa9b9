"""An answer that comes later, told in the call that brings it: for commands that every job needs.

Commands that wait in more than one place are coroutines instead; how both are awaited lives in connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Later:
    """Answered once: with a value, or with the exception that says what went wrong."""

    __slots__ = ("_then", "answered", "value")

    def __init__(self) -> None:
        self._then: Callable[[Any], None] | None = None
        self.answered = False  # before anybody asked: `value` is the answer
        self.value: Any = None

    def answer(self, value: Any) -> None:
        if self._then is not None:
            self._then(value)
        else:
            self.answered, self.value = True, value

    def then(self, told: Callable[[Any], None]) -> None:
        """Who is told; at once if the answer is there."""
        if self.answered:
            told(self.value)
        else:
            self._then = told

    async def wait(self) -> Any:
        """For a coroutine: the value, or the exception raised."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def told(value: Any) -> None:
            if future.done():
                return
            if isinstance(value, Exception):
                future.set_exception(value)
            else:
                future.set_result(value)

        self.then(told)
        return await future
