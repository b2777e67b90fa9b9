"""Make a fresh root for each test; end every process that the test started."""

from flows.roots import empty, farro, fresh_root  # noqa: F401 - fixtures
