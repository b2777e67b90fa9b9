"""Keep the services of a root running: manager, watchdog, workers and web, as `farro up` starts them.

One supervisor process per root starts the services in order, restarts those that end, and stops those that are not
wanted any more. Commands do not talk to it: `farro up` and `farro down` write which services should run, and the
supervisor compares that with the processes, again and again. In <root>/jobs/.components:

  <name>.json, <name>.exit   the process of a service, and how it ended (process_runtime.py)
  .wanted                    the services that should run, in order
  .status                    how each of them ended last, and why it is left alone
  .supervisor                locked by the process that acts: the supervisor, or `farro down`

A supervisor may be killed at any moment. Its services go on, because they are not in its session, and the next one
finds each of them by its record and adopts it. [test_a_supervisor_killed_at_any_call_starts_no_service_twice]
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from farro.errors import AlreadyRunning, FarroError, InputError
from farro.host import fs, leases, waiting
from farro.host.clock import Clock
from farro.jobs.times import timestamp
from farro.lazy_dataclass import dataclass, field
from farro.log.structured import Log
from farro.roles.names import RUNNER
from farro.worker.process_runtime import last_lines, last_words
from farro.worker.restarts import STEADY_S, decide, describe_exit, pause_s
from farro.worker.runtime import STOP_S, ComponentProcess, ProcessSpec, ProcessView, Runtime, Stopped, uptime_s

FOLDER = "jobs/.components"
SUPERVISOR = "farro-supervisor"
GROUP = "farro"  # `farro ps` lists the services under this name, beside those of swarms
WORKERS, SLOTS = 2, 2  # per role
SETTLE_S = 30.0  # for every service to get ready
READY_S = 3.0  # a service that lived this long is ready, even if its log level hides the line that says so
_READY = " started"  # what each service logs when it is ready
_LEAVE_S = 2.0  # for a supervisor to end its turn
_TURN_S, _LOOK_S, _TIDY_S = 0.2, 0.05, 60.0
_LIMIT = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """A service of a root: its name, the role that `farro ps` shows, and its command."""

    name: str
    role: str
    argv: tuple[str, ...]


def default_services(
    root: str,
    *,
    program: Sequence[str],
    roles: Sequence[str] = (RUNNER,),
    workers: int = WORKERS,
    slots: int = SLOTS,
    runner: str | None = None,
    store: str | None = None,
    web: bool = False,
    checked: bool = True,
) -> tuple[Service, ...]:
    """Return what a root needs: a manager (routing, stale jobs, schedules), a watchdog, workers of each role, the web.

    `program` is the command that starts farro here; `store` overrides the one of the config. Without `checked` they
    start even where doctor's gates fail.
    """
    where = ["--root", root, *([] if store is None else ["--store", store]), *([] if checked else ["--no-checks"])]
    runner_options = [] if runner is None else ["--runner", runner]
    commands = [("manager", 1, ["manager"]), ("watchdog", 1, ["watchdog"])]
    for role in roles:
        name = "worker" if role == RUNNER else f"worker-{role.lower().replace('_', '-')}"
        commands.append((name, workers, ["worker", "--role", role, "--slots", str(slots), *runner_options]))
    if web:
        commands.append(("web", 1, ["web", "--service"]))
    return tuple(
        Service(
            name=f"{GROUP}-{role}" if count == 1 else f"{GROUP}-{role}-{number}",
            role=role,
            argv=(*program, *words, *where),
        )
        for role, count, words in commands
        for number in range(1, count + 1)
    )


# --- the files ---


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The services that should run. After `down --kill` they are still listed, and `running` is False."""

    command: str  # the id of the command that wrote it: a new one lets failed services start again
    running: bool
    services: tuple[Service, ...]


NOTHING = Wanted(command="", running=False, services=())


@dataclass(kw_only=True)
class ServiceHistory:
    """What the supervisor knows about one service beyond its process."""

    starts: int = 0  # in a row: a service that lived for a minute begins a new row
    failure: str | None = None  # why it does not run, after its immediate restart failed
    last_end: dict[str, str] | None = None  # at, how, words
    launched_s: float | None = None
    ended_s: float | None = None  # None while it lives


class ServiceFiles:
    """Read and write .wanted and .status. Both are replaced atomically; a damaged one counts as absent."""

    def __init__(self, root: str) -> None:
        self._folder = f"{root}/{FOLDER}"
        self._wanted, self._status = f"{self._folder}/.wanted", f"{self._folder}/.status"
        self.lock = f"{self._folder}/.supervisor"

    def make(self) -> None:
        with contextlib.suppress(FileExistsError):
            fs.mkdir_private(self._folder)  # a command line may hold the address of a store

    def wanted(self) -> Wanted:
        try:
            data = _read(self._wanted)
            services = tuple(Service(**{**one, "argv": tuple(one["argv"])}) for one in data["services"])
            return Wanted(command=str(data["command"]), running=data["running"] is True, services=services)
        except (LookupError, TypeError, ValueError):
            return NOTHING

    def want(self, services: Sequence[Service], *, running: bool = True) -> Wanted:
        """Write the services that should run, as a new command."""
        self.make()
        wanted = Wanted(command=os.urandom(8).hex(), running=running, services=tuple(services))
        _write(self._wanted, asdict(wanted))
        return wanted

    def forget(self) -> None:
        for path in (self._status, self._wanted):
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(path)

    def status(self, wanted: Wanted) -> dict[str, dict[str, Any]] | None:
        """Return failure and last_end by service; None if no supervisor acted on this command yet."""
        data = _read(self._status)
        return data.get("services") if data.get("command") == wanted.command else None

    def write_status(self, status: Mapping[str, Any]) -> None:
        _write(self._status, status)


def _read(path: str) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        data = json.loads(fs.read_bytes(path, _LIMIT))
        return data if isinstance(data, dict) else {}
    return {}


def _write(path: str, data: Any) -> None:
    fs.write_atomic(path, json.dumps(data).encode() + b"\n", sync=False)


# --- the supervisor ---


class Supervisor:
    """Compare the services that should run with those that do, and act on the difference."""

    def __init__(self, root: str, *, env: Mapping[str, str], runtime: Runtime, clock: Clock, log: Log) -> None:
        self._root = root
        self._env = env
        self._runtime = runtime
        self._clock = clock
        self._log = log
        self._files = ServiceFiles(root)
        self._command = ""
        self._histories: dict[str, ServiceHistory] = {}
        self._written: Mapping[str, Any] = {}
        self._tidied_s = clock.monotonic_s()
        self._flag = waiting.Flag()
        self._stopped = False

    def run(self) -> None:
        """Repeat turns until `stop`, or until no service should run. Waits while another process acts."""
        self._files.make()
        with leases.exclusively(self._files.lock, listening=True):
            while not self._stopped and self._safe_turn():
                waiting.readable([self._flag.fd], _TURN_S)

    def stop(self) -> None:
        """End after the present turn; the services go on. From any thread or signal handler."""
        self._stopped = True
        self._flag.set()

    def _safe_turn(self) -> bool:
        try:
            return self.run_once()
        except (FarroError, OSError) as error:  # a full disk, too many processes: tried again
            self._log("error", f"{type(error).__name__}: {error}", {"event": {"type": "keeper_trouble"}})
            return True

    def run_once(self) -> bool:
        """Do one turn. Return False if no service should run."""
        wanted = self._files.wanted()
        if not wanted.running:
            return False
        if wanted.command != self._command:
            self._command = wanted.command
            for history in self._histories.values():
                history.starts, history.failure = min(history.starts, 1), None
        self._stop_unwanted(wanted.services)
        for service in wanted.services:
            self._keep(service)
        self._report(wanted)
        if self._clock.monotonic_s() - self._tidied_s >= _TIDY_S:
            self._tidied_s = self._clock.monotonic_s()
            self._runtime.tidy()
        return True

    def _stop_unwanted(self, services: Sequence[Service]) -> None:
        """Stop services that are not wanted, or run with another command."""
        commands = {service.name: service.argv for service in services}
        unwanted = [
            seen.name
            for seen in self._runtime.list()
            if seen.name != SUPERVISOR
            and (seen.name not in commands or (seen.alive and seen.argv != commands[seen.name]))
        ]
        for stopped in self._runtime.stop(unwanted, STOP_S) if unwanted else ():
            self._histories.pop(stopped.name, None)
            self._log("info", f"{stopped.name}: {stopped.how}", {})

    def _keep(self, service: Service) -> None:
        """Launch a service that does not run, unless it must wait or is left alone."""
        history = self._histories.setdefault(service.name, ServiceHistory())
        seen, now_s = self._runtime.look(service.name), self._clock.monotonic_s()
        if seen is not None and seen.alive:
            if history.launched_s is None:
                history.launched_s = now_s  # started by an earlier supervisor
            history.starts, history.ended_s, history.failure = max(1, history.starts), None, None
            return
        if seen is not None and history.ended_s is None:
            self._note_end(seen, history, now_s)
        if history.ended_s is not None:
            starts, exit_code = max(1, history.starts), None if seen is None else seen.exit_code
            decision = decide("always", starts=starts, exit_code=exit_code, ended_s=history.ended_s, now_s=now_s)
            if decision.what != "launch":
                again = f"ended {describe_exit(exit_code)}, and is started again after {pause_s(starts):g} s"
                history.failure = decision.why or again
                if seen is not None and (words := last_words(seen)):
                    history.failure += f"; logs/{service.name}.log ends with: {words}"
                return
        self._launch(service, history, now_s)

    def _note_end(self, seen: ProcessView, history: ServiceHistory, now_s: float) -> None:
        history.ended_s = now_s
        if history.launched_s is not None and now_s - history.launched_s > STEADY_S:
            history.starts = 1
        how = describe_exit(seen.exit_code)
        history.last_end = {"at": timestamp(self._clock.now()), "how": how, "words": last_words(seen)}
        self._log("warning", f"{seen.name} ended {how}", {"pid": seen.pid})

    def _launch(self, service: Service, history: ServiceHistory, now_s: float) -> None:
        spec = ProcessSpec(
            name=service.name, argv=service.argv, env=self._env, cwd=self._root, log=log_path(self._root, service.name)
        )
        try:
            seen = self._runtime.launch(spec)
            history.ended_s = None
            self._log("info", f"{service.name} was started", {"pid": seen.pid})
        except InputError as error:  # it cannot be executed: tried again as if it had ended
            history.ended_s = now_s
            history.last_end = {"at": timestamp(self._clock.now()), "how": "before it ran", "words": str(error)}
            self._log("error", str(error), {})
        history.starts += 1
        history.launched_s = now_s

    def _report(self, wanted: Wanted) -> None:
        """Write the status if it changed."""
        services = {
            service.name: {"failure": known.failure, "last_end": known.last_end}
            for service in wanted.services
            if (known := self._histories.get(service.name)) is not None
        }
        status = {"command": wanted.command, "services": services}
        if status != self._written:
            self._files.write_status(status)
            self._written = status


def log_path(root: str, name: str) -> str:
    return f"{root}/logs/{name}.log"


def is_ready(seen: ProcessView, clock: Clock) -> bool:
    """Return whether a live service has logged that it started, or has lived long enough."""
    if uptime_s(seen, clock) >= READY_S:
        return True
    return _READY in last_lines(seen.log, since=seen.log_offset)


# --- the commands ---


StartWhat = Literal["started", "already runs", "failed", "not ready"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StartResult:
    """The result of `up` for one service."""

    name: str
    what: StartWhat
    pid: int | None  # of one that failed: the process that ended
    log: str
    said: str = ""  # the last log lines of one with a problem


class StoppedMeanwhile(FarroError):
    """Another command stopped the services."""


@dataclass(frozen=True, kw_only=True)
class ServiceCommands:
    """`up`, `down` and `ps`. `supervisor` is the command that starts a supervisor."""

    root: str
    runtime: Runtime
    clock: Clock
    supervisor: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def files(self) -> ServiceFiles:
        return ServiceFiles(self.root)

    def up(self, services: Sequence[Service], *, over: Callable[[], bool] = lambda: False) -> list[StartResult]:
        """Make these services run, and wait until each is ready or has failed. Safe to repeat: what already runs as
        wanted is left alone. `over` returns whether the caller stopped waiting."""
        before = {seen.name: seen.pid for seen in self.runtime.list() if seen.alive}
        self.files.want(services)
        until_s, launches = self.clock.monotonic_s() + SETTLE_S, 0
        while True:
            launches += self.ensure()
            if launches > 2:
                log = log_path(self.root, SUPERVISOR)
                raise FarroError(f"the supervisor ends at once; {log} ends with:\n{last_lines(log)}")
            wanted = self.files.wanted()
            if not wanted.running:
                raise StoppedMeanwhile("another command stopped the services; `farro up` starts them again")
            found, acted = self.processes(), self.files.status(wanted) is not None
            settled = acted and all(one.state in ("Running", "Failed") for one in found)
            if settled or self.clock.monotonic_s() >= until_s or over():
                return [self._result(one, before) for one in found]
            self.clock.sleep(_LOOK_S)

    def ensure(self) -> bool:
        """Start a supervisor unless one runs. Return whether it was started."""
        if self.supervisor_pid() is not None:
            return False
        with contextlib.suppress(FileExistsError):
            fs.mkdir(f"{self.root}/logs")
        log = log_path(self.root, SUPERVISOR)
        spec = ProcessSpec(name=SUPERVISOR, argv=self.supervisor, env=self.env, cwd=self.root, log=log)
        with contextlib.suppress(AlreadyRunning):
            self.runtime.launch(spec)
            return True
        return False

    def supervisor_pid(self) -> int | None:
        seen = self.runtime.look(SUPERVISOR)
        return seen.pid if seen is not None and seen.alive else None

    def down(self, *, kill: bool = False) -> list[Stopped]:
        """Stop every service, by force after ten seconds, or at once with `kill`: then they stay listed. The caller
        acts itself, under the supervisor's lock, so it makes no difference whether a supervisor runs or hangs."""
        wanted = self.files.wanted()
        if not wanted.services and not self.runtime.list():
            return []
        mark = self.files.want(wanted.services, running=False)
        self.runtime.end_alone(SUPERVISOR, 0.0 if kill else _LEAVE_S)
        with leases.exclusively(self.files.lock, listening=True):
            recorded = [seen.name for seen in self.runtime.list() if seen.name != SUPERVISOR]
            how = {one.name: one.how for one in self.runtime.stop(recorded, 0.0 if kill else STOP_S)}
            if self.supervisor_pid() is None:
                self.runtime.stop([SUPERVISOR], 0.0)
            if not kill and self.files.wanted().command == mark.command:
                self.files.forget()
        if kill:
            how = {name: "killed" for name, one in how.items() if one != "was gone"}
        names = dict.fromkeys([*(one.name for one in wanted.services), *recorded])
        return [Stopped(name=name, how=how.get(name, "was gone")) for name in names]

    def processes(self) -> list[ComponentProcess]:
        """List the services that should run, in order."""
        wanted = self.files.wanted()
        status = self.files.status(wanted) or {}
        supervised = wanted.running and self.supervisor_pid() is not None
        return [self._process(service, status.get(service.name, {}), supervised) for service in wanted.services]

    def _process(self, service: Service, known: Mapping[str, Any], supervised: bool) -> ComponentProcess:
        seen, failure = self.runtime.look(service.name), known.get("failure")
        alive = seen if seen is not None and seen.alive else None
        if alive is not None:
            state = "Running" if is_ready(alive, self.clock) else "Provisioning"
        else:
            state = "Failed" if failure else "Provisioning" if supervised else "Stopped"
        return ComponentProcess(
            name=service.name,
            role=service.role,
            swarm=GROUP,
            state=state,
            enabled=state == "Running",
            pid=None if alive is None else alive.pid,
            uptime_s=None if alive is None else uptime_s(alive, self.clock),
            restarts=0 if seen is None else seen.launches - 1,
            log=log_path(self.root, service.name),
            failure=None if alive is not None else failure,
            last_end=known.get("last_end"),
        )

    def _result(self, process: ComponentProcess, before: Mapping[str, int | None]) -> StartResult:
        seen = self.runtime.look(process.name)
        pid, offset = (None, 0) if seen is None else (seen.pid, seen.log_offset)
        if process.state == "Running":
            what: StartWhat = "already runs" if before.get(process.name) == pid else "started"
            return StartResult(name=process.name, what=what, pid=pid, log=process.log)
        said = last_lines(process.log, since=offset) or process.failure or ""
        what = "failed" if process.state == "Failed" else "not ready"
        return StartResult(name=process.name, what=what, pid=pid, log=process.log, said=said)
