"""Lets `per_second` requests through, and puts those aside that nobody could send."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from farro.component import Component, Drop


@dataclass(frozen=True)
class Config:
    per_second: float = 100.0


bee = Component("moderator", config=Config)
_next_s = 0.0  # when the next may go


@bee.transform
async def moderate(request: Any, config: Config) -> Any:
    global _next_s
    if not isinstance(request, dict) or not str(request.get("path", "")).startswith("/"):
        raise Drop("it has no path")  # a dead letter at once: another try would not help
    now_s = time.monotonic()
    _next_s = max(now_s, _next_s) + 1 / max(0.001, config.per_second)
    await asyncio.sleep(_next_s - now_s)
    return request


if __name__ == "__main__":
    bee.run()
