"""Components for the tests of swarms, as programs by role: `python -m swarm.bees ROLE`."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from farro.swarm.component import Component

role = sys.argv[1]
bee: Component[Any] = Component(role)

if role == "generator":

    @bee.source(rate=50)
    def make() -> dict[str, float]:
        return {"at": time.time()}

elif role == "processor":

    @bee.transform
    def work(item: Any) -> Any:
        return {**item, "by": os.getpid()}

elif role == "sink":

    @bee.sink
    def keep(item: Any) -> None:
        with open(os.environ["SINK"], "a") as file:
            file.write(f"{item}\n")

elif role == "late":
    time.sleep(3600)
elif role == "dies":
    sys.exit(3)

bee.run()
