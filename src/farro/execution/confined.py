"""What has allowed_paths runs in the sandbox, and is judged when it is over: the steps of a plan, an agent's program.

How the sandbox is kept and what is a violation lives in guard; when steps run, in run.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence

from farro.execution.commands import Executable
from farro.execution.runner import Guarding
from farro.host import fs, trees
from farro.host.processes import NotStarted, Process
from farro.jobs.outcomes import PATH_VIOLATION, ErrorInfo
from farro.sandbox import leftovers, paths, violations
from farro.sandbox.confinement import Confinement
from farro.sandbox.levels import Sandbox
from farro.sandbox.limits import SharedLimits
from farro.sandbox.paths import PathRefused, WritablePaths
from farro.sandbox.violations import Snapshot

NO_SANDBOX = "sandbox_missing"
TMP = "tmp"  # in the attempt's folder: TMPDIR of its steps, gone when the plan is over


class CannotConfine(Exception):
    """It is not run, because it could not be confined as it asks to be."""

    def __init__(self, category: str, message: str) -> None:
        self.category = category
        super().__init__(message)


class Confined:
    """One for each run of a plan, and for each call of an agent's program."""

    def __init__(
        self,
        *,
        root: str,
        folder: str,
        marker: str,
        guarding: Guarding,
        sandbox: Sandbox,
        allowed: WritablePaths,
        readable: Sequence[str] = (),
    ) -> None:
        self._marker = marker
        self._guarding = guarding
        self._sandbox = sandbox
        self._allowed = allowed
        self._made = {path: os.lstat(path) for path in allowed.made}
        self._root = os.path.realpath(root)
        self._readable = tuple(os.path.realpath(path) for path in readable)
        self.tmp = f"{os.path.realpath(folder)}/{TMP}"
        with contextlib.suppress(FileExistsError):
            fs.mkdir(self.tmp)
        if sandbox.level != "none":
            self._make_hidden()
        self._before = self._look()
        leftovers.opened(marker)
        self._bounds = SharedLimits(
            processes=guarding.processes,
            memory_bytes=guarding.memory_bytes,
            disk=self._root,
            free_bytes=guarding.free_bytes,
        )

    @classmethod
    def of(
        cls,
        *,
        root: str,
        folder: str,
        marker: str,
        guarding: Guarding,
        wanted: tuple[str, ...],
        readable: Sequence[str] = (),
    ) -> Confined:
        """`wanted` is what it may write, relative to the root; `folder` gets its TMPDIR; `readable` is seen though it
        lies under /tmp. CannotConfine: it is not run."""
        level = guarding.sandbox
        sandbox = Sandbox.available(level)
        if sandbox.level == "none" and (guarding.required or level in ("A", "B")):
            asked = f"security.sandbox is {level}" if level in ("A", "B") else "security.require_sandbox is on"
            why = "; ".join(probe.why for probe in sandbox.probes) or "security.sandbox is none"
            raise CannotConfine(NO_SANDBOX, f"it has allowed_paths, {asked}, and no sandbox works: {why}")
        try:
            allowed = paths.allowed(root, wanted, absolute=guarding.absolute)
        except PathRefused as refused:
            raise CannotConfine(PATH_VIOLATION, str(refused)) from refused
        return cls(
            root=root,
            folder=folder,
            marker=marker,
            guarding=guarding,
            sandbox=sandbox,
            allowed=allowed,
            readable=readable,
        )

    def start(
        self,
        command: Executable,
        *,
        stdin: str | int | None,
        stdout: str,
        stderr: str,
        cwd: str,
        env: Mapping[str, str],
        tasks: str | None = None,
        network: bool | None = None,
    ) -> Process | NotStarted:
        """As processes.start. `tasks` is the folder in which the step may add others; `network` None: as the config has
        it for all."""
        guarding = self._guarding
        own = () if tasks is None else (os.path.realpath(tasks),)
        online = guarding.network if network is None else network
        confinement = Confinement(
            writable=(*self._allowed.writable, *own),
            protected=self._allowed.protected,
            readable=(self._root, *self._readable, *_python()),
            hidden=(*self._locks(), *self._keys(online)),
            network=online,
            tmp=self.tmp,
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

    def violation(self, stderr: str | None, said: bytes = b"") -> str | None:
        """What a step that is over did, or tried and failed of. `stderr`: of one that failed, or the end of it."""
        if self._sandbox.compares:
            before, self._before = self._before, self._look()
            changed = violations.changed(before, self._before, only_attributes=self._sandbox.level == "B")
            if changed:
                return f"changed outside allowed_paths: {violations.listed(changed)}"
        if self._sandbox.level == "none":
            return None
        refused = violations.refused_in(said) if stderr is None else violations.refused(stderr)
        return None if refused is None else f"it was refused access outside allowed_paths: {refused}"

    def trouble(self, process: Process) -> ErrorInfo | None:
        """Why a running step has to be ended."""
        return self._bounds.exceeded(process.pid)

    def hit(self) -> str | None:
        """Which bound a failed step may have failed of."""
        return self._bounds.hit()

    def end_strays(self) -> None:
        """Processes that left their step's session and environment behind."""
        if self._sandbox.level == "B":
            leftovers.end(self._marker)
            leftovers.opened(self._marker)  # steps that were added may follow

    def close(self) -> None:
        """The plan is over: what was made for it goes."""
        leftovers.end(self._marker)
        self._bounds.close()
        with contextlib.suppress(OSError):  # a folder that the job closed against its own user stays
            trees.remove_tree(self.tmp)
        for path, was in self._made.items():
            with contextlib.suppress(OSError):
                now = os.lstat(path)
                if now.st_size == 0 and (now.st_ino, now.st_ctime_ns) == (was.st_ino, was.st_ctime_ns):
                    fs.unlink(path)

    def _locks(self) -> tuple[str, ...]:
        """Of level A. To hide a file Landlock must be told of everything beside it, and what comes later is closed."""
        if self._sandbox.level != "A":
            return ()
        places = (f"{root}/{name}" for root in (self._root, *self._readable) for name in paths.LOCKS)
        return tuple(path for path in places if os.path.isfile(path))

    def _keys(self, online: bool) -> tuple[str, ...]:
        """The keys of the HTTP front, and what swarms are steered by. On level B only from a step that could use them:
        see `_locks`."""
        if self._sandbox.level == "none" or (self._sandbox.level == "B" and not online):
            return ()
        places = (f"{root}/{name}" for root in (self._root, *self._readable) for name in paths.KEYS)
        return tuple(path for path in places if os.path.isdir(path))

    def _make_hidden(self) -> None:
        """What is not there cannot be hidden: a step that runs when the first `farro web` starts would see its key."""
        with contextlib.suppress(FileExistsError, FileNotFoundError):  # no jobs/: nobody serves this
            fs.mkdir_private(f"{self._root}/{paths.WEB}")

    def _look(self) -> Snapshot:
        if not self._sandbox.compares:
            return {}
        return violations.snapshot(self._root, self._allowed.writable)


def _python() -> tuple[str, ...]:
    """Where this Python lies: functions run in it."""
    here = (sys.prefix, sys.base_prefix, *sys.path)
    return tuple(dict.fromkeys(os.path.realpath(path) for path in here if path and os.path.isabs(path)))
