"""Try a component without a swarm: the documented import of `farro.swarm.component.testing`."""

from farro.swarm.component.testing import *  # noqa: F403
