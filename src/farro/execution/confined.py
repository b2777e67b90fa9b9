"""A plan with allowed_paths: every process of its steps runs in the sandbox, and is judged when it is over.

How the sandbox is kept and what is a violation lives in guard; when steps run, in run.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping

from farro.execution.commands import Executable
from farro.guard import judge, paths, strays
from farro.guard.bounds import Bounds
from farro.guard.confinement import Confinement
from farro.guard.judge import Snapshot
from farro.guard.paths import Allowed, PathRefused
from farro.guard.sandbox import Sandbox
from farro.kernel.outcome import PATH_VIOLATION, ErrorInfo
from farro.ports.runner import Work
from farro.system import fs
from farro.system.processes import NotStarted, Process

NO_SANDBOX = "sandbox_missing"
_TMP = "tmp"  # in the attempt's folder: TMPDIR of its steps, gone when the plan is over


class CannotConfine(Exception):
    """The plan is not run, because it could not be confined as it asks to be."""

    def __init__(self, category: str, message: str) -> None:
        self.category = category
        super().__init__(message)


class Confined:
    """One for each run of a plan."""

    def __init__(self, work: Work, sandbox: Sandbox, allowed: Allowed) -> None:
        self._work = work
        self._sandbox = sandbox
        self._allowed = allowed
        self._made = {path: os.lstat(path) for path in allowed.made}
        self._root = os.path.realpath(work.root)
        self._tmp = f"{os.path.realpath(work.folder)}/{_TMP}"
        with contextlib.suppress(FileExistsError):
            fs.mkdir(self._tmp)
        self._before = self._look()
        strays.opened(work.marker)
        guarding = work.guarding
        self._bounds = Bounds(
            processes=guarding.processes,
            memory_bytes=guarding.memory_bytes,
            disk=self._root,
            free_bytes=guarding.free_bytes,
        )

    @classmethod
    def of(cls, work: Work, wanted: tuple[str, ...]) -> Confined:
        """CannotConfine: it is not run."""
        sandbox = Sandbox.available(work.guarding.sandbox)
        wanted_level, why = work.guarding.sandbox, "; ".join(probe.why for probe in sandbox.probes)
        if sandbox.level == "none" and (work.guarding.required or wanted_level in ("A", "B")):
            asked = "security.require_sandbox is on"
            if wanted_level in ("A", "B"):
                asked = f"security.sandbox is {wanted_level}"
            why = why or "security.sandbox is none"
            raise CannotConfine(NO_SANDBOX, f"the plan has allowed_paths, {asked}, and no sandbox works: {why}")
        try:
            return cls(work, sandbox, paths.allowed(work.root, wanted, absolute=work.guarding.absolute))
        except PathRefused as refused:
            raise CannotConfine(PATH_VIOLATION, str(refused)) from refused

    def start(
        self,
        command: Executable,
        *,
        stdin: str | int | None,
        stdout: str,
        stderr: str,
        cwd: str,
        env: Mapping[str, str],
        tasks: str,
    ) -> Process | NotStarted:
        """As processes.start. `tasks` is the folder in which the step may add others."""
        guarding = self._work.guarding
        confinement = Confinement(
            writable=(*self._allowed.writable, os.path.realpath(tasks)),
            protected=self._allowed.protected,
            readable=(self._root, *_python()),
            network=guarding.network,
            tmp=self._tmp,
            memory_bytes=guarding.memory_bytes,
            processes=guarding.processes,
        )
        return self._sandbox.start(
            command.argv,
            executable=command.file,
            confinement=confinement,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            env=env,
            bounds=self._bounds,
        )

    def violation(self, stderr: str | None) -> str | None:
        """What a step that is over did, or tried and failed of. `stderr`: of one that failed."""
        if self._sandbox.compares:
            before, self._before = self._before, self._look()
            changed = judge.changed(before, self._before, only_attributes=self._sandbox.level == "B")
            if changed:
                return f"changed outside allowed_paths: {judge.listed(changed)}"
        said = judge.refused(stderr) if stderr is not None and self._sandbox.level != "none" else None
        return None if said is None else f"it was refused access outside allowed_paths: {said}"

    def trouble(self, process: Process) -> ErrorInfo | None:
        """Why a running step has to be ended."""
        return self._bounds.exceeded(process.pid)

    def hit(self) -> str | None:
        """Which bound a failed step may have failed of."""
        return self._bounds.hit()

    def end_strays(self) -> None:
        """Processes that left their step's session and environment behind."""
        if self._sandbox.level == "B":
            strays.end(self._work.marker)
            strays.opened(self._work.marker)  # steps that were added may follow

    def close(self) -> None:
        """The plan is over: what was made for it goes."""
        strays.end(self._work.marker)
        self._bounds.close()
        with contextlib.suppress(OSError):  # a folder that the job closed against its own user stays
            fs.remove_tree(self._tmp)
        for path, was in self._made.items():
            with contextlib.suppress(OSError):
                now = os.lstat(path)
                if now.st_size == 0 and (now.st_ino, now.st_ctime_ns) == (was.st_ino, was.st_ctime_ns):
                    fs.unlink(path)

    def _look(self) -> Snapshot:
        if not self._sandbox.compares:
            return {}
        return judge.snapshot(self._root, self._allowed.writable)


def _python() -> tuple[str, ...]:
    """Where this Python lies: functions run in it."""
    here = (sys.prefix, sys.base_prefix, *sys.path)
    return tuple(dict.fromkeys(os.path.realpath(path) for path in here if path and os.path.isabs(path)))
