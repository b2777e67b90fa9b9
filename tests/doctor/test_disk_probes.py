"""Probe a filesystem: a good one passes, and a missing guarantee is reported."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farro.doctor import disk_checks
from farro.doctor.checks import Finding
from farro.host import fs

pytestmark = pytest.mark.linux


class Bad:
    """A filesystem on which one call behaves differently."""

    def __init__(self, op: str, instead: Callable[..., Any]) -> None:
        self.op, self.instead = op, instead

    def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        return self.instead(*args) if op == self.op else call(*args)

    def look(self, op: str, path: str) -> None: ...


def refusing(code: int) -> Callable[..., Any]:
    def refuse(*args: Any) -> Any:
        raise OSError(code, os.strerror(code), str(args[0]))

    return refuse


def overwriting(target: str, path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)
    os.symlink(target, path)


def probed(folder: Path) -> dict[str, Finding]:
    return {check.id: check.look() for check in disk_checks.probes(str(folder))}


def test_a_good_filesystem_passes_and_nothing_is_left_behind(tmp_path: Path) -> None:
    assert {name: found.verdict for name, found in probed(tmp_path).items()} == dict.fromkeys(
        ("rename-exclusive", "link-exclusive", "lease", "inotify", "sync"), "ok"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("op", "instead", "check", "words"),
    [
        ("move", os.rename, "rename-exclusive", "a rename replaces an empty folder"),
        ("move", refusing(errno.EINVAL), "rename-exclusive", "fails (Invalid argument)"),
        ("symlink", overwriting, "link-exclusive", "a link is made twice"),
        ("symlink", refusing(errno.EPERM), "link-exclusive", "cannot be made"),
        ("fsync", refusing(errno.EIO), "sync", "a sync failed"),
    ],
)
def test_a_missing_guarantee_of_a_filesystem_is_reported(
    op: str, instead: Callable[..., Any], check: str, words: str, tmp_path: Path
) -> None:
    fs.set_seam(Bad(op, instead))
    try:
        found = probed(tmp_path)[check]
    finally:
        fs.set_seam(None)
    assert found.verdict == "failed"
    assert words in found.found
    assert found.repair
    assert list(tmp_path.iterdir()) == []
