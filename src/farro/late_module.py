"""Import a module of a package when one of its names is first used.

A command uses few of the operations of a store, and importing them all takes 10 ms of CPU time. A daemon loads them all
when it starts: it must not need a file descriptor, or memory for code, while it handles a failure.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # not imported from typing, which is slow to import
if TYPE_CHECKING:
    from typing import Any


class LateModule:
    """Stand for a module in the namespace of its package. Importing the module puts it in the place of this object."""

    def __init__(self, name: str) -> None:
        self.__name__ = name  # the only name that it has itself

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)
