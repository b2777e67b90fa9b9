"""Write a component of a swarm: the documented import of `farro.swarm.component`."""

from farro.swarm.component import Component as Component
from farro.swarm.component import Drop as Drop
