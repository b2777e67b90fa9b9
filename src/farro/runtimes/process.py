"""Components as detached processes of this machine, each with a record on disk.

What a component does is its own; which there are lives with whoever launches.

A launch is: take the folder's lock; write a record with a new mark; start the process with that mark in its
environment; write its number, start time and boot into the record. The kernel drops the lock when a launcher dies. A
launcher that died before the last step leaves a record without a number, and the process is found by the mark; if there
is none, it was never started, or it ended. Records are read by everybody and written under the lock.
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
from farro.kernel.moments import timestamp
from farro.ports.clock import Clock
from farro.ports.runtime import NAME, STOP_S, Component, Seen, Stopped
from farro.system import fs, leases, process_identity, process_table, process_tree

MARK = "FARRO_COMPONENT"
_LOCK = ".lock"
_SUFFIX = ".json"
_LOOKS, _PAUSE_S = 3, 0.02  # for a process that is just becoming its program: until then its environment is another's
_LOG_LIMIT = 10 << 20  # bytes; a longer log is set aside, as `.1`, when its component is launched again


class ProcessRuntime:
    """Port: Runtime. `folder` is where the records are; it is made when it is needed."""

    def __init__(self, folder: str, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._children: set[int] = set()

    def launch(self, component: Component) -> Seen:
        if NAME.fullmatch(component.name) is None:
            raise BadName(f"{component.name!r} is no name for a component: small letters, digits and dashes")
        with self._locked():
            before = self.look(component.name)
            if before is not None and before.alive:
                raise AlreadyRunning(f"{component.name} runs already (pid {before.pid}); stop it first")
            record: dict[str, Any] = {
                "name": component.name,
                "mark": f"{component.name}.{os.urandom(8).hex()}",
                "argv": list(component.argv),
                "log": component.log,
                "launched_at": timestamp(self._clock.now()),
            }
            self._write(record)
            try:
                pid = self._start(component, record["mark"])
            except (OSError, ValueError) as error:
                fs.unlink(self._path(component.name))
                what = (error.filename or component.argv[0]) if isinstance(error, OSError) else component.argv[0]
                why = error.strerror if isinstance(error, OSError) else str(error)
                raise InputError(f"{component.name} could not be started: {what}: {why}") from error
            record |= process_identity.identity_of(pid)
            with contextlib.suppress(OSError):  # it runs, and is found by its mark
                self._write(record)
            return _seen(record, alive=True)

    def look(self, name: str) -> Seen | None:
        record = self._read(name)
        if not record:
            return None
        self._reap()
        if "pid" not in record:
            record = self._found(record)
        return _seen(record, alive=process_identity.matches(record))

    def list(self) -> Sequence[Seen]:
        try:
            names = sorted(fs.listdir(self._folder))
        except FileNotFoundError:
            return []
        found = (self.look(name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX))
        return [seen for seen in found if seen is not None]

    def stop(self, names: Sequence[str], grace_s: float = STOP_S) -> Sequence[Stopped]:
        with self._locked():
            records = {name: self._found(record) for name in names if (record := self._read(name))}
            told = [record for record in records.values() if _terminate(record)]
            until_s = self._clock.monotonic_s() + grace_s
            deaf: Sequence[Mapping[str, Any]] = told
            while (deaf := self._living(deaf)) and self._clock.monotonic_s() < until_s:
                self._clock.sleep(_PAUSE_S)
            return [self._ended(record, told=record in told, deaf=record in deaf) for record in records.values()]

    def _living(self, records: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        self._reap()
        return [record for record in records if process_identity.matches(record)]

    def _ended(self, record: Mapping[str, Any], *, told: bool, deaf: bool) -> Stopped:
        """Nothing that it started is left, and no record."""
        process_tree.end_tree(record["pid"] if deaf else None, f"{MARK}={record['mark']}", grace_s=0)
        self._reap()
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(self._path(record["name"]))
        return Stopped(name=record["name"], how="killed" if deaf else "stopped" if told else "was gone")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with contextlib.suppress(FileExistsError):
            fs.mkdir(self._folder)
        with leases.exclusively(f"{self._folder}/{_LOCK}"):
            yield

    def _start(self, component: Component, mark: str) -> int:
        with contextlib.suppress(FileNotFoundError):
            if fs.lstat(component.log).st_size > _LOG_LIMIT:
                fs.replace(component.log, f"{component.log}.1")
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
        popen.returncode = 0  # it is not waited for: without this Popen warns of a child left behind
        self._children.add(popen.pid)
        return popen.pid

    def _found(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The record, with the number that its launcher did not live to write, if that process is there."""
        if "pid" in record:
            return dict(record)
        mark = f"{MARK}={record['mark']}"
        for look in range(_LOOKS):
            for entry in process_table.entries():
                # Its session's leader: what it started inherited the mark.
                if entry.alive and entry.pid == entry.session and process_table.carries(entry.pid, mark):
                    return {**record, **process_identity.identity_of(entry.pid)}
            if look + 1 < _LOOKS:
                self._clock.sleep(_PAUSE_S)
        return dict(record)

    def _reap(self) -> None:
        """Take away those of our own that ended: a zombie would keep its number."""
        for pid in [*self._children]:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._children.discard(pid)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}{_SUFFIX}"

    def _write(self, record: Mapping[str, Any]) -> None:
        data = json.dumps(record, indent=2).encode() + b"\n"
        fs.write_atomic(self._path(record["name"]), data, sync=False)

    def _read(self, name: str) -> dict[str, Any]:
        """Empty when there is none, or none that is whole: nobody else writes here, and writing is atomic."""
        if NAME.fullmatch(name) is None:
            return {}
        try:
            data = json.loads(fs.read_bytes(self._path(name), 1 << 20))
        except (OSError, ValueError):
            return {}
        whole = isinstance(data, dict) and {"name", "mark", "argv", "log", "launched_at"} <= data.keys()
        return data if whole else {}


def _seen(record: Mapping[str, Any], *, alive: bool) -> Seen:
    return Seen(
        name=record["name"],
        alive=alive,
        pid=record.get("pid"),
        argv=tuple(record["argv"]),
        log=record["log"],
        launched_at=record["launched_at"],
    )


def _terminate(record: Mapping[str, Any]) -> bool:
    """SIGTERM to its group, a moment after it was recognised; whether it was there."""
    if not process_identity.matches(record):
        return False
    pid = record["pid"]
    with contextlib.suppress(ProcessLookupError, PermissionError):
        entry = process_table.entry(pid)
        send = os.killpg if entry is not None and entry.group == pid else os.kill
        send(pid, signal.SIGTERM)
        send(pid, signal.SIGCONT)  # a stopped one would sleep through it
    return True
