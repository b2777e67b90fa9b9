"""The SDK for members of a swarm: a decorated function becomes a component with a control plane, health and status.

What a swarm is lives in swarm; who starts components lives in the services.

    from farro.component import Component

    bee = Component("moderator")

    @bee.transform
    def moderate(item: dict) -> dict | None:      # what it returns goes on; a list: each of them; None: nothing
        return item if item["good"] else None

    if __name__ == "__main__":
        bee.run()
"""

from farro.swarm.component.declare import Component as Component
from farro.swarm.component.declare import Drop as Drop
