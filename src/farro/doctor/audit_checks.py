"""Check the audit log (SPEC-1 §8): its tail, its size, and a probe that writes, syncs and rotates beside it."""

from __future__ import annotations

import errno
import json
import os

from farro.doctor.checks import Check, Finding, edit, failed, ok, own, quoted, warning
from farro.doctor.disk_checks import scratch
from farro.host import fs
from farro.host.clock import Clock
from farro.lazy_dataclass import replace
from farro.log.audit import NAME, AuditLog, AuditPolicy, files

_LINES = 12


def checks(folder: str, policy: AuditPolicy, clock: Clock, *, config: str) -> list[Check]:
    return [
        Check(id="audit-tail", title="end of the audit log", look=lambda: _tail(folder), quick=True),
        Check(id="audit-probe", title="audit log is written", look=lambda: _probe(folder, policy, clock), quick=True),
        Check(id="audit-rotation", title="rotation and quota", look=lambda: _rotation(policy, config), quick=True),
        Check(id="audit-size", title="size of the audit log", look=lambda: _size(folder, policy), quick=True),
    ]


def _tail(folder: str) -> Finding:
    path = f"{folder}/{NAME}"
    try:
        fd = fs.open_read(path)
    except FileNotFoundError:
        return ok("nothing written yet")
    try:
        size = os.fstat(fd).st_size
        last = fs.read_at(fd, 4096, max(0, size - 4096))
    finally:
        os.close(fd)
    if last and not last.endswith(b"\n"):
        return warning(
            "the last line is cut",
            "a writer was killed, or the machine lost power; the next writer takes the half line away",
            "farro watchdog --once",
        )
    line = last.rstrip(b"\n").rpartition(b"\n")[2]
    if line and not _is_event(line):
        return warning(
            "the last line is not an event", "something else writes into the audit log", f"tail -n 5 {quoted(path)}"
        )
    return ok("whole")


def _is_event(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _probe(folder: str, policy: AuditPolicy, clock: Clock) -> Finding:
    """Write as the configured mode does, into small files, so that rotation is tried too."""
    if not os.path.isdir(folder):
        return failed(f"{folder} is missing", "transitions would not be told", "farro init")
    try:
        with scratch(folder) as home:
            log = AuditLog(home, actor="doctor", clock=clock, policy=replace(policy, max_bytes=400), background=False)
            for number in range(_LINES):
                log.record("doctor_probe", number=number)
                log.flush()
            log.close()
            written, kept = log.errors == 0, files(home)
            lines = b"".join(fs.read_bytes(f"{home}/{name}") for name in kept).splitlines()
    except OSError as error:
        if error.errno == errno.EROFS:
            raise  # reported once, for the whole root
        return failed(
            f"{folder} cannot be written: {error.strerror}",
            "transitions would not be told; give the folder to whoever runs the daemons, or make room",
            own(folder),
        )
    numbers = [json.loads(line).get("number") for line in lines]
    if not written or not numbers or numbers[-1] != _LINES - 1 or len(kept) != min(policy.keep, len(kept)):
        return failed(
            f"a probe was not written whole: {log.last_error or 'lines are missing'}",
            "the disk is full or lies; see what it says",
            "df -h . && dmesg --level err",
        )
    rotated = f"rotated {len(kept) - 1} times" if len(kept) > 1 else "not rotated: one file is kept"
    synced = "each line synced" if policy.strict else "within a second"
    return ok(f"written, {synced}, {rotated}")


def _rotation(policy: AuditPolicy, config: str) -> Finding:
    quota = f"{policy.quota_bytes >> 20} MiB in all, a new file every day"
    found = f"{policy.max_bytes >> 20} MiB × {policy.keep} files, {quota}"
    if policy.max_bytes > policy.quota_bytes:
        return warning(found, "one file may be larger than all together: the quota is never kept", edit(config))
    if policy.keep < 2:
        return warning(found, "with one file all older events go whenever it is full", edit(config))
    return ok(found)


def _size(folder: str, policy: AuditPolicy) -> Finding:
    if not os.path.isdir(folder):
        return ok("nothing written yet")
    sizes = {name: fs.lstat(f"{folder}/{name}").st_size for name in files(folder)}
    total = sum(sizes.values())
    found = f"{sizes.get(NAME, 0):,} bytes, {total:,} in {len(sizes)} file{'s' if len(sizes) != 1 else ''}"
    if total > policy.quota_bytes + policy.max_bytes:
        oldest = next(iter(sizes))
        return warning(
            found, "more than the quota: it was lowered, or files were put there", f"rm {quoted(f'{folder}/{oldest}')}"
        )
    return ok(found)
