"""Register a kind of provider: the documented import of `farro.agents.providers.registry`."""

from farro.agents.providers.registry import *  # noqa: F403
