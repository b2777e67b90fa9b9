"""Read /proc/self/mountinfo, and judge each kind of filesystem as a place for a root."""

from __future__ import annotations

from pathlib import Path

import pytest

from farro.doctor.checks import Verdict
from farro.doctor.disk_checks import judge, outermost
from farro.host import mounts
from farro.host.mounts import Mount

LINE = "36 35 98:0 /mnt1 /mnt/a\\040b rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"


def test_a_line_of_mountinfo_is_read_with_its_blanks_and_options() -> None:
    mount = mounts.parse(LINE)
    assert mount is not None
    assert (mount.point, mount.kind, mount.source, mount.device) == ("/mnt/a b", "ext3", "/dev/root", "98:0")
    assert {"rw", "noatime", "errors=continue"} <= mount.options


def test_a_malformed_line_of_mountinfo_is_skipped() -> None:
    assert mounts.parse("\n") is None
    assert mounts.parse("1 2 3 4 5 6 7 8\n") is None


@pytest.mark.linux
def test_the_longest_mount_point_wins_and_the_last_on_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 1:1 / / rw - ext4 /dev/a rw\n"
        "2 1 1:2 / /srv rw - nfs4 host:/x rw\n"
        "3 1 1:3 / /srv rw - xfs /dev/b rw\n"
        "4 1 1:4 / /srv/queue2 rw - btrfs /dev/c rw\n"
    )
    monkeypatch.setattr(mounts, "_MOUNTS", str(table))
    assert mounts.mount_of("/srv/queue").kind == "xfs"
    assert mounts.mount_of("/srv/queue2/jobs").kind == "btrfs"
    assert mounts.mount_of("/home").kind == "ext4"
    assert mounts.points_below("/srv") == ["/srv/queue2"]


@pytest.mark.parametrize(
    ("kind", "durable", "journal", "options", "verdict"),
    [
        ("ext4", True, True, "rw", "ok"),
        ("ext4", True, None, "rw", "ok"),
        ("ext4", True, False, "rw", "warning"),
        ("ext4", False, False, "rw", "ok"),
        ("ext4", True, True, "nobarrier", "warning"),
        ("xfs", True, None, "rw", "ok"),
        ("btrfs", True, None, "rw", "ok"),
        ("tmpfs", True, None, "rw", "warning"),
        ("tmpfs", False, None, "rw", "ok"),
        ("overlay", True, None, "rw", "warning"),
        ("zfs", True, None, "rw", "warning"),
        ("zfs", False, None, "rw", "warning"),
        ("", True, None, "rw", "warning"),
        ("nfs4", True, None, "rw", "failed"),
        ("cifs", False, None, "rw", "failed"),
        ("9p", True, None, "rw", "failed"),
        ("fuse.sshfs", True, None, "rw", "failed"),
        ("fuseblk", False, None, "rw", "failed"),
    ],
)
def test_each_kind_of_filesystem_is_judged(
    kind: str, durable: bool, journal: bool | None, options: str, verdict: Verdict
) -> None:
    mount = Mount(point="/srv", kind=kind, source="/dev/x", options=frozenset({options}))
    found = judge(mount, "/srv/queue", "/srv/queue/agents-config.json", durable, lambda _: journal)
    assert found.verdict == verdict
    assert (found.repair == ()) is (verdict == "ok")


def test_of_nested_folders_only_the_outermost_is_mounted() -> None:
    assert outermost(["agents/A", "agents/A/incoming", "agents/B/incoming"]) == ["agents/A", "agents/B/incoming"]
