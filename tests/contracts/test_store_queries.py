"""The contract of the Store port's queries, and of removing jobs, for every adapter."""

from farro.testing.store_queries import *  # noqa: F403 - the suite
