"""Remove each protection of the sandbox: the hostile program escapes, so the hostile suite would fail.

The hostile suite is test_hostile.py.
"""

from __future__ import annotations

import os

import pytest

from farro.sandbox.levels import Sandbox
from sandbox.hostile_stage import ground
from sandbox.hostile_ways import READERS, TALKERS
from support import need

# the removed protection, the level, the attack that then succeeds, whether only root can run it
TAKEN = [
    (("seccomp",), "A", "unix_socket", False),
    (("seccomp",), "A", "userns", False),
    (("seccomp",), "A", "io_uring", False),
    (("seccomp",), "B", "udp", False),
    (("seccomp",), "B", "unix_socket", False),
    (("seccomp",), "B", "unix_datagram", False),
    (("seccomp",), "B", "keys", False),
    (("landlock",), "B", "create", False),
    (("landlock",), "B", "truncate", False),
    (("landlock",), "B", "kill", False),
    (("landlock", "capabilities"), "B", "proc_pid_mem", False),
    (("seccomp", "capabilities"), "B", "chroot", True),
    (("the comparison",), "B", "chmod", False),
    (("the comparison",), "B", "utime", False),
    (("the pipe",), "A", "stdin_opened_again", False),
    (("the pipe",), "B", "stdin_changed", False),
    (("--unshare-net -> ",), "A", "tcp", False),
    (("--unshare-net -> ",), "A", "udp", False),
    (("--unshare-pid -> ",), "A", "kill", False),
    (("--ro-bind / / -> --bind / /",), "A", "create", False),
    (("--ro-bind / / -> --bind / /",), "A", "chmod", False),
    (("--ro-bind /proc/sys /proc/sys -> ",), "A", "proc_sys", True),
    (("the check of addresses",), "B", "talk_to_another_port", False),
    (("the check of addresses",), "B", "talk_to_another_address", False),
    (("the check of addresses",), "B", "talk_over_ipv6", False),
    (("seccomp",), "B", "talk_over_mptcp", False),
    (("seccomp",), "B", "talk_with_fast_open", False),
    (("seccomp",), "B", "talk_with_fast_open_by_message", False),
    (("seccomp",), "B", "listen_without_bind", False),
    (("the closed list",), "A", "read_ssh_key", False),
    (("the closed list",), "A", "read_another_job", False),
    (("the closed list",), "B", "read_cloud_key", False),
    (("the closed list",), "B", "read_shadow", True),
    (("landlock",), "B", "read_another_home", False),
    (("landlock", "capabilities"), "B", "read_environment_of_the_worker", False),
    (("--tmpfs /proc/1 --remount-ro /proc/1 -> ",), "A", "read_environment_of_init", False),
    (("--tmpfs /proc/1 --remount-ro /proc/1 -> ",), "A", "read_memory_of_init", False),
    (("bounds",), "A", "fork_bomb", False),
    (("bounds",), "B", "memory", False),
    (("the end of strays",), "B", "outlive", False),
]


@pytest.mark.linux
@pytest.mark.parametrize(("without", "level", "way", "only_root"), TAKEN, ids=lambda value: str(value))
def test_removing_a_protection_lets_an_attack_succeed(
    without: tuple[str, ...], level: str, way: str, only_root: bool
) -> None:
    sandbox = Sandbox.available(level)  # type: ignore[arg-type]
    need(sandbox.level == level, f"level {level} of the sandbox: {'; '.join(probe.why for probe in sandbox.probes)}")
    need(not only_root or os.geteuid() == 0, "only root can go this way")
    with ground(os.geteuid(), "/var/tmp") as place:  # folders in /tmp are bound once more, read-only
        came = place.run(
            way,
            level,
            without=without,
            without_cgroup=way == "outlive",
            provider=way in (*READERS, *TALKERS),
            services=way in TALKERS,
            processes=60,
            memory_bytes=256 << 20,
        )
        out = came.succeeded if way != "outlive" else bool(came.left)
        assert out or came.changes, came.message
        for pid in came.left:
            os.kill(pid, 9)
