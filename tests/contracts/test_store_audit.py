"""The contract of the audit log, for every adapter."""

from farro.testing.store_audit import *  # noqa: F403 - the suite
