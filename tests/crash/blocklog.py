"""Simulate power cuts on real filesystems: log every write and flush of a disk, and build the images a cut may leave.

Run as a program, inside its own namespaces (`in_namespace`): all its mounts and processes end with it, also when it is
killed.

The disk is one file in a FUSE filesystem whose server keeps it in memory and logs each write and each fsync. A loop
device on that file turns the filesystem's cache flushes into fsyncs. At a cut the image has every write up to the last
flush, and any subset of the later ones: a disk with a write cache promises no more.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import dataclasses
import errno
import importlib.util
import json
import mmap
import os
import pickle
import random
import signal
import stat
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

POSITION = "user.position"
_HEAD = struct.Struct("<cQI")  # W or F, offset, length
_SECTOR = 4096  # a longer write may be torn between sectors
_ROOM = {"ext4": 24, "xfs": 320, "btrfs": 128}  # MiB; what each mkfs accepts
_MKFS = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-b", "4096", "-J", "size=4", "-E", "nodiscard,lazy_itable_init=0"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-K"],
    "btrfs": ["mkfs.btrfs", "-q", "-f", "-K", "-m", "single"],
}


# --- the disk ----------------------------------------------------------------------------------------------------


def serve(mountpoint: str, log_path: str, size: int) -> None:
    """Run the FUSE server: one file, `disk`. Its extended attribute `user.position` is the length of the log."""
    import mfusepy

    memory = mmap.mmap(-1, size)

    class Disk(mfusepy.Operations):  # type: ignore[misc]
        use_ns = True

        def __init__(self) -> None:
            self.log = open(log_path, "wb", buffering=0)  # noqa: SIM115
            self.position = 0

        def add(self, kind: bytes, offset: int = 0, data: bytes = b"") -> None:
            self.log.write(_HEAD.pack(kind, offset, len(data)) + data)
            self.position += 1

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
            if path == "/disk":
                return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": size}
            raise mfusepy.FuseOSError(errno.ENOENT)

        def open(self, path: str, flags: int) -> int:
            return 1

        def read(self, path: str, length: int, offset: int, fh: int) -> bytes:
            return memory[offset : offset + length]

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            memory[offset : offset + len(data)] = data
            self.add(b"W", offset, data)
            return len(data)

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            self.add(b"F")
            return 0

        def flush(self, path: str, fh: int) -> int:
            return 0  # on close: promises nothing

        def getxattr(self, path: str, name: str, position: int = 0) -> bytes:
            if name == POSITION:
                return str(self.position).encode()
            raise mfusepy.FuseOSError(errno.ENODATA)

    mfusepy.FUSE(Disk(), mountpoint, foreground=True, nothreads=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    offset: int
    data: bytes


def read_log(path: str) -> list[Write | None]:
    """Read the log; None is a flush."""
    with open(path, "rb") as file:
        raw = memoryview(file.read())
    found: list[Write | None] = []
    at = 0
    while at < len(raw):
        kind, offset, length = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        found.append(Write(offset, bytes(raw[at : at + length])) if kind == b"W" else None)
        at += length
    return found


# --- images ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """A disk after a cut: all writes up to entry `flush` of the log, and these sectors of later writes."""

    cut: int
    flush: int
    pieces: tuple[tuple[int, int], ...]  # (entry, sector in it)


def images(
    log: list[Write | None], first: int, last: int, told: list[int], dice: random.Random, wanted: int
) -> list[Image]:
    """Return distinct images of cuts between two positions, spread evenly, in the order of the log. The same disk
    counts twice when more calls had been acknowledged by the later cut."""
    flushes = [-1]
    for write in log:
        flushes.append(flushes[-1])
        if write is None:
            flushes[-1] = len(flushes) - 2
    found: dict[tuple[int, int, tuple[tuple[int, int], ...]], Image] = {}
    span = last - first + 1
    for turn in range(20 * wanted):
        if len(found) >= wanted:
            break
        cut = first + (turn * 7919 % span if turn < span else dice.randrange(span))
        flush = flushes[cut]
        pieces = [(entry, part) for entry in range(flush + 1, cut) for part in range(_parts(log[entry]))]
        match dice.randrange(5):
            case 0:
                kept = pieces[: dice.randrange(len(pieces) + 1)]
            case 1:
                lost = dice.choice(pieces) if pieces else None
                kept = [piece for piece in pieces if piece != lost]
            case 2:
                kept = [dice.choice(pieces)] if pieces else []
            case _:
                kept = [piece for piece in pieces if dice.random() < 0.5]
        image = Image(cut, flush, tuple(kept))
        found.setdefault((flush, bisect.bisect_right(told, cut), image.pieces), image)
    return sorted(found.values(), key=lambda image: (image.flush, image.cut))


def _parts(write: Write | None) -> int:
    return 0 if write is None else max(1, len(write.data) // _SECTOR)


class Gallery:
    """Build images from a log; each starts from the flushed part, which only grows."""

    def __init__(self, log: list[Write | None], folder: str, size: int) -> None:
        self.log = log
        self.stable = f"{folder}/stable"
        self.path = f"{folder}/image"
        self.size = size
        self._done = 0
        with open(self.stable, "wb") as file:
            file.truncate(size)

    def show(self, image: Image) -> str:
        fd = os.open(self.stable, os.O_WRONLY)
        for entry in self.log[self._done : image.flush + 1]:
            if entry is not None:
                _put(fd, entry.offset, entry.data)
        os.close(fd)
        self._done = max(self._done, image.flush + 1)
        _copy_sparse(self.stable, self.path, self.size)
        fd = os.open(self.path, os.O_WRONLY)
        for number, part in image.pieces:
            write = self.log[number]
            assert write is not None
            start = part * _SECTOR
            end = len(write.data) if part == _parts(write) - 1 else start + _SECTOR
            os.pwrite(fd, write.data[start:end], write.offset + start)
        os.close(fd)
        return self.path


def _put(fd: int, offset: int, data: bytes) -> None:
    """Write the bytes, but keep a hole when they are zeros over a hole: mkfs writes many zeros."""
    if data.count(0) == len(data):
        try:
            if os.lseek(fd, offset, os.SEEK_DATA) >= offset + len(data):
                return
        except OSError:  # ENXIO: only a hole is left
            return
    os.pwrite(fd, data, offset)


def _copy_sparse(source: str, path: str, size: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    read, write = os.open(source, os.O_RDONLY), os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.ftruncate(write, size)
        at = 0
        while True:
            try:
                at = os.lseek(read, at, os.SEEK_DATA)
            except OSError:  # ENXIO: only a hole is left
                return
            end = os.lseek(read, at, os.SEEK_HOLE)
            while at < end:
                data = os.pread(read, min(end - at, 1 << 20), at)
                at += os.pwrite(write, data, at)
    finally:
        os.close(read)
        os.close(write)


# --- mounting ----------------------------------------------------------------------------------------------------


def able(kind: str) -> None:
    """Skip the test unless a filesystem can be mounted from a FUSE file."""
    from support import need

    need(hasattr(os, "geteuid") and os.geteuid() == 0, "mounting needs root")
    need(os.path.exists("/dev/fuse"), "no /dev/fuse")
    need(os.path.exists("/dev/loop-control"), "no loop devices")
    need(importlib.util.find_spec("mfusepy") is not None, "mfusepy is not installed")
    need("unshare")
    need(f"mkfs.{kind}")
    with open("/proc/filesystems", encoding="utf-8") as file:
        need(kind in file.read().split(), f"this kernel has no {kind}")


def in_namespace(arguments: list[str], *, folder: str, timeout_s: float) -> dict[str, Any]:
    """Run this file as a program in its own mount and PID namespaces; return the JSON of its last line.

    However it ends, the kernel then kills all processes in them and unmounts everything.
    """
    command = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "--pid",
        "--fork",
        "--kill-child=SIGKILL",
        "--mount-proc",
    ]
    done = subprocess.run(
        [*command, sys.executable, os.path.abspath(__file__), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin", "FARRO_REPLAY": folder},
    )
    if done.returncode != 0:
        raise RuntimeError(f"exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")


@contextlib.contextmanager
def mounted(image: str, mountpoint: str, kind: str) -> Iterator[str]:
    os.makedirs(mountpoint, exist_ok=True)
    _run("mount", "-t", kind, "-o", "loop", image, mountpoint)
    try:
        yield mountpoint
    finally:
        _run("umount", mountpoint)


@contextlib.contextmanager
def logging_disk(folder: str, size: int) -> Iterator[tuple[str, str]]:
    """Run the FUSE server in a child process; yield the paths of the disk and of the log."""
    point, log_path = f"{folder}/fuse", f"{folder}/log"
    os.mkdir(point)
    server = subprocess.Popen([sys.executable, os.path.abspath(__file__), "serve", point, log_path, str(size)])
    try:
        disk = f"{point}/disk"
        until_s = time.monotonic() + 20
        while not os.path.exists(disk):
            if server.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError("the FUSE server did not start")
            time.sleep(0.01)
        yield disk, log_path
        subprocess.run(["umount", point], check=False, capture_output=True)
        server.wait(10)
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGKILL)
            server.wait()


# --- the program -------------------------------------------------------------------------------------------------


def replay(kind: str, wanted: int, seed: int, durable: bool, neighbour: bool) -> dict[str, Any]:
    """Play on a logging disk, then judge `wanted` images of it."""
    started_s = time.monotonic()
    folder = os.environ["FARRO_REPLAY"]
    size = _ROOM[kind] << 20
    with logging_disk(folder, size) as (disk, log_path):
        _run(*_MKFS[kind], disk)
        with mounted(disk, f"{folder}/live", kind) as live:
            acts, last = _in_a_child(lambda: _play_all(disk, live, durable, neighbour))
        log = read_log(log_path)
    first = acts[0].first
    told = sorted(position for act in acts for position, _ in act.acks)
    gallery = Gallery(log, folder, size)
    dice = random.Random(seed)
    chosen = images(log, first, last, told, dice, wanted)
    broken: list[str] = []
    for image in chosen:
        begun = [act for act in acts if act.first <= image.cut]
        looked_at = {act.name: act for act in (begun[-1:] + dice.sample(begun, min(2, len(begun))))}
        try:
            with mounted(gallery.show(image), f"{folder}/after", kind) as root:
                for act in looked_at.values():
                    act.judge(f"{root}/{act.name}", image.cut, dice)
        except Exception as error:
            broken.append(f"{type(error).__name__}: {error}\n  in {image} of {kind}")
            if len(broken) >= 3:
                break
    return {
        "states": len(chosen),
        "writes": sum(entry is not None for entry in log[first:last]),
        "flushes": sum(entry is None for entry in log[first:last]),
        "acks": sum(len(act.acks) for act in acts),
        "broken": broken,
        "seconds": round(time.monotonic() - started_s, 1),
    }


@dataclasses.dataclass
class Act:
    """One play on the disk, with the log's position at its beginning and at each acknowledgement."""

    name: str
    first: int
    acks: list[tuple[int, Any]]
    recorded: Any

    def judge(self, root: str, cut: int, dice: random.Random) -> None:
        from crash import powerplays

        acks = [ack for position, ack in self.acks if position <= cut]
        coming_back = dice.choice(powerplays.COMING_BACK)
        old_staging = dice.random() < 0.5
        powerplays.after_the_cut(root, acks, self.recorded, coming_back=coming_back, old_staging=old_staging)


class Neighbour:
    """A seam that syncs after every call, as another process could.

    A filesystem that logs single inodes (btrfs) then exposes each step of a transaction, which otherwise only farro's
    own syncs would do.
    """

    def __init__(self, folder: str) -> None:
        self.fd = os.open(f"{folder}/neighbour", os.O_WRONLY | os.O_CREAT, 0o600)

    def look(self, op: str, path: str) -> None:
        """Looking changes nothing."""

    def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        result = call(*args)
        os.write(self.fd, b"x")
        os.fsync(self.fd)
        return result


def _play_all(disk: str, live: str, durable: bool, neighbour: bool) -> tuple[list[Act], int]:
    from crash import powerplays
    from farro.host import fs

    def position() -> int:
        if neighbour:
            os.sync()  # so that the next call has its own transaction
        return int(os.getxattr(disk, POSITION))

    acts = []
    fs.set_seam(Neighbour(live) if neighbour else None)
    plays = powerplays.BESIDE_A_NEIGHBOUR if neighbour else powerplays.ON_DISK
    for play, journal in ((play, journal) for play in plays for journal in (False, True)):
        name = f"{play.__name__}{'-journal' if journal else ''}"
        root = powerplays.make(f"{live}/{name}")
        fd = os.open(live, os.O_RDONLY)  # the root's own name; `initiated` is about the folders below
        os.fsync(fd)
        os.close(fd)
        act = Act(name=name, first=position(), acks=[], recorded=None)
        acts.append(act)
        tell = partial(_note, act.acks, position)
        act.recorded = powerplays.perform(play, root, tell=tell, durable=durable, journal=journal)
    return acts, position()


def _note(acks: list[tuple[int, Any]], position: Callable[[], int], ack: Any) -> None:
    acks.append((position(), ack))


def _in_a_child(call: Callable[[], Any]) -> Any:
    """Make a call in a forked process and return its answer: leases and watches that it leaves open end with it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with open(write, "wb") as pipe:
                pickle.dump(call(), pipe)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write)
    with open(read, "rb") as pipe:
        answer = pipe.read()
    if os.waitpid(child, 0)[1] != 0:
        raise RuntimeError("the play failed")
    return pickle.loads(answer)


def main() -> None:
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=sorted(_ROOM))
    parser.add_argument("--states", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--process", action="store_true", help="durability `process`: nothing is synced")
    parser.add_argument("--neighbour", action="store_true", help="another program syncs after every call")
    options = parser.parse_args()
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    print(json.dumps(replay(options.kind, options.states, options.seed, not options.process, options.neighbour)))


if __name__ == "__main__":
    main()
