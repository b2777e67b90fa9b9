"""The SDK for components of a swarm: a decorated function becomes a component with control, health and status.

from farro.component import Component

bee = Component("moderator")

@bee.transform
def moderate(item: dict) -> dict | None:      # what it returns goes on; of a list each item; None drops it
    return item if item["good"] else None

if __name__ == "__main__":
    bee.run()
"""

from farro.swarm.component.declare import Component as Component
from farro.swarm.component.declare import Drop as Drop
