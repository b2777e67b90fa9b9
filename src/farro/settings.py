"""Read a provider's settings: the documented import of `farro.config.settings`."""

from farro.config.settings import *  # noqa: F403
