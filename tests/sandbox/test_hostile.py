"""Try every known attack on both levels, as root and as an ordinary user: nothing outside changes, no process dies.

Each attack is also run without a sandbox, where it must succeed: an attack that never works would prove nothing.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator

import pytest

from farro.host import cgroup
from farro.sandbox.levels import Sandbox
from sandbox.hostile_stage import NOBODY, Ground, ground, working
from sandbox.hostile_ways import READERS, TALKERS, WAYS
from support import need

USERS = {"root": 0, "ordinary": NOBODY}
ONLY_ROOT = {"mknod", "mount", "mount_by_new_calls", "mount_namespace", "setns", "chroot", "chown", "proc_sys"} | {
    "read_shadow"
}
# Of the sandbox's first process; test_safeguards.py shows that they succeed without a protection.
OF_INIT = {"read_environment_of_init", "read_memory_of_init"}
# Landlock cannot forbid these: they are detected afterwards, and the job fails (sandbox.gaps).
SEEN_AFTERWARDS = {"chmod", "chmod_of_an_open_file", "utime"}
# These change nothing and are not prevented: their effect ends with the step (sandbox.gaps).
OPEN_ON_B = {"lock_of_farro"}
# Not escapes but attempts to exhaust resources: each has its own test.
HUNGRY = {"fork_bomb", "memory", "memory_of_many", "disk", "outlive"}
OF_BTRFS = {"snapshot"}
OUT = sorted(set(WAYS) - HUNGRY - OF_BTRFS - set(READERS) - set(TALKERS))


@pytest.fixture(params=USERS)
def place(request: pytest.FixtureRequest) -> Iterator[Ground]:
    user = USERS[request.param]
    if os.geteuid() != 0:
        need(user != 0, "only root can try as root")
        user = os.geteuid()
    with ground(user) as made:
        yield made


@pytest.mark.linux
@pytest.mark.parametrize("way", sorted({*OUT, *READERS, *TALKERS} - OF_INIT))
def test_every_attack_succeeds_without_a_sandbox(place: Ground, way: str) -> None:
    if way in ONLY_ROOT and place.user != 0:
        return  # the kernel forbids it to other users
    came = place.run(way, None)
    assert came.succeeded or came.changes, came.message


@pytest.mark.linux
@pytest.mark.parametrize("level", ["A", "B"])
@pytest.mark.parametrize("way", OUT)
def test_no_attack_changes_files_or_kills_processes_outside(place: Ground, way: str, level: str) -> None:
    working(level)
    came = place.run(way, level)
    if level == "B" and way in SEEN_AFTERWARDS:
        assert came.category == "path_violation", came.message
        assert "changed outside allowed_paths: out/file" in came.message
        return
    assert came.changes == []
    if level == "B" and way in OPEN_ON_B:
        assert any("locks of farro's own" in gap for gap in Sandbox.available("B").gaps())
        return
    assert came.category in ("step_failed", "path_violation"), came.message  # it ran, and failed
    assert came.left == []


@pytest.mark.linux
@pytest.mark.parametrize("level", ["A", "B"])
@pytest.mark.parametrize("way", ["create", "overwrite", "unlink", "rename_over", "symlink"])
def test_a_refused_write_that_fails_the_step_is_a_path_violation(place: Ground, way: str, level: str) -> None:
    working(level)
    came = place.run(way, level)
    assert came.category == "path_violation"
    assert "it was refused access outside allowed_paths" in came.message


@pytest.mark.linux
@pytest.mark.parametrize("level", ["A", "B"])
@pytest.mark.parametrize("way", OUT)
def test_a_hostile_provider_finds_no_way_out(way: str, level: str) -> None:
    """The provider runs in the same sandbox; root and an ordinary user alternate."""
    working(level)
    others = os.geteuid() == 0 and (OUT.index(way) + (level == "B")) % 2
    with ground(NOBODY if others else os.geteuid()) as place:
        came = place.run(way, level, provider=True)
    if level == "B" and way in SEEN_AFTERWARDS:
        assert came.category == "path_violation", came.message
        return
    assert came.changes == []
    assert came.category in ("step_failed", "path_violation") or (level == "B" and way in OPEN_ON_B), came.message
    assert came.left == []


@pytest.mark.linux
@pytest.mark.parametrize("level", ["A", "B"])
@pytest.mark.parametrize("way", READERS)
def test_an_agents_program_reads_nothing_that_it_was_not_given(place: Ground, way: str, level: str) -> None:
    working(level)
    came = place.run(way, level, provider=True)
    assert not came.succeeded
    assert came.category in ("step_failed", "path_violation"), came.message  # it ran, and failed
    assert (came.changes, came.left) == ([], [])


@pytest.mark.linux
@pytest.mark.parametrize("level", ["A", "B"])
@pytest.mark.parametrize("way", [*TALKERS, "udp", "unix_socket", "abstract_socket", "unix_datagram", "io_uring"])
def test_a_program_reaches_the_service_that_it_was_given_and_nothing_else(place: Ground, way: str, level: str) -> None:
    working(level)
    place.hostile["greets"] = True
    came = place.run(way, level, provider=True, services=True)
    assert (place.inside / "greeted").exists(), came.message
    assert (came.changes, came.left) == ([], [])
    assert came.category in ("step_failed", "path_violation"), came.message  # it ran, and failed


HUNGER = {
    "fork_bomb": {"processes": 60},
    "memory": {"memory_bytes": 256 << 20},
    "outlive": {},
}


@pytest.mark.linux
@pytest.mark.parametrize("without_cgroup", [False, True], ids=["cgroup", "no-cgroup"])
@pytest.mark.parametrize("level", ["A", "B"])
@pytest.mark.parametrize("way", HUNGER)
def test_no_step_exhausts_the_resources_of_others(place: Ground, way: str, level: str, without_cgroup: bool) -> None:
    working(level)
    place.hostile["at_once"] = not (without_cgroup and place.user == 0)
    came = place.run(way, level, without_cgroup=without_cgroup, **HUNGER[way])
    assert came.changes == []
    assert came.left == []
    if way == "outlive":
        assert (place.inside / "beat").stat().st_size > 0
        assert place.living() == []
        assert came.succeeded, came.message
    else:
        assert came.category in ("step_failed", "path_violation", "limit_reached"), came.message


@pytest.mark.linux
@pytest.mark.parametrize("way", sorted(HUNGRY))
def test_a_step_exhausts_resources_without_a_sandbox(place: Ground, way: str) -> None:
    if way == "outlive":
        place.hostile["many"] = 0
    came = place.run(way, None)
    assert came.succeeded or came.left, came.message
    assert bool(place.living()) == (way == "outlive")
    for pid in came.left:
        os.kill(pid, 9)


@pytest.mark.linux
def test_all_processes_of_a_step_share_one_memory_limit() -> None:
    working("A")
    group = cgroup.make(processes=9, memory_bytes=1 << 30)
    need(group is not None, "a cgroup that may be made")
    assert group is not None
    group.close()
    with ground(os.geteuid()) as place:
        came = place.run("memory_of_many", "A", memory_bytes=256 << 20)
    assert not came.succeeded
    assert "security.max_memory_bytes" in came.message


@pytest.mark.linux
@pytest.mark.parametrize("level", ["A", "B"])
def test_a_step_that_fills_the_disk_is_ended(level: str) -> None:
    working(level)
    need(os.geteuid() == 0, "only root can make a small disk")
    tmp_path = tempfile.mkdtemp(prefix="farro-disk-")  # short: the path of a socket is limited
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=755", "none", tmp_path], check=True)
    try:
        with ground(0, tmp_path) as place:
            place.hostile |= {"disk": 60 << 20, "pause": 0.02}
            came = place.run("disk", level, free_bytes=1 << 40)
            assert came.category == "disk_full"
            assert "security.min_free_bytes" in came.message
            assert os.statvfs(place.root).f_bavail > 0
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)
        os.rmdir(tmp_path)


@pytest.fixture(scope="module")
def btrfs() -> Iterator[str]:
    """Return a folder on a filesystem of that kind."""
    need(os.geteuid() == 0, "mounting needs root")
    need(os.path.exists("/dev/loop-control"), "no loop devices")
    maker = need("mkfs.btrfs")
    with open("/proc/filesystems", encoding="utf-8") as file:
        need("btrfs" in file.read().split(), "this kernel has no btrfs")
    folder = tempfile.mkdtemp(prefix="farro-btrfs-")
    try:
        with tempfile.NamedTemporaryFile(prefix="farro-btrfs-") as image:
            image.truncate(128 << 20)
            subprocess.run([maker, "-q", image.name], check=True, capture_output=True)
            subprocess.run(["mount", "-o", "loop,nosuid,nodev", image.name, folder], check=True)
            try:
                os.chmod(folder, 0o755)
                yield folder
            finally:
                subprocess.run(["umount", "-l", folder], check=True)
    finally:
        os.rmdir(folder)


@pytest.mark.linux
@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
@pytest.mark.parametrize("level", ["A", "B"])
def test_no_snapshot_is_made_of_a_disk_that_can(btrfs: str, level: str, user: int) -> None:
    """Landlock does not check snapshots: an attacker could create a queued job that runs unconfined."""
    working(level)
    with ground(user, btrfs) as place:
        came = place.run("snapshot", level)
        assert came.changes == []
        assert not came.succeeded, came.message


@pytest.mark.linux
@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
def test_without_a_sandbox_a_snapshot_is_made(btrfs: str, user: int) -> None:
    with ground(user, btrfs) as place:
        came = place.run("snapshot", None)
        assert came.succeeded, came.message
        assert "out/planted/planted" in came.changes


# The attacks that the issues name, each with its name in WAYS.
NAMED = {
    "symlink": "symlink",
    "hardlink": "hardlink",
    "rename": "rename_over",
    "truncate": "truncate",
    "/proc": "proc_pid_root",
    "inherited fds": "inherited_descriptors",
    "mknod": "mknod",
    "mount": "mount",
    "userns": "userns",
    "ptrace": "ptrace",
    "chmod": "chmod",
    "utime": "utime",
    "xattr": "xattr",
    "UNIX socket": "unix_socket",
    "TCP": "tcp",
    "UDP": "udp",
    "fork bomb": "fork_bomb",
    "memory": "memory",
    "disk fill": "disk",
    "double fork that outlives its parent": "outlive",
    "SSH key": "read_ssh_key",
    "cloud key": "read_cloud_key",
    "login of another agent": "read_login_of_another_agent",
    "another home": "read_another_home",
    "another job": "read_another_job",
    "farro's folders": "read_ledger",
    "the worker's environment": "read_environment_of_the_worker",
    "/proc/1/mem": "read_memory_of_init",
    "/proc/1/environ": "read_environment_of_init",
    "an unlisted host directly": "talk_to_another_port",
    "another address on the gateway's port": "talk_to_another_address",
    "MPTCP": "talk_over_mptcp",
    "TCP Fast Open": "talk_with_fast_open",
    "listen without bind": "listen_without_bind",
    "io_uring": "io_uring",
}


def test_every_attack_named_in_the_issue_is_tried(figure: Callable[..., None]) -> None:
    assert set(NAMED.values()) <= set(WAYS)
    figure("ways out of the sandbox that were tried, on two levels as two users", len(WAYS))
