"""The contract of the Store port, for every adapter."""

from farro.testing.store import *  # noqa: F403 - the suite
