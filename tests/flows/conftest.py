"""A fresh root with the program in it; whatever a test started is ended after it."""

from flows.roots import empty, farro, fresh_root  # noqa: F401 - fixtures
