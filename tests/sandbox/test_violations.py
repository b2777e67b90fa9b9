"""What counts as a violation: the tree compared, and what a failed process says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from farro.sandbox import violations


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("src", "allowed", "agents/Runner", "jobs", "logs", ".git/objects"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "src/file").write_text("text")
    (tmp_path / "allowed/file").write_text("text")
    return tmp_path


def told(root: Path, change: Callable[[], object], *, only_attributes: bool) -> list[str]:
    before = violations.snapshot(str(root), [str(root / "allowed")])
    change()
    after = violations.snapshot(str(root), [str(root / "allowed")])
    return violations.changed(before, after, only_attributes=only_attributes)


CHANGES: dict[str, Callable[[Path], object]] = {
    "chmod": lambda file: file.chmod(0o600),
    "utime": lambda file: os.utime(file, (1, 1)),
    "mtime alone": lambda file: os.utime(file, ns=(file.stat().st_atime_ns, 5)),
}


@pytest.mark.parametrize("only_attributes", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_was_touched_is_told(root: Path, change: str, only_attributes: bool) -> None:
    assert told(root, lambda: CHANGES[change](root / "src/file"), only_attributes=only_attributes) == ["src/file"]


def test_a_folder_that_was_touched_is_told(root: Path) -> None:
    assert told(root, lambda: (root / "src").chmod(0o700), only_attributes=True) == ["src"]


WRITES: dict[str, Callable[[Path], object]] = {
    "write": lambda root: (root / "src/file").write_text("other"),
    "create": lambda root: (root / "src/new").write_text("other"),
    "unlink": lambda root: (root / "src/file").unlink(),
    "replace": lambda root: ((root / "src/new").write_text("x"), os.replace(root / "src/new", root / "src/file")),
}


@pytest.mark.parametrize("write", WRITES)
def test_what_others_write_is_theirs_where_the_kernel_keeps_writes(root: Path, write: str) -> None:
    assert told(root, lambda: WRITES[write](root), only_attributes=True) == []


@pytest.mark.parametrize("write", WRITES)
def test_where_it_keeps_nothing_every_write_is_told(root: Path, write: str) -> None:
    assert told(root, lambda: WRITES[write](root), only_attributes=False)


@pytest.mark.parametrize("only_attributes", [True, False])
def test_a_mode_of_farros_own_is_told_and_what_farro_does_there_is_not(root: Path, only_attributes: bool) -> None:
    (root / "jobs/one").write_text("x")

    def work() -> None:
        (root / "jobs/one").unlink()
        (root / "agents/Runner/two").write_text("y")
        os.utime(root / "agents/Runner")

    assert told(root, work, only_attributes=only_attributes) == []
    assert told(root, lambda: (root / "jobs").chmod(0o700), only_attributes=only_attributes) == ["jobs"]
    role = root / "agents/Runner"
    assert told(root, lambda: role.chmod(0o700), only_attributes=only_attributes) == ["agents/Runner"]
    (role / "job/attempts/0001").mkdir(parents=True)
    assert told(root, lambda: (role / "job/attempts/0001").chmod(0o700), only_attributes=only_attributes) == []


@pytest.mark.parametrize("folder", ["allowed", "agents/Runner", "jobs", "logs", ".git/objects"])
def test_what_is_made_in_allowed_or_farros_own_folders_is_not_told(root: Path, folder: str) -> None:
    def change() -> None:
        (root / folder / "new").write_text("x")

    assert [name for name in told(root, change, only_attributes=False) if name != folder] == []


def test_a_tree_is_looked_at_in_bounds(root: Path) -> None:
    for number in range(50):
        (root / f"src/{number}").touch()
    looked = violations.snapshot(str(root), [], limit=20)
    assert sum(not seen.own for seen in looked.values()) <= 20


SAID = {
    "touch: cannot touch 'x': Read-only file system": True,
    "sh: 1: cannot create nope: Permission denied": True,
    "PermissionError: [Errno 1] Operation not permitted: 'x'": True,
    "Error: EACCES: permission denied, open '/x'": True,
    "mv: Invalid cross-device link": True,
    "bwrap: Can't mkdir /x: Permission denied": False,
    "assertion failed": False,
    "": False,
}


@pytest.mark.parametrize("line", SAID)
def test_the_line_that_says_so_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "stderr").write_text(f"first\n{line}\nlast\n")
    assert violations.refused(str(tmp_path / "stderr")) == (line if SAID[line] else None)


def test_what_a_process_says_cannot_write_on_a_screen(tmp_path: Path) -> None:
    (tmp_path / "stderr").write_bytes(b"\x1b[31mPermission denied\x1b[0m \xff\n")
    said = violations.refused(str(tmp_path / "stderr"))
    assert said is not None
    assert said.isprintable()
