"""Run processes with allowed_paths in the sandbox, and check afterwards what they touched: steps, and an agent's
program."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from farro.execution.runner import Guarding
from farro.host import fs, trees
from farro.host.processes import Launch, NotStarted, Process
from farro.jobs.outcomes import PATH_VIOLATION, ErrorInfo
from farro.sandbox import leftovers, paths, violations
from farro.sandbox.confinement import Confinement, LocalService, Network, SharedLimits, within
from farro.sandbox.levels import Sandbox
from farro.sandbox.paths import PathRefused
from farro.sandbox.violations import Snapshot

if TYPE_CHECKING:
    from farro.sandbox.host_proxy import HostProxy

NO_SANDBOX = "sandbox_missing"
_SHOWN = ("AGENTS.md", "schemas", "policy.lock.json")  # of farro's own, what every program may read
TMP = "tmp"  # in the attempt's folder: TMPDIR of its steps, removed when the plan ends


class CannotConfine(Exception):
    """Report that a process was not run because it cannot be confined as requested."""

    def __init__(self, category: str, message: str) -> None:
        self.category = category
        super().__init__(message)


class Confined:
    """The confinement of one run of a plan, or of one call of an agent's program."""

    def __init__(
        self,
        *,
        root: str,
        folder: str,
        marker: str,
        guarding: Guarding,
        wanted: tuple[str, ...],
        readable: Sequence[str] = (),
        home: str | None = None,
    ) -> None:
        """Build the confinement. CannotConfine: do not run it.

        `wanted`: what it may write, relative to the root. `folder` gets its TMPDIR. `readable`: visible although under
        /tmp. `home`: a folder that it may write besides; it is kept.
        """
        level = guarding.sandbox
        self._sandbox = sandbox = Sandbox.available(level)
        if sandbox.level == "none" and (guarding.required or level in ("A", "B")):
            asked = f"security.sandbox is {level}" if level in ("A", "B") else "security.require_sandbox is on"
            why = "; ".join(probe.why for probe in sandbox.probes) or "security.sandbox is none"
            raise CannotConfine(NO_SANDBOX, f"it has allowed_paths, {asked}, and no sandbox works: {why}")
        try:
            self._allowed = paths.allowed(root, wanted, absolute=guarding.absolute)
        except PathRefused as refused:
            raise CannotConfine(PATH_VIOLATION, str(refused)) from refused
        self._marker = marker
        self._guarding = guarding
        self._made = {path: os.lstat(path) for path in self._allowed.made}
        self._root = os.path.realpath(root)
        self._readable = tuple(os.path.realpath(path) for path in readable)
        self._home = () if home is None else (os.path.realpath(home),)
        self.tmp = f"{os.path.realpath(folder)}/{TMP}"
        with contextlib.suppress(FileExistsError):
            fs.mkdir(self.tmp)
        if sandbox.level != "none":
            self._make_hidden()
        self._lock = threading.Lock()  # steps of one plan run at the same time
        self._proxies: dict[tuple[str, ...], HostProxy] = {}  # by their hosts
        self._before = self._look()
        leftovers.opened(marker)
        self._bounds = SharedLimits(
            processes=guarding.processes,
            memory_bytes=guarding.memory_bytes,
            disk=self._root,
            free_bytes=guarding.free_bytes,
        )

    def start(
        self,
        launch: Launch,
        *,
        tasks: str | None = None,
        network: Network | None = None,
        services: tuple[LocalService, ...] = (),
        reads: tuple[str, ...] | None = None,
    ) -> Process | NotStarted:
        """Start a process as processes.start does. `tasks`: the folder in which the step may add tasks; `network`
        None: as configured; `services`: that it can reach without a network; `reads`: all that it may read besides
        what every program needs, the workspace without farro's own folders, and its own installation; None: what its
        user can read."""
        confinement = self.confinement(tasks=tasks, network=network, services=services, reads=reads)
        return self._sandbox.start(launch, confinement=confinement, bounds=self._bounds)

    def confinement(
        self,
        *,
        tasks: str | None = None,
        network: Network | None = None,
        services: tuple[LocalService, ...] = (),
        reads: tuple[str, ...] | None = None,
    ) -> Confinement:
        """Return the access rights that `start` gives to a process."""
        guarding = self._guarding
        own = () if tasks is None else (os.path.realpath(tasks),)
        wanted = guarding.network if network is None else network
        online = wanted is True
        proxy = self._proxy_to(wanted) if isinstance(wanted, tuple) and wanted else None
        return Confinement(
            writable=(*self._allowed.writable, *own, *self._home),
            protected=self._allowed.protected,
            readable=(self._root, *self._readable, *_python()),
            hidden=(*self._locks(), *self._keys(online)) if reads is None else self._farro(),
            reads=None if reads is None else (self._root, *reads),
            network=online,
            services=services if proxy is None else (*services, proxy.service),
            tmp=self.tmp,
            memory_bytes=guarding.memory_bytes,
            processes=guarding.processes,
            env={} if proxy is None else proxy.variables(),
        )

    def _proxy_to(self, hosts: tuple[str, ...]) -> HostProxy:
        from farro.sandbox.host_proxy import HostProxy  # here: few processes need one

        with self._lock:
            if hosts not in self._proxies:
                self._proxies[hosts] = HostProxy(hosts)
            return self._proxies[hosts]

    def may_write(self, path: str) -> bool:
        """Return whether a process may write that path, as it is now."""
        place = os.path.realpath(path)
        protected = any(within(place, one) for one in self._allowed.protected)
        return not protected and any(within(place, one) for one in (*self._allowed.writable, *self._home, self.tmp))

    def violation(self, stderr: str | None, said: bytes = b"") -> str | None:
        """Return what a finished step did, or failed to do, outside allowed_paths. `stderr`: file of a failed step;
        `said`: the end of it."""
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
        """Return why a running step must be ended."""
        return self._bounds.exceeded(process.pid)

    def hit(self) -> str | None:
        """Return which limit a failed step may have hit."""
        return self._bounds.hit()

    def end_leftovers(self) -> None:
        """End processes that left their step's session and environment."""
        if self._sandbox.level == "B":
            leftovers.end(self._marker)
            leftovers.opened(self._marker)  # added steps may follow

    def close(self) -> None:
        """Remove what was made for the plan."""
        leftovers.end(self._marker)
        self._bounds.close()
        for proxy in self._proxies.values():
            proxy.close()
        with contextlib.suppress(OSError):  # a folder that the job made inaccessible stays
            trees.remove_tree(self.tmp)
        for path, was in self._made.items():
            with contextlib.suppress(OSError):
                now = os.lstat(path)
                if now.st_size == 0 and (now.st_ino, now.st_ctime_ns) == (was.st_ino, was.st_ctime_ns):
                    fs.unlink(path)

    def _locks(self) -> tuple[str, ...]:
        """Return the lock files to hide on level A. To hide a file, Landlock needs a rule for everything beside it,
        and files created later are inaccessible."""
        if self._sandbox.level != "A":
            return ()
        places = (f"{root}/{name}" for root in (self._root, *self._readable) for name in paths.LOCKS)
        return tuple(path for path in places if os.path.isfile(path))

    def _keys(self, online: bool) -> tuple[str, ...]:
        """Return the keys of the HTTP API and the control files of swarms. On level B only if the step has network
        access and could use them; see `_locks`."""
        if self._sandbox.level == "none" or (self._sandbox.level == "B" and not online):
            return ()
        places = (f"{root}/{name}" for root in (self._root, *self._readable) for name in paths.KEYS)
        return tuple(path for path in places if os.path.isdir(path))

    def _farro(self) -> tuple[str, ...]:
        """Return farro's own folders and its config, which hold other jobs."""
        found: list[str] = []
        for root in self._readable or (self._root,):  # a worktree has copies only
            with contextlib.suppress(OSError):
                found += (f"{root}/{name}" for name in os.listdir(root) if paths.is_own(name) and name not in _SHOWN)
        return tuple(found)

    def _make_hidden(self) -> None:
        """Make the folder of keys: a folder that does not exist cannot be hidden, and a running step would see the
        key of the first `farro web`."""
        with contextlib.suppress(FileExistsError, FileNotFoundError):  # no jobs/: nothing serves this root
            fs.mkdir_private(f"{self._root}/{paths.WEB}")

    def _look(self) -> Snapshot:
        if not self._sandbox.compares:
            return {}
        return violations.snapshot(self._root, self._allowed.writable)


def _python() -> tuple[str, ...]:
    """Return where this Python is installed: functions run in it."""
    here = (sys.prefix, sys.base_prefix, *sys.path)
    return tuple(dict.fromkeys(os.path.realpath(path) for path in here if path and os.path.isabs(path)))
