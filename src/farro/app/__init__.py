"""The only module that chooses adapters: which store, which clock, which tools, which runner, which runtime.

Rules and loops live below; arguments and printing live in cli.
"""

from __future__ import annotations

import functools
import os
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from farro.config.settings import UNCAPPED, ProviderSettings, Settings
from farro.errors import Refused
from farro.execution.runner import Guarding, Runner
from farro.host import process_identity, worker_processes
from farro.host.clock import SystemClock
from farro.host.clock_port import Clock
from farro.log.audit import AuditLog, AuditPolicy
from farro.log.structured import Log, redact_with
from farro.store.files import FilesStore
from farro.store.files.context import Ground, no_log
from farro.store.files.journal import Journal
from farro.store.port import Store, StorePolicy
from farro.worker.runtime import Runtime

if TYPE_CHECKING:
    from farro.agents.agent_step import Agents
    from farro.agents.calling import CallTry
    from farro.agents.manager.manager import Manager
    from farro.agents.provider_test import ProviderTestResult
    from farro.agents.providers.port import Provider
    from farro.queue.admission import Gate
    from farro.queue.scheduler import Timetable
    from farro.store.ledger import Ledger
    from farro.store.library import Library
    from farro.worker.hand_off import Handover
    from farro.worker.perform import Performer
    from farro.worker.snapshot import Snapshots


def open_store(
    root: str,
    settings: Settings,
    *,
    clock: Clock | None = None,
    log: Log | None = None,
    actor: str = "farro",
    brief: bool = False,
    patient: bool = False,
) -> Store:
    """The store of a root, wired to the real machine: its folders, or where `store` says. `actor` is who enqueues, for
    the audit log; `brief` is for a process that ends at once: it needs no thread to write that log, and somebody waits
    for its answer. `patient`: what it has to tell matters more than that."""
    audit = AuditLog(
        f"{root}/logs",
        actor=actor,
        clock=clock or SystemClock(),
        policy=audit_policy(settings),
        background=not brief,
        log=log,
    )
    if not brief:
        audit.mend()
    if settings.store != "files":
        from farro.app.machines import open_redis

        return open_redis(
            root,
            settings,
            policy=_store_policy(root, settings),
            clock=clock or SystemClock(),
            identity=worker_processes.identity,
            reap=worker_processes.reap,
            log=log or no_log,
            audit=audit,
            brief=brief and not patient,
        )
    durable, dice = settings.durability == "power", random.SystemRandom()
    boot_id = str(process_identity.identity()["boot_id"])
    return FilesStore(
        Ground(
            root=root,
            policy=_store_policy(root, settings),
            journal=Journal(root=root, boot_id=boot_id, random_bits=dice.getrandbits) if durable else None,
            clock=clock or SystemClock(),
            reap=worker_processes.reap,
            kill_hung=process_identity.kill_identified,
            identity=worker_processes.identity,
            log=log or no_log,
            audit=audit,
        ),
        on_close=audit.close,
    )


def _store_policy(root: str, settings: Settings) -> StorePolicy:
    return StorePolicy(
        durable=settings.durability == "power",
        retry=settings.retry.policy(),
        stale_after_s=settings.watchdog.stale_after_s,
        poll_s=settings.runners.poll_interval,
        policy_version=lambda role: snapshots(root, settings).version(role, exactly=role != UNCAPPED),
    )


def snapshots(root: str, settings: Settings) -> Snapshots:
    """What keeps the config and the policies of a claim."""
    return _snapshots(root, settings.durability == "power")


@functools.cache
def _snapshots(root: str, durable: bool) -> Snapshots:
    from farro.worker.snapshot import Snapshots

    return Snapshots(root=root, clock=SystemClock(), durable=durable)


def audit_policy(settings: Settings) -> AuditPolicy:
    section = getattr(settings, "audit", None)
    if section is None:
        return AuditPolicy()
    return AuditPolicy(
        strict=section.mode == "strict",
        max_bytes=section.max_bytes,
        keep=section.keep,
        quota_bytes=section.quota_bytes,
    )


def announce_tools(root: str, settings: Settings) -> tuple[str, ...]:
    """Called once by a worker process, before its slots join: others see what its steps may use (`farro workers`)."""
    from farro.execution.tool_catalog import Place, names

    found = tuple(names(tools(settings, root), Place(env=settings.runners.allowed(os.environ), cwd=root)))
    worker_processes.announce(found)
    return found


def tools(settings: Settings, root: str | None = None) -> Any:
    """The tools that plans may name, as the config and the installed packages declare them; with `root`, to be used."""
    from farro.execution.tools import Tools

    declared = {
        name: tool.python if tool.python is not None else [tool.command or name]
        for name, tool in settings.tools.items()
    }
    return Tools(declared, root)


def runner(root: str, settings: Settings, *, kind: str | None = None, clock: Clock | None = None) -> Runner[Any]:
    """How jobs are executed: as `kind` says, else as the config does."""
    clock = clock or SystemClock()
    if (kind or settings.runners.kind) == "inline":
        from farro.execution.runners.inline import InlineRunner

        return InlineRunner(tools=tools(settings, root), clock=clock)
    from farro.execution.runners.process import ProcessRunner
    from farro.execution.runners.runner_slots import Places
    from farro.host.process_limits import Limits

    section = settings.runners
    return ProcessRunner(
        tools=tools(settings, root).declared,
        environ=os.environ,
        places=Places(root, section.max_concurrent_runners),
        limits=Limits(address_space=section.memory_bytes, cpu_s=section.cpu_s, file_size=section.file_bytes),
        clock=clock,
    )


def performer(root: str, settings: Settings, runner: Runner[Any], clock: Clock) -> Performer:
    """What runs claimed jobs of this root."""
    from farro.sandbox import environment
    from farro.worker.perform import Performer

    return Performer(
        root=root,
        base_env=environment.of_steps(settings, os.environ),
        confined_env=functools.cache(lambda: environment.of_confined_steps(settings, os.environ)),
        runner=runner,
        clock=clock,
        step_timeout_s=settings.runners.task_timeout,
        # Where no folder outlives its attempt, nothing in it is worth a sync.
        durable=settings.durability == "power" and settings.store == "files",
        ahead_bytes=settings.runners.ahead_bytes,
        agents_runner=functools.cache(lambda: agents_runner(root, settings, clock)),
        snapshots=snapshots(root, settings),
        max_job_bytes=settings.security.max_job_bytes,
        guarding=Guarding.of(settings.security),
    )


def handover(root: str, settings: Settings, store: Store, clock: Clock, log: Log, *, bypass: bool) -> Handover:
    """How a worker hands on what it has done."""
    from farro.app.machines import seat
    from farro.worker.hand_off import Handover

    return Handover(
        store=store,
        root=root,
        clock=clock,
        log=log,
        retry=settings.retry.policy(),
        uniform=random.SystemRandom().uniform,
        bypass=bypass and settings.routing.degraded_bypass,
        roles=settings.roles,
        silent_s=seat(store, clock, settings).silent_s,
    )


def manager(store: Store, settings: Settings, log: Log, *, timetable: Timetable, gate: Gate | None) -> Manager:
    """What routes the work of this root. `gate`: what auto-plan's jobs must pass; None: it makes none."""
    from farro.agents.manager.abandoned import AbandonedJobs
    from farro.agents.manager.auto_plan import AutoPlan
    from farro.agents.manager.hooks import Hooks
    from farro.agents.manager.manager import Manager
    from farro.app.machines import seat

    root, clock = store.root, SystemClock()
    plans = None
    if gate is not None:
        plans = AutoPlan(store=store, root=root, settings=settings, gate=gate, clock=clock, log=log)
    return Manager(
        store=store,
        log=log,
        timetable=timetable,
        seat=seat(store, clock, settings),
        snapshots=snapshots(root, settings),
        auto_plan=plans,
        hooks=Hooks(
            store=store,
            root=root,
            env=settings.runners.allowed(os.environ),
            roles=settings.roles,
            timeout_s=settings.manager.hook_timeout_s,
            log=log,
        ),
        abandoning=AbandonedJobs(clock=clock, after_s=settings.watchdog.abandon_after_s),
    )


def agents_runner(root: str, settings: Settings, clock: Clock) -> Runner[Any]:
    """How jobs are executed that ask providers: inside the worker, which has their libraries loaded."""
    from farro.execution.runners.inline import InlineRunner

    return InlineRunner(tools=tools(settings), clock=clock, agents=agents(root, settings, clock))


class _Providers:
    """One for each name and its settings: connections are kept, and a changed config is another provider."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._known: list[tuple[str, ProviderSettings, Provider]] = []
        self._lock = threading.Lock()

    def of(self, name: str, described: ProviderSettings) -> Provider:
        from farro.agents.providers.registry import make_provider

        with self._lock:
            for known, same, provider in self._known:
                if (known, same) == (name, described):
                    return provider
            made = make_provider(name, described, root=self._root, environ=os.environ)
            self._known.append((name, described, made))
            return made


def providers(root: str) -> Callable[[str, ProviderSettings], Provider]:
    """Who answers, by name and settings; the same one for the same."""
    return _Providers(root).of


def ask_provider(
    root: str,
    settings: Settings,
    *,
    role: str | None,
    provider: str | None,
    prompt: str,
    redact: Callable[[str], str],
    on_try: Callable[[CallTry], None],
) -> ProviderTestResult:
    """A provider's test, for whoever shows it: without the secrets of the config, whatever a program says."""
    from farro.agents import provider_test
    from farro.agents.providers.prices import GenaiPrices

    with provider_test.scratch(root) as folder:
        tested = provider_test.provider_test(
            settings,
            role=role,
            provider=provider,
            prompt=prompt,
            open_provider=providers(root),
            clock=SystemClock(),
            uniform=random.SystemRandom().uniform,
            root=root,
            folder=folder,
            prices=GenaiPrices(settings.providers),
            on_try=lambda one: on_try(replace(one, message=redact(one.message))),
        )
    return provider_test.without_secrets(tested, redact)


def ledger(root: str, *, durable: bool, clock: Clock) -> Ledger:
    """What agents' calls cost."""
    from farro.store.files.ledger import FilesLedger

    return FilesLedger(root, clock, durable=durable)


def library(root: str, settings: Settings) -> Library:
    """The plans and actions that are kept: in the root, or where its jobs lie."""
    if settings.store != "files":
        from farro.app import machines

        return machines.library(settings, SystemClock())
    from farro.store.files.library import FilesLibrary

    return FilesLibrary(root, durable=settings.durability == "power")


def agents(root: str, settings: Settings, clock: Clock) -> Agents:
    """Who answers agent steps. The settings of each job are those of its own snapshot."""
    from farro.agents.agent_step import Agents
    from farro.agents.providers.prices import GenaiPrices
    from farro.config.reader import Remembered
    from farro.sandbox.redaction import Redactor, secret_variables

    durable = settings.durability == "power"

    def redactor(of: Settings) -> Redactor:
        return Redactor.of_variables(secret_variables(of, os.environ), os.environ)

    return Agents(
        root=root,
        settings_of=Remembered(),
        provider=_Providers(root).of,
        ledger=ledger(root, durable=durable, clock=clock),
        prices=GenaiPrices,
        redactor=redactor,
        clock=clock,
        uniform=random.SystemRandom().uniform,
    )


def refuse_apart(store: Store, what: str) -> None:
    """What every daemon asks before it starts: whether jobs can be moved at all (SPEC-1 §5: fail fast)."""
    if not isinstance(store, FilesStore):
        return
    from farro.store.files.devices import apart

    away = apart(store.root)
    if away:
        store.note("cross_volume_forbidden", place=away[0], count=len(away))
        raise Refused(
            f"{what} does not start: {away[0]} is on another device or mount than {store.root}, and a job is handed on "
            f"by a rename. A root must be on one filesystem; `farro doctor --root {store.root}` says what to do"
        )


def keep_secrets(settings: Settings) -> None:
    """From here on nothing that this process logs, complains of or breaks with tells what the config calls a secret."""
    if not settings.providers and not settings.secret_variables():
        redact_with(None)
        return
    from farro.sandbox.redaction import Redactor, guard_tracebacks, secret_variables

    redactor = Redactor.of_variables(secret_variables(settings, os.environ), os.environ)
    redact_with(redactor.text if redactor else None)
    if redactor:
        guard_tracebacks(redactor)


def runtime(root: str) -> Runtime:
    """What starts the background services of a root."""
    from farro.worker.background import FOLDER
    from farro.worker.process_runtime import ProcessRuntime

    return ProcessRuntime(f"{root}/{FOLDER}", SystemClock())


def sweep_runners(root: str) -> list[Mapping[str, Any]]:
    """Empty what dead runners left in their places; answers whose."""
    from farro.execution.runners import runner_slots

    return runner_slots.sweep(root)
