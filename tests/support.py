"""Helpers that the tests of every suite import: `from support import need, torture`."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from typing import TypeVar, overload

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

PATIENCE_S = 90.0  # for what happens at once on a quiet machine; never asserted, only waited for
T = TypeVar("T")
_SBIN = os.pathsep.join(("/usr/local/sbin", "/usr/sbin", "/sbin"))


@overload
def need(tool: str, reason: str = "", /) -> str: ...
@overload
def need(condition: bool, reason: str, /) -> str: ...
def need(wanted: str | bool, reason: str = "", /) -> str:
    """Skip the test, with the reason, unless a tool is installed (its path is returned) or a condition holds.

    With CI=true the test fails instead of skipping: there every part is promised, and a proof that did not run
    must not look like one that passed. Works inside a test, in a fixture and at the head of a module.
    """
    if isinstance(wanted, str):
        # An ordinary user's PATH leaves out sbin, where mkfs.* and losetup live.
        found = shutil.which(wanted, path=os.environ.get("PATH", os.defpath) + os.pathsep + _SBIN)
        if found:
            return found
        missing = f"{wanted} is not installed"
    elif wanted:
        return ""
    else:
        missing = "not possible here"
    message = f"NEEDED: {missing}" + (f": {reason}" if reason else "")
    if os.environ.get("CI") == "true":
        pytest.fail(message + " (CI=true: a missing part is a failure)", pytrace=False)
    pytest.skip(message, allow_module_level=True)


def eventually(what: Callable[[], T], because: str = "it does not come to that", patience_s: float = PATIENCE_S) -> T:
    """Wait until `what` returns a true value, and return it; fail with `because` after a timeout."""
    until_s = time.monotonic() + patience_s
    while not (found := what()):
        assert time.monotonic() < until_s, because
        time.sleep(0.01)
    return found


def torture() -> int:
    """Return 0 in a normal run, and in a long run (`make torture TORTURE=n`) the factor n by which to do more."""
    value = os.environ.get("FARRO_TORTURE", "")
    return max(int(value), 0) if value.isdigit() else int(bool(value))


def long_form(name: str) -> bool:
    """Return whether the tests marked with this name are requested: FARRO_LONG lists names, and `make NAME` sets it."""
    return name in os.environ.get("FARRO_LONG", "").split()


def write_figure(name: str, value: str | int | float, unit: str = "") -> None:
    """Add a line to the figures that are printed after the run; do nothing outside of a run."""
    path = os.environ.get("FARRO_FIGURES")
    if not path:
        return
    line = json.dumps({"name": name, "value": value, "unit": unit}) + "\n"
    # One write on an O_APPEND descriptor: the lines of parallel test processes stay whole.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)
