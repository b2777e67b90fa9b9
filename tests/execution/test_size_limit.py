"""The artifact cap bounds the size of a job's folder while it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from farro.execution import size_limit
from farro.execution.size_limit import ArtifactCap

pytestmark = pytest.mark.linux


def sparse(folder: Path) -> None:
    with (folder / "attempts/file").open("wb") as file:
        file.truncate(1 << 20)


def in_a_folder_called_as_the_snapshot(folder: Path) -> None:
    inside = folder / "attempts/0001/tmp/.snapshot"
    inside.mkdir(parents=True)
    (inside / "file").write_bytes(bytes(2000))


def in_many_small_ones(folder: Path) -> None:
    for number in range(11):
        (folder / f"attempts/{number}").write_bytes(bytes(100))


def far_down(folder: Path) -> None:
    """Deeper than the longest possible path."""
    os.chdir(folder / "attempts")
    for _ in range(40):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    Path("file").write_bytes(bytes(2000))


@pytest.mark.parametrize("way", [sparse, in_a_folder_called_as_the_snapshot, in_many_small_ones, far_down])
def test_every_file_of_a_job_counts_towards_the_artifact_cap(
    tmp_path: Path, way: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # restored after the test
    (tmp_path / "attempts").mkdir()
    assert not ArtifactCap(str(tmp_path), 1000).exceeded()
    way(tmp_path)
    assert ArtifactCap(str(tmp_path), 1000).exceeded()


def test_snapshots_do_not_count_towards_the_artifact_cap(tmp_path: Path) -> None:
    for folder in (tmp_path / ".snapshot", tmp_path / "attempts/0001/.snapshot"):
        folder.mkdir(parents=True)
        (folder / "agents-config.json").write_bytes(bytes(2000))
    assert not ArtifactCap(str(tmp_path), 1000).exceeded()


def test_too_many_empty_files_exceed_the_artifact_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_limit, "ENTRIES", 10)
    for number in range(11):
        (tmp_path / str(number)).touch()
    assert ArtifactCap(str(tmp_path), 1000).exceeded()
