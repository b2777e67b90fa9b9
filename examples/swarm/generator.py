"""Makes requests, `rate` a second. A new rate holds at once: `farro swarm config generator demo-generator rate=50`."""

from __future__ import annotations

import itertools
import time
import uuid
from dataclasses import dataclass
from typing import Any

from farro.component import Component


@dataclass(frozen=True)
class Config:
    rate: float = 10.0
    path: str = "/orders"


bee = Component("generator", config=Config)
numbers = itertools.count(1)


@bee.source(rate=10)
def make(config: Config) -> dict[str, Any]:
    return {"id": str(uuid.uuid4()), "path": f"{config.path}/{next(numbers)}", "made_at": time.time()}


if __name__ == "__main__":
    bee.run()
