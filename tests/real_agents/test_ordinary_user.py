"""The real coding agents of a worker that runs as an ordinary user, on both levels of the sandbox."""

from __future__ import annotations

import ctypes
import importlib
import os
import pkgutil
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

import farro
from agents.agent_root import AgentRoot
from model_server.server import ModelServer
from real_agents.jobs import agent_root

NOBODY = 65534
LIBRARIES = ("aiohttp", "anyio", "concurrent.futures.thread", "encodings.idna", "genai_prices", "multidict", "yarl")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user; others are one already")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's own."""
    made = Path(tempfile.mkdtemp(prefix="farro-agents-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def import_everything() -> None:
    """Import what a job may need: another user cannot read the folder of root's Python."""
    for module in pkgutil.walk_packages(farro.__path__, "farro."):
        if ".testing" not in module.name and ".demo" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in LIBRARIES:
        importlib.import_module(name)


def work_as(user: int, root: AgentRoot) -> None:
    """Work one job in a process of that user."""
    for path in (root.path, *root.path.rglob("*")):
        os.lchown(path, user, user)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # its files in /proc belong to its user again
            root.work()
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("level", ["A", "B"])
@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
def test_an_ordinary_users_agent_edits(name: str, level: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_everything()
    with ModelServer(within=[str(folder)]) as server:
        root = agent_root(folder / "root", name, server, monkeypatch, config={"security": {"sandbox": level}})
        root.enqueue(rubric="SCENARIO: edit")
        work_as(NOBODY, root)
        assert root.life().error is None
        written = root.path / "src/hello.py"
        assert "def hello" in written.read_text()
        assert written.stat().st_uid == NOBODY
