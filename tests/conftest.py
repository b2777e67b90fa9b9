"""Fixtures and rules for every suite: no network, repeatable properties, a fast scratch folder, figures."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis.configuration import set_hypothesis_home_dir
from pytest_socket import socket_allow_hosts

import measured
from docker_rig import ContainerEngine, start_dockerd
from servers import RabbitServer, RedisServer
from support import ROOT, long_form, torture, write_figure

# Before the first import of farro. `make test` names the folder.
BRANCHES = os.environ.get("FARRO_BRANCHES")
write_branches = measured.start(BRANCHES) if BRANCHES else None

LONG_FORMS = ("torture", "engines", "kubernetes")  # markers of tests with a make target of their own

# A test run that is itself a step of a farro job must not reach that job.
for _name in ("FARRO_ROOT", "FARRO_JOB", "FARRO_STEP", "FARRO_CLAIM", "FARRO_AGENT"):
    os.environ.pop(_name, None)
# Nor find the root of whoever runs it, where no other is.
os.environ["XDG_STATE_HOME"] = os.path.join(ROOT, ".build", "no-state")

# A shell starts what runs in its background with Ctrl-C ignored, and every program of a test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `default` finds the same examples in every run: a red run is red again on the next machine. `torture` looks for new
# ones. Neither has a deadline (a busy machine is not a bug) nor a database (a run must not depend on the last one).
hypothesis.settings.register_profile(
    "default",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "torture",
    hypothesis.settings.get_profile("default"),
    derandomize=False,
    max_examples=2_000 * max(torture(), 1),
)
hypothesis.settings.load_profile("torture" if torture() else "default")
set_hypothesis_home_dir(os.path.join(ROOT, ".build", "hypothesis"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of long forms unless requested. They are not skipped: a skip is a failure in CI."""
    unwanted = [name for name in LONG_FORMS if not (long_form(name) or (name == "torture" and torture()))]
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in unwanted)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Freeze the garbage collector: else every full collection scans all imported modules and collected tests again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    if write_branches:
        write_branches()


# First, so that fixtures are held to it as well; pytest-socket itself lifts it after each test.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("linux") and sys.platform != "linux":
        pytest.skip("needs Linux")
    socket_allow_hosts(["127.0.0.1", "::1"], allow_unix_socket=True)


@pytest.fixture
def shm(tmp_path: Path) -> Iterator[Path]:
    """A fresh folder in memory (tmpfs) where there is one, else `tmp_path`; removed afterwards.

    For suites that make and break thousands of trees. Not for proofs about power loss: tmpfs has no disk to lose.
    """
    if not (os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK | os.X_OK)):
        yield tmp_path
        return
    folder = tempfile.mkdtemp(prefix="farro-test-", dir="/dev/shm")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def figure() -> Callable[..., None]:
    """Return `figure(name, value, unit="")`, which records a number to print after the run."""
    return write_figure


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Share one server between all tests of this process; each test uses a name of its own in it."""
    server = RedisServer(folder=tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def rabbit_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    """Share one server between all tests of this process; each test removes its queues."""
    server = RabbitServer(folder=tmp_path_factory.mktemp("rabbit")).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def dockerd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerEngine]:
    """Share one dockerd between all tests of this process; each test removes its containers."""
    engine = start_dockerd(tmp_path_factory.mktemp("dockerd"))
    yield engine
    engine.stop()
