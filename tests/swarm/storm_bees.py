"""Components that lose nothing, for the random kills, as programs by role: `python -m swarm.storm_bees ROLE`."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from farro.swarm.component import Component

role = sys.argv[1]
folder = os.environ["STORM"]
bee: Component[Any] = Component(role, prefetch=16)

if role == "numbers":
    # The next number is in a file. The source is called again when its number was accepted: then the next follows.
    # After a crash, when it is unknown whether the last number was accepted, the last one is made again.
    path = Path(folder, "next")
    made = False

    @bee.source(rate=100)
    def make() -> dict[str, int]:
        global made
        number = int(path.read_text()) if path.exists() else 0
        if made:
            number += 1
            path.with_suffix(".new").write_text(str(number))
            path.with_suffix(".new").replace(path)
        made = True
        return {"n": number}

elif role == "pass":
    chance = random.Random()

    @bee.transform
    async def work(item: Any) -> Any:
        await asyncio.sleep(chance.random() * 0.4)  # so that a kill finds some items in progress
        return item

elif role == "record":

    @bee.sink
    def keep(item: Any) -> None:
        time.sleep(0.002)
        fd = os.open(f"{folder}/arrived", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{item['n']}\n".encode())
        os.close(fd)


bee.run()
