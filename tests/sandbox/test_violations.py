"""Detect violations by comparing the tree, and by the error output of a failed process."""

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
def test_a_touched_file_is_reported(root: Path, change: str, only_attributes: bool) -> None:
    assert told(root, lambda: CHANGES[change](root / "src/file"), only_attributes=only_attributes) == ["src/file"]


def test_a_touched_folder_is_reported(root: Path) -> None:
    assert told(root, lambda: (root / "src").chmod(0o700), only_attributes=True) == ["src"]


WRITES: dict[str, Callable[[Path], object]] = {
    "write": lambda root: (root / "src/file").write_text("other"),
    "create": lambda root: (root / "src/new").write_text("other"),
    "unlink": lambda root: (root / "src/file").unlink(),
    "replace": lambda root: ((root / "src/new").write_text("x"), os.replace(root / "src/new", root / "src/file")),
}


@pytest.mark.parametrize("write", WRITES)
def test_writes_by_others_are_ignored_where_the_kernel_confines_writes(root: Path, write: str) -> None:
    assert told(root, lambda: WRITES[write](root), only_attributes=True) == []


@pytest.mark.parametrize("write", WRITES)
def test_every_write_is_reported_where_the_kernel_confines_nothing(root: Path, write: str) -> None:
    assert told(root, lambda: WRITES[write](root), only_attributes=False)


@pytest.mark.parametrize("only_attributes", [True, False])
def test_changed_modes_of_farros_folders_are_reported_and_its_own_writes_are_not(
    root: Path, only_attributes: bool
) -> None:
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


def test_changed_modes_in_the_homes_of_agents_programs_are_not_reported(root: Path) -> None:
    (home := root / "jobs/.homes/job/SeniorEngineer/1/home").mkdir(parents=True)
    assert told(root, lambda: home.chmod(0o500), only_attributes=True) == []


@pytest.mark.parametrize("folder", ["allowed", "agents/Runner", "jobs", "logs", ".git/objects"])
def test_files_created_in_allowed_or_farros_folders_are_not_reported(root: Path, folder: str) -> None:
    def change() -> None:
        (root / folder / "new").write_text("x")

    assert [name for name in told(root, change, only_attributes=False) if name != folder] == []


def test_the_comparison_of_a_tree_is_bounded(root: Path) -> None:
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
def test_the_line_that_reports_a_refusal_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "stderr").write_text(f"first\n{line}\nlast\n")
    assert violations.refused(str(tmp_path / "stderr")) == (line if SAID[line] else None)


def test_quoted_process_output_contains_no_terminal_escapes(tmp_path: Path) -> None:
    (tmp_path / "stderr").write_bytes(b"\x1b[31mPermission denied\x1b[0m \xff\n")
    said = violations.refused(str(tmp_path / "stderr"))
    assert said is not None
    assert said.isprintable()
