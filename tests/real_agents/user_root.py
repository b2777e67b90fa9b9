"""A root whose jobs are worked by an ordinary user. The tests run as root, whose Python other users cannot start."""

from __future__ import annotations

import ctypes
import importlib
import os
import pkgutil
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import farro
from agents.agent_root import AgentRoot

NOBODY = 65534
_LIBRARIES = ("aiohttp", "anyio", "concurrent.futures.thread", "encodings.idna", "genai_prices", "multidict", "yarl")


@contextmanager
def public_folder() -> Iterator[Path]:
    """Make a folder that other users can reach, unlike pytest's own."""
    made = Path(tempfile.mkdtemp(prefix="farro-agents-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


class UserRoot(AgentRoot):
    """One root. Every process that works in it belongs to an ordinary user; the test itself only looks."""

    def enqueue(self, *args: Any, **changes: Any) -> str:
        self._as_user(lambda: super(UserRoot, self).enqueue(*args, **changes))
        return str(args[0] if args else "one")

    def work(self, *args: Any, **more: Any) -> list[Any]:
        self._as_user(lambda: super(UserRoot, self).work(*args, **more))
        return []

    def manage(self, **more: Any) -> list[Any]:
        self._as_user(lambda: super(UserRoot, self).manage(**more))
        return []

    def _as_user(self, act: Callable[[], object]) -> None:
        _import_everything()
        for path in (self.path, *self.path.rglob("*")):
            os.lchown(path, NOBODY, NOBODY)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _become(NOBODY)
                act()
                code = 0
            except BaseException:
                traceback.print_exc(file=sys.__stderr__)
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # its files in /proc belong to its user again


@cache
def _import_everything() -> None:
    """Import what a job may need: another user cannot read the folder of root's Python."""
    for module in pkgutil.walk_packages(farro.__path__, "farro."):
        if ".testing" not in module.name and ".demo" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in _LIBRARIES:
        importlib.import_module(name)
