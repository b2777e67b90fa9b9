"""Port: Runtime. Run components as detached processes of this machine, each with a record on disk.

A launch takes the folder's lock, writes a record with a new marker, starts the process with that marker in its
environment, and adds its pid, start time and boot id to the record. The kernel drops the lock when a launcher dies. A
launcher that died before the last step leaves a record without a pid, and the process is found by its marker; if there
is none, it was never started, or has ended. Every process may read records; they are written under the lock.

Only its parent knows how a component ended, and writes it beside the record, under the same marker. Memory is limited
by a cgroup around the component if possible, else by RLIMIT_AS of each process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from farro.errors import AlreadyRunning, BadName, InputError
from farro.host import cgroup, fs, leases, process_identity, process_limits, process_table, process_tree, signals
from farro.host.clock import Clock
from farro.jobs.times import timestamp
from farro.worker.runtime import NAME, STOP_S, ProcessSpec, ProcessView, Stopped

MARK = "FARRO_COMPONENT"
_LOCK, _TIDYING = ".lock", ".tidying"
_SUFFIX, _EXIT = ".json", ".exit"
_LOOKS, _PAUSE_S = 3, 0.02  # tries for a process before its exec: until then it has its parent's environment
_KILL_BOUND_S = 10.0  # a killed process may hang in the kernel
LOG_LIMIT = 10 << 20  # bytes; a longer log is moved to `.1`, which replaces the one before


class ProcessRuntime:
    """Port: Runtime. `folder` contains the records; it is made when needed."""

    def __init__(self, folder: str, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._children: dict[int, tuple[str, str]] = {}  # pid → name and mark

    def launch(self, component: ProcessSpec) -> ProcessView:
        if NAME.fullmatch(component.name) is None:
            raise BadName(f"{component.name!r} is not a name for a component: small letters, digits and dashes")
        if not component.argv:
            raise InputError(f"{component.name} has an image, and this runtime starts commands only")
        with self._locked():
            before = self.look(component.name)
            if before is not None and before.alive:
                raise AlreadyRunning(f"{component.name} runs already (pid {before.pid}); stop it first")
            record_before = self._read(component.name)
            if before is not None:
                self._clear(record_before, None)
            record: dict[str, Any] = {
                "name": component.name,
                "mark": f"{component.name}.{os.urandom(8).hex()}",
                "argv": list(component.argv),
                "log": component.log,
                "launched_at": timestamp(self._clock.now()),
                "launches": 1 + _launches(record_before) if before is not None else 1,
                "log_offset": _rotated(component.log),
            }
            group = _group(component)
            if group is not None:
                record["cgroup"] = list(group.folders)
            self._write(record)
            try:
                pid = self._start(component, record["mark"], group)
            except (OSError, ValueError) as error:
                self._clear(record, None)
                fs.unlink(self._path(component.name))
                what = (error.filename or component.argv[0]) if isinstance(error, OSError) else component.argv[0]
                why = error.strerror if isinstance(error, OSError) else str(error)
                raise InputError(f"{component.name} could not be started: {what}: {why}") from error
            record |= process_identity.identity_of(pid)
            with contextlib.suppress(OSError):  # it runs, and will be found by its mark
                self._write(record)
            return _seen(record, alive=True)

    def look(self, name: str) -> ProcessView | None:
        record = self._record(name)
        if not record:
            return None
        alive = process_identity.matches(record)
        if not alive:
            self._reap(record.get("pid"))  # afterwards: else one that ends in between would have no exit code
        return _seen(record, alive=alive, exit_code=None if alive else self._exit_code(record))

    def list(self) -> Sequence[ProcessView]:
        try:
            names = sorted(fs.listdir(self._folder))
        except FileNotFoundError:
            return []
        found = (self.look(name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX))
        return [seen for seen in found if seen is not None]

    def stop(self, names: Sequence[str], grace_s: float = STOP_S) -> Sequence[Stopped]:
        with self._locked():
            records = {name: record for name in names if (record := self._record(name))}
            told = [record for record in records.values() if process_identity.terminate_identified(record)]
            deaf = self._outlive(told, grace_s)
            return [self._ended(record, told=record in told, deaf=record in deaf) for record in records.values()]

    def kill(self, name: str) -> bool:
        with self._locked():
            record = self._record(name)
            alive = process_identity.matches(record)
            if alive:
                self._clear(record, record["pid"])
            return alive

    def end_alone(self, name: str, grace_s: float) -> bool:
        # Without the lock: the component itself may hold it, for a launch.
        record = self._record(name)
        was_alive = process_identity.terminate_identified(record)
        if was_alive and self._outlive([record], grace_s):
            process_identity.kill_identified(record)
            self._outlive([record], _KILL_BOUND_S)
        return was_alive

    def tidy(self) -> None:
        with contextlib.suppress(FileNotFoundError), leases.exclusively(f"{self._folder}/{_TIDYING}"):
            for seen in self.list():
                with contextlib.suppress(FileNotFoundError):
                    _bound(seen.log)

    def _outlive(self, records: Sequence[Mapping[str, Any]], grace_s: float) -> Sequence[Mapping[str, Any]]:
        """Wait for the end of these processes, at most `grace_s`, and return those that still live."""
        until_s = self._clock.monotonic_s() + grace_s
        while True:
            self._reap()
            records = [record for record in records if process_identity.matches(record)]
            if not records or self._clock.monotonic_s() >= until_s:
                return records
            self._clock.sleep(_PAUSE_S)

    def _ended(self, record: Mapping[str, Any], *, told: bool, deaf: bool) -> Stopped:
        """End all that the component started, and remove its record."""
        self._clear(record, record["pid"] if deaf else None)
        for path in (self._path(record["name"]), self._path(record["name"], _EXIT)):
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(path)
        return Stopped(name=record["name"], how="killed" if deaf else "stopped" if told else "was gone")

    def _clear(self, record: Mapping[str, Any], pid: int | None) -> None:
        """End the process, and every other process that carries its mark or is in its cgroup."""
        process_tree.end_tree(pid, f"{MARK}={record['mark']}", grace_s=0)
        self._reap()
        folders = tuple(str(folder) for folder in record.get("cgroup", ()))
        if folders:
            cgroup.LimitGroup(folders=folders, by_thread=False).close()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with contextlib.suppress(FileExistsError):
            fs.mkdir(self._folder)
        with leases.exclusively(f"{self._folder}/{_LOCK}"):
            yield

    def _start(self, component: ProcessSpec, mark: str, group: cgroup.LimitGroup | None) -> int:
        log = fs.open_append(component.log)
        try:
            popen = subprocess.Popen(
                component.argv,
                cwd=component.cwd,
                env={**component.env, MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
        popen.returncode = 0  # without this, Popen warns that the child was not waited for
        self._children[popen.pid] = component.name, mark
        limits = component.limits
        if group is not None:
            group.attach(popen.pid)
        space = limits.memory_bytes if group is None else None
        if space is not None or limits.cpu_s is not None:
            process_limits.apply(popen.pid, process_limits.ProcessLimits(address_space=space, cpu_s=limits.cpu_s))
        return popen.pid

    def _record(self, name: str) -> dict[str, Any]:
        """Return the record; empty if there is none. If its launcher died before it wrote the PID, find the process by
        its mark."""
        record = self._read(name)
        if not record or "pid" in record:
            return record
        mark = f"{MARK}={record['mark']}"
        for look in range(_LOOKS):
            for entry in process_table.entries():
                # The session's leader is the component: its children inherited the mark.
                if entry.alive and entry.pid == entry.session and process_table.carries(entry.pid, mark):
                    return {**record, **process_identity.identity_of(entry.pid)}
            if look + 1 < _LOOKS:
                self._clock.sleep(_PAUSE_S)
        return record

    def _reap(self, only: int | None = None) -> None:
        """Reap our children that ended, or only the given one: a zombie would keep its PID."""
        known = self._children.copy()  # several threads may launch, look and stop at the same time
        for pid in known if only is None else {only} & known.keys():
            name, mark = known[pid]
            with contextlib.suppress(ChildProcessError):
                code = process_tree.exit_code_of(pid)
                if code is None:
                    continue
                told = {"mark": mark, "exit_code": code}
                with contextlib.suppress(OSError):  # a full disk: its exit code stays unknown
                    fs.write_atomic(self._path(name, _EXIT), json.dumps(told).encode() + b"\n", sync=False)
            self._children.pop(pid, None)

    def _exit_code(self, record: Mapping[str, Any]) -> int | None:
        try:
            told = json.loads(fs.read_bytes(self._path(record["name"], _EXIT), 1 << 12))
        except (OSError, ValueError):
            return None
        ours = isinstance(told, dict) and told.get("mark") == record["mark"]
        code = told.get("exit_code") if ours else None
        return code if isinstance(code, int) else None

    def _path(self, name: str, suffix: str = _SUFFIX) -> str:
        return f"{self._folder}/{name}{suffix}"

    def _write(self, record: Mapping[str, Any]) -> None:
        data = json.dumps(record, indent=2).encode() + b"\n"
        fs.write_atomic(self._path(record["name"]), data, sync=False)

    def _read(self, name: str) -> dict[str, Any]:
        """Return the record; empty if there is none, or it is incomplete. Only this class writes here, atomically."""
        if NAME.fullmatch(name) is None:
            return {}
        try:
            data = json.loads(fs.read_bytes(self._path(name), 1 << 20))
        except (OSError, ValueError):
            return {}
        whole = isinstance(data, dict) and {"name", "mark", "argv", "log", "launched_at"} <= data.keys()
        return data if whole else {}


def _group(component: ProcessSpec) -> cgroup.LimitGroup | None:
    """Make a cgroup with the component's memory limit; None if it has no limit, or no cgroup can be made here."""
    if component.limits.memory_bytes is None:
        return None
    return cgroup.make(processes=None, memory_bytes=component.limits.memory_bytes)


def _rotated(log: str) -> int:
    """Rename a log that is too long, and return the size of the one that the next process appends to."""
    try:
        size = fs.lstat(log).st_size
    except FileNotFoundError:
        return 0
    if size > LOG_LIMIT:
        fs.replace(log, f"{log}.1")
        return 0
    return size


def _bound(log: str) -> None:
    """Copy a log that is too long to `.1` and truncate it, because its writer keeps it open. Only output between these
    two calls is lost."""
    if fs.lstat(log).st_size <= LOG_LIMIT:
        return
    fd = fs.open_append(log)
    try:
        size = os.fstat(fd).st_size
        reading = fs.open_read(log)
        try:
            last = fs.read_at(reading, LOG_LIMIT, max(0, size - LOG_LIMIT))
        finally:
            os.close(reading)
        fs.write_atomic(f"{log}.1", last, sync=False)
        fs.truncate(fd, 0)
    finally:
        os.close(fd)


def _seen(record: Mapping[str, Any], *, alive: bool, exit_code: int | None = None) -> ProcessView:
    return ProcessView(
        name=record["name"],
        alive=alive,
        pid=record.get("pid"),
        argv=tuple(record["argv"]),
        log=record["log"],
        launched_at=record["launched_at"],
        launches=_launches(record),
        log_offset=int(record.get("log_offset", 0)),
        exit_code=exit_code,
    )


def _launches(record: Mapping[str, Any]) -> int:
    """Return the number of launches; 1 if an older farro wrote the record."""
    told = record.get("launches")
    return told if isinstance(told, int) else 1


# --- logs of components ---


_LAST, _LINES = 4096, 8
_CHARACTERS = 300  # of the last line of a component that ended
_KILLED = (-signals.KILL, -signal.SIGTERM, -signal.SIGINT)


def last_lines(path: str, lines: int = _LINES, *, since: int = 0) -> str:
    """Return the end of a log, at most what was written from the offset `since`; empty if there is none."""
    try:
        fd = fs.open_read(path)
    except OSError:
        return ""
    try:
        size = os.fstat(fd).st_size
        start = since if since <= size else 0  # the log was rotated
        data = fs.read_at(fd, _LAST, max(start, size - _LAST))
    finally:
        os.close(fd)
    return "\n".join(data.decode("utf-8", "replace").strip().splitlines()[-lines:])


def last_line(path: str) -> tuple[str, str | None]:
    """Return the message and the level of the last line, if farro's own services wrote it; else the line and None."""
    line = last_lines(path, lines=1)
    with contextlib.suppress(ValueError):
        entry = json.loads(line)
        if isinstance(entry, dict) and isinstance(entry.get("message"), str):
            return entry["message"], str(entry.get("level"))
    return line, None


def last_words(dead: ProcessView) -> str:
    """Return the last log line if it may explain the end: a process that was killed could not write why."""
    if dead.exit_code in _KILLED:
        return ""
    return last_line(dead.log)[0][:_CHARACTERS]
