"""Write a provider: the documented import of `farro.agents.providers.port`."""

from farro.agents.providers.port import *  # noqa: F403
