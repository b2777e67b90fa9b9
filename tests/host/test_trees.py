"""Count subfolders without reading the folder, with the same result on every available filesystem."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crash import seams
from farro.host import trees
from support import need


def filled(folder: Path) -> Path:
    """Create three folders, one of them hidden, and entries that are no folders."""
    home = folder / "above" / "home"
    for name in ("a", "b", ".c"):
        (home / name).mkdir(parents=True)
    (home / "file").write_text("x")
    os.symlink("a", home / "link")
    return home


@pytest.fixture(params=["at once", "in the background", "without a home"])
def removal(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home of folders that are being removed."""
    home = tmp_path / "home"
    if request.param != "without a home":
        home.mkdir()
    background = None if request.param == "at once" else trees.BackgroundRemoval(str(home))
    monkeypatch.setattr(trees, "_background", background)
    return home


def test_an_empty_folder_is_removed_at_once_or_in_the_background(removal: Path, tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    assert trees.remove_or_seal(f"{tmp_path}/tasks", f"{tmp_path}/tasks.sealed")
    assert not any(name.startswith("tasks") for name in os.listdir(tmp_path))
    if trees._background is not None:
        trees._background.finish()
    assert not removal.exists() or os.listdir(removal) == []


@pytest.mark.parametrize("taken", [False, True])
def test_a_folder_with_content_is_sealed(removal: Path, tmp_path: Path, taken: bool) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "one").touch()
    if taken:
        (tmp_path / "tasks.sealed").mkdir()
        with pytest.raises(FileExistsError):
            trees.remove_or_seal(f"{tmp_path}/tasks", f"{tmp_path}/tasks.sealed")
        assert os.listdir(tmp_path / "tasks") == ["one"]
    else:
        assert not trees.remove_or_seal(f"{tmp_path}/tasks", f"{tmp_path}/tasks.sealed")
        assert os.listdir(tmp_path / "tasks.sealed") == ["one"]


def test_a_link_to_a_folder_is_not_removed(removal: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "tasks").symlink_to("other")
    with pytest.raises(NotADirectoryError):
        trees.remove_or_seal(f"{tmp_path}/tasks", f"{tmp_path}/tasks.sealed")
    assert (tmp_path / "other").is_dir()


def agree(folder: Path) -> None:
    trees._counted.clear()
    home = filled(folder)
    assert trees.count_subdirectories(str(home)) == 3
    (home / "d").mkdir()
    assert trees.count_subdirectories(str(home)) == 4
    for name in ("a", "b", ".c", "d"):
        (home / name).rmdir()
    assert trees.count_subdirectories(str(home)) == 0
    assert trees.count_subdirectories(str(home / "absent")) == 0


def test_folders_are_counted_on_the_disk(tmp_path: Path) -> None:
    agree(tmp_path)


def test_folders_are_counted_in_memory(shm: Path) -> None:
    agree(shm)


def test_a_filesystem_that_keeps_count_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = filled(tmp_path)
    need(os.lstat(home).st_nlink == 5, "this filesystem does not count folders")
    trees._counted.clear()
    trees.count_subdirectories(str(home))

    def read(path: str) -> int:
        raise AssertionError("read")

    monkeypatch.setattr(trees, "_read_directories", read)
    assert trees.count_subdirectories(str(home)) == 3


def test_a_filesystem_that_counts_wrongly_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some filesystems report two links for every folder, some count files, too."""
    home = filled(tmp_path)
    real = os.lstat

    for links in (2, 7):

        def lied(path: str, links: int = links) -> os.stat_result:
            return os.stat_result([*real(path)[:3], links, *real(path)[4:]])

        trees._counted.clear()
        monkeypatch.setattr(os, "lstat", lied)
        assert trees.count_subdirectories(str(home)) == 3
    trees._counted.clear()


def test_a_count_passes_the_seam(tmp_path: Path) -> None:
    """A decision depends on the count, so tests must be able to act before it (at the seam)."""
    seam = seams.Errno(1, 5, after=False)
    with seams.placed(seam):
        trees.count_subdirectories(str(tmp_path))


@pytest.mark.linux
@pytest.mark.parametrize("kind", ["btrfs", "xfs", "ext4"])
def test_folders_are_counted_on_other_filesystems(kind: str, shm: Path) -> None:
    need(os.geteuid() == 0, "mounting needs root")
    need(os.path.exists("/dev/loop-control"), "no loop devices")
    maker = need(f"mkfs.{kind}")
    with open("/proc/filesystems", encoding="utf-8") as file:
        need(kind in file.read().split(), f"this kernel has no {kind}")
    image, mount = shm / "image", shm / "mount"
    mount.mkdir()
    with open(image, "wb") as file:
        file.truncate(400 << 20)
    subprocess.run([maker, "-q", str(image)], check=True, capture_output=True)
    script = f"mount -o loop '{image}' '{mount}' && exec '{sys.executable}' -c \"$0\" '{mount}'"
    code = (
        "import sys; from pathlib import Path; from host.test_trees import agree; "
        "home = Path(sys.argv[1], 'x'); home.mkdir(); agree(home)"
    )
    inside = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, code]
    paths = [str(Path(__file__).parents[1])]
    done = subprocess.run(
        inside, check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(paths)}
    )
    assert done.returncode == 0, done.stderr


def test_many_empty_folders_are_removed_by_threads(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    removal = trees.BackgroundRemoval(str(home))
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        removal.remove(f"{tmp_path}/{number}")
    removal._threads.shutdown()
    assert len(os.listdir(home)) == 4, "a thread gets eight at a time"
    removal.finish()
    assert os.listdir(home) == []
