"""Resolve allowed paths on the disk: links, missing entries, refusals, and entries swapped for links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from farro.sandbox import paths, syscalls
from farro.sandbox.paths import PathRefused, allowed, pin


@pytest.fixture(params=["in one call", "by name"])
def root(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both ways to check a path give the same answer."""
    if request.param == "by name":

        def old_kernel(*_: object) -> int:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(syscalls, "open_beneath", old_kernel)
    folder = tmp_path / "root"
    for name in ("src/deep", "agents", "jobs", "logs", ".git/hooks", "lib"):
        (folder / name).mkdir(parents=True)
    (folder / "notes.md").write_text("x")
    (folder / "agents-config.json").write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    return folder


def test_paths_become_physical(root: Path) -> None:
    (root / "link").symlink_to("src")
    found = allowed(str(root), ("src/deep", "notes.md", "link/", "./src/../lib"))
    assert found.writable == tuple(str(root / name) for name in ("src/deep", "notes.md", "src", "lib"))
    assert found.made == ()


def test_a_root_behind_a_link_is_the_root(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    assert allowed(str(tmp_path / "alias"), ("src",)).writable == (str(root / "src"),)


def test_a_missing_folder_is_made_and_a_missing_file_too(root: Path) -> None:
    found = allowed(str(root), ("out/deep/", "made/report.md"))
    assert (root / "out/deep").is_dir()
    assert (root / "made/report.md").read_bytes() == b""
    assert found.made == (str(root / "made/report.md"),)


@pytest.mark.parametrize(
    "path",
    ["agents", "agents/Runner", "jobs/", "logs", "AGENTS.md", "AGENTS.MD", "agents-config.json", "agents-config.toml",
     "policy.lock.json", "schedules/x.json", "schemas", "tasks/", ".git", ".git/hooks", "src/.git/", "lib/.git/hooks"],
)  # fmt: skip
def test_paths_of_farro_and_git_are_refused_even_if_missing(root: Path, path: str) -> None:
    before = sorted(root.rglob("*"))
    with pytest.raises(PathRefused):
        allowed(str(root), (path,))
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize("path", ["..", "../elsewhere", "src/../../elsewhere", "/etc", "", " ", "a\0b"])
def test_a_path_that_leads_out_or_nowhere_is_refused(root: Path, path: str) -> None:
    with pytest.raises(PathRefused):
        allowed(str(root), (path,))


@pytest.mark.parametrize("target", ["../elsewhere", "/", "agents", ".git", "/proc/self/root"])
def test_a_link_that_leads_out_or_into_farros_own_is_refused(root: Path, target: str) -> None:
    (root / "link").symlink_to(target)
    for path in ("link", "link/", "link/new"):
        with pytest.raises(PathRefused):
            allowed(str(root), (path,))


def test_an_absolute_path_needs_permission_and_may_not_hold_the_root(root: Path, tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "elsewhere")
    with pytest.raises(PathRefused, match=r"security\.allow_absolute_paths"):
        allowed(str(root), (elsewhere,))
    assert allowed(str(root), (elsewhere,), absolute=True).writable == (elsewhere,)
    for path in (str(tmp_path), "/", str(root / "agents")):
        with pytest.raises(PathRefused):
            allowed(str(root), (path,), absolute=True)


def test_a_file_with_two_names_is_refused(root: Path, tmp_path: Path) -> None:
    os.link(root / "notes.md", tmp_path / "elsewhere/notes.md")
    with pytest.raises(PathRefused, match="2 names"):
        allowed(str(root), ("notes.md",))


def test_a_path_that_is_neither_file_nor_folder_is_refused(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(PathRefused, match="neither a file nor a folder"):
        allowed(str(root), ("pipe",))


def test_allowing_the_root_excludes_the_folders_of_farro(root: Path) -> None:
    (root / "link").symlink_to("/etc")
    found = allowed(str(root), (".",))
    assert found.writable == tuple(str(root / name) for name in ("lib", "notes.md", "src"))


def test_a_repository_inside_an_allowed_folder_is_protected(root: Path) -> None:
    (root / "src/.git").mkdir()
    (root / "lib/other/.git").mkdir(parents=True)
    found = allowed(str(root), ("src", "lib"))
    assert found.protected == (str(root / "src/.git"), str(root / "lib/other/.git"))


def test_a_path_swapped_for_a_link_is_not_opened(root: Path) -> None:
    (path,) = allowed(str(root), ("src/deep",)).writable
    os.close(pin(path))
    os.rename(root / "src", root / "moved")
    (root / "src").symlink_to("moved")
    with pytest.raises(PathRefused, match="somebody put a link on the way"):
        pin(path)
    (root / "src").unlink()
    with pytest.raises(PathRefused):
        pin(path)


def test_farros_own_names_are_those_of_a_root() -> None:
    from farro.config import reader

    assert set(reader.NAMES) <= paths.OWN


def test_nothing_is_created_behind_a_link_planted_after_the_check(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job may write in src, and replaces the folder by a link after the check."""
    check = paths._check

    def checked(*words: str) -> None:
        check(*words)
        if words[2].endswith("/file") and not (root / "src/new").is_symlink():
            (root / "src/new").rename(root / "src/old")
            (root / "src/new").symlink_to(tmp_path / "elsewhere")

    monkeypatch.setattr(paths, "_check", checked)
    with pytest.raises(PathRefused):
        allowed(str(root), ("src/new/file",))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_is_opened_where_it_lies_and_not_where_a_link_leads(root: Path) -> None:
    (root / "src/in").symlink_to("deep/file")
    (root / "src/deep/file").write_text("good")
    (root.parent / "elsewhere/file").write_text("secret")
    (root / "src/out").symlink_to(root.parent / "elsewhere")
    fd = paths.open_file(str(root), "src/in")
    assert os.read(fd, 100) == b"good"
    os.close(fd)
    for path in ("src/out/file", "src/missing", "../elsewhere/file"):
        with pytest.raises(OSError):
            paths.open_file(str(root), path)
