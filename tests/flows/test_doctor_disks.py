"""`farro doctor` on real filesystems and mounts: tmpfs, ext4 with and without a journal, FUSE, folders mounted apart.

Tests that need root run in their own mount namespace; nothing of it is visible outside.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.program import FARRO, Program
from flows.test_doctor import examined, repair, writes
from support import need

pytestmark = pytest.mark.linux

# Print the finding of one check, run its repair, and print the finding again.
TWICE = """
report() { farro doctor --json --root "$ROOT" || true; }
report > "$HERE/before"
"$PYTHON3" - "$HERE/before" "$CHECK" > "$HERE/repair" <<'END'
import json, sys
print(*next(told["repair"] for told in json.load(open(sys.argv[1]))["checks"] if told["id"] == sys.argv[2]), sep="\\n")
END
sh -e "$HERE/repair"
report > "$HERE/after"
"""


def apart(script: str, here: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a script in its own mount namespace."""
    need(os.geteuid() == 0, "mounting needs root")
    unshare = need("unshare")
    path = f"{os.path.dirname(FARRO)}:{os.environ['PATH']}:/usr/sbin:/sbin"
    env = {**os.environ, **env, "HERE": str(here), "PATH": path, "PYTHON3": sys.executable}
    argv = [unshare, "--mount", "--propagation", "private", "sh", "-e", "-c", script]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


def said(path: Path, check: str) -> dict[str, object]:
    told: dict[str, object] = next(told for told in json.loads(path.read_text())["checks"] if told["id"] == check)
    return told


@pytest.fixture
def in_memory(shm: Path) -> Iterator[Program]:
    program = Program(shm)
    yield program
    program.clean_up()


def test_root_in_memory_is_reported_unless_the_config_allows_it(in_memory: Program) -> None:
    in_memory.run("init", code=0)
    told = examined(in_memory, code=0)["filesystem-kind"]
    assert told["verdict"] == "warning"
    assert "in memory" in told["found"]
    right = (in_memory.path / "agents-config.json").read_text().replace('"power"', '"process"')
    repair(in_memory, told, writes(in_memory, "agents-config.json", right))
    assert examined(in_memory, code=0)["filesystem-kind"]["verdict"] == "ok"


def test_ext4_without_a_journal_is_reported_and_the_repair_adds_one(tmp_path: Path) -> None:
    for tool in ("mkfs.ext4", "tune2fs", "losetup"):
        need(tool)
    need(os.path.exists("/dev/loop-control"), "no loop devices")
    script = """
        truncate -s 64M "$HERE/image"; mkfs.ext4 -q -F -O ^has_journal "$HERE/image"
        device=$(losetup --find --show "$HERE/image"); trap 'umount "$HERE/disk" || true; losetup -d "$device"' EXIT
        mkdir -p "$HERE/disk"; mount "$device" "$HERE/disk"; ROOT="$HERE/disk/queue"
        farro init --root "$ROOT" > "$HERE/init"
    """
    done = apart(script + TWICE, tmp_path, {"CHECK": "filesystem-kind"})
    assert done.returncode == 0, done.stderr
    assert "without a journal" in str(said(tmp_path / "before", "filesystem-kind")["found"])
    after = said(tmp_path / "after", "filesystem-kind")
    assert after["verdict"] == "ok", after
    assert "with a journal" in str(after["found"])


def test_on_a_full_disk_finished_jobs_can_be_removed(tmp_path: Path) -> None:
    """Follow the advice of the message and of doctor; then everything works again."""
    script = """
        mkdir "$HERE/disk"; mount -t tmpfs -o size=4m tmpfs "$HERE/disk"; ROOT="$HERE/disk/queue"
        farro init --root "$ROOT" > "$HERE/init"
        farro run --root "$ROOT" -- head -c 200000 /dev/zero > "$HERE/out"
        farro enqueue --root "$ROOT" --id left -- true > "$HERE/id"
        dd if=/dev/zero of="$HERE/disk/filler" bs=4k 2> "$HERE/dd" || true
        farro kill --root "$ROOT" left 2> "$HERE/full" && exit 1
        farro prune --root "$ROOT" --keep 0 > "$HERE/pruned"
        farro kill --root "$ROOT" left > "$HERE/killed"
    """
    done = apart(script, tmp_path, {})
    assert done.returncode == 0, done.stderr
    assert "No space left on device" in (tmp_path / "full").read_text()
    assert "`farro prune`" in (tmp_path / "full").read_text()
    assert (tmp_path / "pruned").read_text().startswith("removed 1 job; ")


@pytest.mark.parametrize(("inodes", "verdict"), [(5000, "warning"), (1000, "failed")])
def test_small_disk_is_reported_before_it_is_full(tmp_path: Path, inodes: int, verdict: str) -> None:
    script = f"""
        mkdir "$HERE/disk"; mount -t tmpfs -o size=64m,nr_inodes={inodes} tmpfs "$HERE/disk"
        farro init --root "$HERE/disk/queue" > "$HERE/init"
        farro doctor --json --root "$HERE/disk/queue" > "$HERE/told" || true
    """
    done = apart(script, tmp_path, {})
    assert done.returncode == 0, done.stderr
    assert said(tmp_path / "told", "inodes")["verdict"] == verdict
    space = said(tmp_path / "told", "disk-space")
    assert space["verdict"] == "failed"  # steps are ended below 256 MiB
    assert space["repair"] == [f"farro prune --older-than 7d --root {tmp_path}/disk/queue"]


def test_read_only_mount_is_reported_once_and_the_repair_remounts_it(farro: Program) -> None:
    here = farro.path.parent / f"{farro.path.name}-here"
    here.mkdir()
    script = """
        mount --bind "$ROOT" "$ROOT"; mount -o remount,ro,bind "$ROOT"
        mkdir "$HERE/bin"; printf '#!/bin/sh\nexec "$@"\n' > "$HERE/bin/sudo"; chmod +x "$HERE/bin/sudo"
        PATH="$HERE/bin:$PATH"
        farro enqueue --root "$ROOT" -- true 2> "$HERE/refused" || true
    """
    done = apart(script + TWICE, here, {"ROOT": str(farro.path), "CHECK": "permissions"})
    assert done.returncode == 0, done.stderr
    told = json.loads((here / "before").read_text())["checks"]
    assert [check["id"] for check in told if check["verdict"] == "failed"] == ["permissions"]
    assert said(here / "before", "permissions")["found"] == f"{farro.path} is mounted read-only"
    assert said(here / "after", "permissions")["verdict"] == "ok"
    assert "the root is mounted read-only" in (here / "refused").read_text()
    assert "enqueue_many" not in (here / "refused").read_text()


@pytest.mark.parametrize("where", ["another device", "the same device"])
def test_queue_on_another_mount_is_reported_and_stops_daemons(farro: Program, shm: Path, where: str) -> None:
    other = shm if where == "another device" else farro.path / "other"
    other.mkdir(exist_ok=True)
    script = """
        mount --bind "$OTHER" "$ROOT/agents/Runner/incoming"
        for daemon in worker watchdog manager scheduler; do
            code=0; farro $daemon --root "$ROOT" 2>> "$HERE/said" || code=$?; echo $code >> "$HERE/codes"
        done
        farro enqueue --root "$ROOT" -- true 2> "$HERE/refused" || true
    """
    here = farro.path / "here"
    here.mkdir()
    env = {"OTHER": str(other), "ROOT": str(farro.path), "CHECK": "same-device"}
    done = apart(script + TWICE, here, env)
    assert done.returncode == 0, done.stderr
    before = said(here / "before", "same-device")
    assert before["verdict"] == "failed"
    assert before["repair"] == [f"umount {farro.path}/agents/Runner/incoming"]
    assert said(here / "after", "same-device")["verdict"] == "ok"
    assert (here / "codes").read_text().split() == ["3"] * 4
    assert "agents/Runner/incoming is on another device or mount" in (here / "said").read_text()
    assert "handed on by a rename; nothing was changed" in (here / "refused").read_text()
    events = [json.loads(line) for line in (farro.path / "logs/audit.log").read_text().splitlines()]
    told = [event for event in events if event["event"] == "cross_volume_forbidden"]
    assert len(told) == 5  # four daemons and an enqueue
    assert all(event["place"] == "agents/Runner/incoming" for event in told)
    assert farro.call("ls", "--json", code=0).json["jobs"] == []


def test_log_folder_on_another_device_is_accepted(farro: Program, shm: Path) -> None:
    here = farro.path / "here"
    here.mkdir()
    script = """
        mount --bind "$OTHER" "$ROOT/logs"
        farro doctor --json --root "$ROOT" > "$HERE/told"
        farro worker --drain --root "$ROOT"
    """
    done = apart(script, here, {"OTHER": str(shm), "ROOT": str(farro.path)})
    assert done.returncode == 0, done.stderr
    assert said(here / "told", "same-device")["verdict"] == "ok"


def test_job_in_a_lower_overlay_layer_is_reported_and_repaired(farro: Program, shm: Path) -> None:
    with open("/proc/filesystems", encoding="utf-8") as file:
        need("overlay" in file.read().split(), "this kernel has no overlay filesystem")
    job = farro.enqueue({"id": "below", "plan_id": "p", "steps": [{"step_number": 1, "command": "true"}]})
    script = """
        mkdir "$HERE/upper" "$HERE/work" "$HERE/all" "$HERE/below"; cp -a "$REAL" "$HERE/below/queue"
        layers="lowerdir=$HERE/below,upperdir=$HERE/upper,workdir=$HERE/work"
        mount -t overlay overlay -o "$layers,redirect_dir=off" "$HERE/all"; ROOT="$HERE/all/queue"
    """
    after = """
        farro worker --drain --root "$ROOT" > /dev/null; farro show below --json --root "$ROOT" > "$HERE/job"
    """
    done = apart(script + TWICE + after, shm, {"REAL": str(farro.path), "CHECK": "filesystem-kind"})
    assert done.returncode == 0, done.stderr
    before = said(shm / "before", "filesystem-kind")
    assert before["verdict"] == "failed", before
    assert "agents/Runner/incoming/below is in a lower layer" in str(before["found"])
    assert said(shm / "after", "filesystem-kind")["verdict"] == "warning"  # no guarantee against power cuts there
    assert (job, json.loads((shm / "job").read_text())["status"]) == ("below", "succeeded")


PASSED_ON = """
import os, sys, mfusepy

class Passed(mfusepy.Operations):
    def __init__(self, home): self.home = home
    def at(self, path): return self.home + path
    def getattr(self, path, fh=None):
        try:
            found = os.lstat(self.at(path))
        except OSError as error:
            raise mfusepy.FuseOSError(error.errno)
        names = "st_atime st_ctime st_gid st_mode st_mtime st_nlink st_size st_uid".split()
        return {name: getattr(found, name) for name in names}
    def readdir(self, path, fh): return [".", "..", *os.listdir(self.at(path))]
    def readlink(self, path): return os.readlink(self.at(path))
    def open(self, path, flags): return os.open(self.at(path), flags)
    def create(self, path, mode, fi=None): return os.open(self.at(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
    def read(self, path, size, offset, fh): return os.pread(fh, size, offset)
    def write(self, path, data, offset, fh): return os.pwrite(fh, data, offset)
    def release(self, path, fh): os.close(fh); return 0
    def mkdir(self, path, mode): os.mkdir(self.at(path), mode); return 0
    def rmdir(self, path): os.rmdir(self.at(path)); return 0
    def unlink(self, path): os.unlink(self.at(path)); return 0
    def symlink(self, target, source): os.symlink(source, self.at(target)); return 0
    def rename(self, old, new, *flags): os.rename(self.at(old), self.at(new)); return 0
    def truncate(self, path, length, fh=None): os.truncate(self.at(path), length); return 0
    def utimens(self, path, times=None): os.utime(self.at(path), times); return 0
    def statfs(self, path):
        found = os.statvfs(self.at(path))
        names = "f_bavail f_bfree f_blocks f_bsize f_favail f_ffree f_files f_flag f_frsize f_namemax".split()
        return {name: getattr(found, name) for name in names}

mfusepy.FUSE(Passed(sys.argv[1]), sys.argv[2], foreground=True, nothreads=True)
"""


def test_root_on_a_fuse_mount_is_refused(farro: Program, tmp_path_factory: pytest.TempPathFactory) -> None:
    need(importlib.util.find_spec("mfusepy") is not None, "mfusepy is not installed")
    need(os.path.exists("/dev/fuse"), "no FUSE")
    here = tmp_path_factory.mktemp("fuse")
    (here / "passed_on.py").write_text(PASSED_ON)
    script = """
        mkdir "$HERE/mounted"
        "$PYTHON3" "$HERE/passed_on.py" "$REAL" "$HERE/mounted" & trap 'umount -l "$HERE/mounted"' EXIT
        for _ in $(seq 200); do [ -d "$HERE/mounted/jobs" ] && break; sleep 0.05; done
        farro doctor --json --root "$HERE/mounted" > "$HERE/told" || echo $? > "$HERE/code"
        farro worker --strict --drain --root "$HERE/mounted" 2> "$HERE/said" || echo $? > "$HERE/refused"
    """
    done = apart(script, here, {"REAL": str(farro.path)})
    assert (here / "told").exists(), done.stderr
    told = said(here / "told", "filesystem-kind")
    assert told["verdict"] == "failed", told
    assert "fuse" in str(told["found"])
    assert str(told["repair"]).startswith("['farro init --root /var/lib/")
    assert (here / "code").read_text().strip() == "1"
    assert (here / "refused").read_text().strip() == "3"
