"""The contract of batches of jobs, for every adapter."""

from farro.testing.store_batches import *  # noqa: F403 - the suite
