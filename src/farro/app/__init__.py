"""Build farro's object graph: choose the store, runner, tools, providers and runtime that a root's config asks for.

No other package chooses adapters. `cli.main` hands an `App` to every command as click's context object, so that the
commands of a slice never import this package. Adapters are imported by the method that builds them: a command pays
only for those it uses.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING, Any

from farro.host import machine
from farro.host.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from farro.agents.agent_step import Agents
    from farro.agents.gateway.port import Admission, GatewayRun
    from farro.agents.manager import Manager
    from farro.agents.provider_calls import CallTry
    from farro.agents.provider_test import ProviderTestResult
    from farro.agents.providers.port import Provider
    from farro.agq.client import AgqStore
    from farro.agx.client import LocalPlanClient
    from farro.agx.propose import Planner
    from farro.agx.remote_client import RemotePlanClient
    from farro.config.settings import ProviderSettings, Settings
    from farro.doctor.checks import Check
    from farro.doctor.report import Examination
    from farro.execution.runner import Runner
    from farro.execution.tools import Tools
    from farro.host.clock import Clock
    from farro.jobs.envelope import Lifecycle
    from farro.log.audit import AuditPolicy
    from farro.log.structured import Log
    from farro.queue.admission import Gate
    from farro.queue.plan_check import PlanContext
    from farro.queue.schedules import Timetable
    from farro.queue.submit import SubmitPolicy
    from farro.store.accounts import Accounts
    from farro.store.ledger import Ledger, Prices
    from farro.store.library import Library
    from farro.store.port import Store, StorePolicy
    from farro.web.application import WebApplication
    from farro.worker.hand_off import HandOff
    from farro.worker.perform import Performer
    from farro.worker.runtime import Runtime
    from farro.worker.snapshot import Snapshots


class App:
    """Build the parts that commands and the Python API work with. Stateless: each method gets its root and settings."""

    # --- the store ---

    def open_store(
        self,
        root: str,
        settings: Settings,
        *,
        clock: Clock | None = None,
        log: Log | None = None,
        actor: str = "farro",
        brief: bool = False,
        patient: bool = False,
    ) -> Store:
        """Open the store of a root: its own folders, or what `store` in the config names.

        `actor` is recorded in the audit log as the submitter. `brief` is for a command that ends at once: it starts
        no thread for the audit log, and asks a server that does not answer only for a few seconds. `patient` lifts the
        second limit: a command that must report a result keeps trying.
        """
        from farro.config.settings import is_factory
        from farro.log.audit import AuditLog
        from farro.store.files.context import no_log

        clock = clock or SystemClock()
        audit = AuditLog(
            f"{root}/logs",
            actor=actor,
            clock=clock,
            policy=self.audit_policy(settings),
            background=not brief,
            log=log,
        )
        if not brief:
            audit.mend()
        if settings.store == "files":
            store = self._open_files(root, settings, clock, log or no_log, audit)
            if not brief:
                from farro.store.files import load_operations

                load_operations()
            return store
        from farro.app import servers

        policy, log = self._store_policy(root, settings), log or no_log
        if is_factory(settings.store):
            return servers.open_from_package(root, settings, policy=policy, clock=clock, log=log, audit=audit)
        brief = brief and not patient
        return servers.open_redis(root, settings, policy=policy, clock=clock, log=log, audit=audit, brief=brief)

    def _open_files(self, root: str, settings: Settings, clock: Clock, log: Log, audit: Any) -> Store:
        from farro.host import process_identity, worker_processes
        from farro.store.files import FilesStore
        from farro.store.files.context import FilesContext
        from farro.store.files.journal import Journal

        journal = None
        if settings.durability == "power":
            boot_id = str(process_identity.identity()["boot_id"])
            journal = Journal(root=root, boot_id=boot_id, random_bits=machine.random_bits)
        return FilesStore(
            FilesContext(
                root=root,
                policy=self._store_policy(root, settings),
                journal=journal,
                clock=clock,
                reap=worker_processes.reap,
                kill_hung=process_identity.kill_identified,
                identity=worker_processes.identity,
                log=log,
                audit=audit,
            ),
            on_close=audit.close,
        )

    def _store_policy(self, root: str, settings: Settings) -> StorePolicy:
        from farro.config.settings import UNCAPPED
        from farro.store.port import StorePolicy

        return StorePolicy(
            durable=settings.durability == "power",
            retry=settings.retry,
            stale_after_s=settings.watchdog.stale_after_s,
            poll_s=settings.runners.poll_interval,
            policy_version=lambda role: self.snapshots(root, settings).version(role, exactly=role != UNCAPPED),
        )

    def audit_policy(self, settings: Settings) -> AuditPolicy:
        from farro.log.audit import AuditPolicy

        section = settings.audit
        return AuditPolicy(
            strict=section.mode == "strict",
            max_bytes=section.max_bytes,
            keep=section.keep,
            quota_bytes=section.quota_bytes,
        )

    def open_agq(self, root: str, settings: Settings, *, tools: Sequence[str]) -> AgqStore:
        """Connect a worker to the queue of a `farro agq` on another machine."""
        from farro.app import servers

        return servers.open_agq(root, settings, clock=SystemClock(), tools=tools)

    def library(self, root: str, settings: Settings) -> Library:
        """Open the library of plans and actions: in the root, or on the Redis server that has its jobs."""
        from farro.config.settings import is_factory

        if settings.store != "files" and not is_factory(settings.store):
            from farro.app import servers

            return servers.library(settings, SystemClock())
        from farro.store.files.library import FilesLibrary

        return FilesLibrary(root, durable=settings.durability == "power")

    def ledger(self, root: str, settings: Settings, clock: Clock) -> Ledger:
        """Open the ledger of what agents' calls cost: in the root, or on the Redis server that has its jobs."""
        if _is_shared(settings):
            from farro.app import servers

            return servers.ledger(settings, clock)
        from farro.store.files.ledger import FilesLedger

        return FilesLedger(root, clock, durable=settings.durability == "power")

    def accounts(self, root: str, settings: Settings, clock: Clock) -> Accounts:
        """Open the pauses of accounts: in the root, or on the Redis server that has its jobs."""
        if _is_shared(settings):
            from farro.app import servers

            return servers.accounts(settings, clock)
        from farro.store.files.accounts import FilesAccounts

        return FilesAccounts(root, clock, uniform=machine.uniform, durable=settings.durability == "power")

    def snapshots(self, root: str, settings: Settings) -> Snapshots:
        """Open the snapshots of config and policies that claims refer to."""
        return _snapshots(root, settings.durability == "power")

    # --- running jobs ---

    def tools(self, settings: Settings, root: str | None = None) -> Tools:
        """Collect the tools that plans may name, from the config and the installed packages.

        Only with `root` can they be run; without it they can only be looked up.
        """
        from farro.execution.tools import Tools

        declared = {
            name: tool.python if tool.python is not None else [tool.command or name]
            for name, tool in settings.tools.items()
        }
        return Tools(declared, root)

    def announce_tools(self, root: str, settings: Settings) -> tuple[str, ...]:
        """Publish which tools the steps of this worker process may use, for `farro workers`. Call once, before its
        slots join."""
        from farro.execution.tool_catalog import ProgramSearch, names
        from farro.host import worker_processes

        found = tuple(
            names(self.tools(settings, root), ProgramSearch(env=settings.runners.allowed(os.environ), cwd=root))
        )
        worker_processes.announce(found)
        return found

    def runner(
        self, root: str, settings: Settings, *, kind: str | None = None, clock: Clock | None = None
    ) -> Runner[Any]:
        """Make the runner that executes jobs: of this `kind`, else of the one in the config."""
        clock = clock or SystemClock()
        if (kind or settings.runners.kind) == "inline":
            from farro.execution.runners.inline import InlineRunner

            return InlineRunner(tools=self.tools(settings, root), clock=clock)
        from farro.execution.runners.process import ProcessRunner
        from farro.execution.runners.runner_slots import RunnerSlots
        from farro.host.process_limits import ProcessLimits

        section = settings.runners
        return ProcessRunner(
            tools=self.tools(settings, root).declared,
            environ=os.environ,
            places=RunnerSlots(root, section.max_concurrent_runners),
            limits=ProcessLimits(address_space=section.memory_bytes, cpu_s=section.cpu_s, file_size=section.file_bytes),
            clock=clock,
        )

    def performer(self, root: str, settings: Settings, runner: Runner[Any], clock: Clock) -> Performer:
        """Make what runs the claimed jobs of a root."""
        from farro.config.settings import is_factory
        from farro.execution.runner import Guarding
        from farro.sandbox import environment
        from farro.worker.perform import Performer

        return Performer(
            root=root,
            base_env=environment.of_steps(settings, os.environ),
            confined_env=functools.cache(lambda: environment.of_confined_steps(settings, os.environ)),
            runner=runner,
            clock=clock,
            step_timeout_s=settings.runners.task_timeout,
            # On Redis no folder outlives its attempt, and nothing in it is worth a sync.
            durable=settings.durability == "power" and (settings.store == "files" or is_factory(settings.store)),
            ahead_bytes=settings.runners.ahead_bytes,
            agents_runner=functools.cache(lambda: self._agents_runner(root, settings, clock)),
            snapshots=self.snapshots(root, settings),
            max_job_bytes=settings.security.max_job_bytes,
            guarding=Guarding.of(settings.security),
        )

    def _agents_runner(self, root: str, settings: Settings, clock: Clock) -> Runner[Any]:
        """Make the runner for jobs that call providers: inside the worker, which has their libraries loaded."""
        from farro.execution.runners.inline import InlineRunner

        return InlineRunner(tools=self.tools(settings), clock=clock, agents=self.agents(root, settings, clock))

    def hand_off(self, root: str, settings: Settings, store: Store, clock: Clock, log: Log, *, bypass: bool) -> HandOff:
        """Make what hands a worker's finished job on to the next role. `bypass`: also while no manager runs."""
        from farro.worker.hand_off import HandOff

        return HandOff(
            store=store,
            clock=clock,
            log=log,
            retry=settings.retry,
            uniform=machine.uniform,
            bypass=bypass and settings.routing.degraded_bypass,
            roles=settings.roles,
        )

    def manager(
        self,
        store: Store,
        settings: Settings,
        log: Log,
        *,
        timetable: Timetable,
        gate: Gate,
        auto_plan: bool | None = None,
    ) -> Manager:
        """Make the manager of a root. `gate` admits the jobs that auto-plan makes. `auto_plan`: whether it makes any;
        None: as the root's switch says, else the config."""
        from farro.agents.auto_plan import AutoPlan
        from farro.agents.manager import AbandonedJobs, Hooks, Manager
        from farro.queue.retention import Retention
        from farro.worker import auto_plan_switch
        from farro.worker.watchdog import Recovery

        root, clock = store.root, SystemClock()
        after_s = settings.retention.archive_after_s()
        default = settings.manager.auto_plan

        def is_on() -> bool:
            return auto_plan_switch.is_on(root, default=default) if auto_plan is None else auto_plan

        return Manager(
            store=store,
            log=log,
            timetable=timetable,
            leadership=store.leadership(),
            snapshots=self.snapshots(root, settings),
            auto_plan=AutoPlan(store=store, root=root, settings=settings, gate=gate, clock=clock, log=log, is_on=is_on),
            hooks=Hooks(
                store=store,
                root=root,
                env=settings.runners.allowed(os.environ),
                roles=settings.roles,
                timeout_s=settings.manager.hook_timeout_s,
                log=log,
            ),
            abandoning=AbandonedJobs(clock=clock, after_s=settings.watchdog.abandon_after_s),
            recovery=Recovery(sweep=lambda: self.sweep(store), clock=clock),
            retention=None if after_s is None else Retention(store=store, after_s=after_s, clock=clock, log=log),
        )

    def runtime(self, root: str) -> Runtime:
        """Make what starts and stops the background services of a root."""
        from farro.worker.process_runtime import ProcessRuntime
        from farro.worker.supervisor import FOLDER

        return ProcessRuntime(f"{root}/{FOLDER}", SystemClock())

    def sweep(self, store: Store) -> list[Mapping[str, Any]]:
        """Remove the homes of agents' programs whose job has ended, and free the runner slots whose process died;
        return what each of these held."""
        from farro.execution.runners import runner_slots

        if os.path.isdir(f"{store.root}/jobs/.homes"):
            from farro.agents import session_folder

            session_folder.sweep(store, SystemClock().now())
        return runner_slots.sweep(store.root)

    def forget_sessions(self, root: str, settings: Settings) -> Callable[[Lifecycle], None] | None:
        """Return what removes the homes of a job that a worker has ended; None: no provider makes any."""
        if all(provider.program is None for provider in settings.providers.values()):
            return None
        from farro.agents import session_folder

        clock = SystemClock()

        def forget(life: Lifecycle) -> None:
            if session_folder.is_over(life, clock.now()):
                session_folder.forget(root, life.job_id)

        return forget

    # --- agents and providers ---

    def agents(self, root: str, settings: Settings, clock: Clock) -> Agents:
        """Make what answers agent steps. Each job is answered with the settings of its own snapshot."""
        from farro.agents.agent_step import Agents
        from farro.agents.providers.prices import GenaiPrices
        from farro.config.reader import Remembered
        from farro.sandbox.redaction import Redactor, secret_variables

        def redactor(of: Settings) -> Redactor:
            return Redactor.of_variables(secret_variables(of, os.environ), os.environ)

        return Agents(
            settings_of=Remembered(),
            provider=self.providers(root),
            ledger=self.ledger(root, settings, clock),
            accounts=self.accounts(root, settings, clock),
            prices=GenaiPrices,
            redactor=redactor,
            clock=clock,
            uniform=machine.uniform,
        )

    def providers(self, root: str) -> Callable[[str, ProviderSettings], Provider]:
        """Return a function that gives a provider by name and settings, the same object for the same pair."""
        return _Providers(root).get

    def prices(self, settings: Settings) -> Prices:
        from farro.agents.providers.prices import GenaiPrices

        return GenaiPrices(settings.providers)

    def ask_provider(
        self,
        root: str,
        settings: Settings,
        *,
        role: str | None,
        provider: str | None,
        prompt: str,
        redact: Callable[[str], str],
        on_try: Callable[[CallTry], None],
    ) -> ProviderTestResult:
        """Send a test prompt to a provider; `redact` removes the config's secrets from all that it answers."""
        from dataclasses import replace

        from farro.agents import provider_test
        from farro.agents.providers.prices import GenaiPrices

        with provider_test.scratch_folder(root) as folder:
            test = provider_test.ProviderTest(
                settings=settings,
                open_provider=self.providers(root),
                clock=SystemClock(),
                uniform=machine.uniform,
                root=root,
                folder=folder,
                prices=GenaiPrices(settings.providers),
                on_try=lambda one: on_try(replace(one, message=redact(one.message))),
            )
            tested = test.run(role=role, provider=provider, prompt=prompt)
        return provider_test.without_secrets(tested, redact)

    def redact_secrets(self, settings: Settings) -> None:
        """Remove the config's secrets from all that this process logs or prints from here on, tracebacks included."""
        from farro.log.structured import redact_with

        if not settings.providers and not settings.secret_variables():
            redact_with(None)
            return
        from farro.sandbox.redaction import Redactor, guard_tracebacks, secret_variables

        redactor = Redactor.of_variables(secret_variables(settings, os.environ), os.environ)
        redact_with(redactor.text if redactor else None)
        if redactor:
            guard_tracebacks(redactor)

    # --- doctor ---

    def checks(
        self, root: str, *, finished: int | None, conformance: bool = False, store: str | None = None
    ) -> list[Check]:
        """Make doctor's checks in the order of its report. `finished`: how many finished jobs are opened; None: all.
        `store`: used instead of the config's."""
        from farro.app import checks

        return checks.checks(self, root, finished=finished, conformance=conformance, store=store)

    def check_strictly(self, root: str, service: str, *, store: str | None = None) -> None:
        """Refuse to start a daemon where one of doctor's quick checks finds something."""
        from farro.doctor import report

        quick = [check for check in self.checks(root, finished=0, store=store) if check.quick]
        report.admit(quick, service, root, strict=True)

    def check_gates(self, root: str, settings: Settings, service: str) -> None:
        """Refuse to start a daemon whose work could not go on (doctor.gates)."""
        from farro.config import reader
        from farro.doctor import gates, report
        from farro.store.files.context import folders_apart, queue_folders

        folders = settings.store == "files"
        found = gates.gates(
            root,
            folders=queue_folders(root) if folders else ["jobs"],
            apart=lambda: folders_apart(root) if folders else [],
            config=reader.path_of(root),
        )
        report.admit(found, service, root, strict=False)

    # --- the planner (agx) ---

    def plan_context(self, settings: Settings) -> PlanContext:
        """Collect what a draft is checked against: this machine, and the working folder."""
        from farro.queue.plan_check import PlanContext

        return PlanContext(settings=settings, tools=self.tools(settings), cwd=os.getcwd(), env=os.environ)

    def planner(
        self, root: str, settings: Settings, *, folder: str, name: str, on_try: Callable[[CallTry], None]
    ) -> Planner:
        """Make the planner that turns words into steps. `folder`: an empty one, for files of provider programs."""
        from farro.agx.propose import Planner
        from farro.execution import tool_catalog
        from farro.sandbox.redaction import Redactor, secret_variables

        clock, context = SystemClock(), self.plan_context(settings)
        search = tool_catalog.ProgramSearch(env=os.environ, cwd=context.cwd)
        return Planner(
            name=name,
            root=root,
            folder=folder,
            settings=settings,
            context=context,
            tools=tool_catalog.listed(context.tools, search, configured=tuple(settings.tools), on_path=True),
            provider=self.providers(root),
            ledger=self.ledger(root, settings, clock),
            prices=self.prices(settings),
            redactor=Redactor.of_variables(secret_variables(settings, os.environ), os.environ),
            clock=clock,
            uniform=machine.uniform,
            on_try=on_try,
        )

    def local_plans(self, store: Store, settings: Settings, *, policy: SubmitPolicy, by: str) -> LocalPlanClient:
        """Make the client that submits plans to this root and lists them."""
        from farro.agx.client import LocalPlanClient

        return LocalPlanClient(
            store=store,
            library=self.library(store.root, settings),
            policy=policy,
            clock=SystemClock(),
            by=by,
            mint=lambda: f"plan-{machine.random_bits(64):016x}",
        )

    def remote_plans(self, address: str, settings: Settings) -> RemotePlanClient:
        """Make the client of a RESP queue on another machine: agq://HOST:PORT."""
        from farro.agx.remote_client import RemotePlanClient
        from farro.config.settings import AGQ_KEYS
        from farro.jobs.ids import IdMint

        variables = (*AGQ_KEYS, *(() if settings.agq.key is None else (settings.agq.key.name,)))
        key = next((os.environ[name] for name in variables if os.environ.get(name)), None)
        mint = IdMint(SystemClock().now, machine.random_bits)
        return RemotePlanClient.at(address, key=key, mint=mint.mint)

    # --- the HTTP API ---

    def web(
        self,
        store: Store,
        settings: Settings,
        *,
        log: Log,
        token: str | None,
        beyond: bool,
        person: str,
        gate: Callable[[bool], Gate],
        examine: Callable[[], Examination],
        orchestrate: Callable[[], None] = lambda: None,
    ) -> WebApplication:
        """Make the HTTP API and dashboard of a store. `token`: None takes the root's own. `beyond`: it listens beyond
        loopback. `examine` runs doctor; `orchestrate` starts the swarm orchestrator where none runs."""
        from farro.app import web

        state = web.state(
            self, store, settings, log=log, person=person, gate=gate, examine=examine, orchestrate=orchestrate
        )
        return web.application(state, token=token, beyond=beyond)


def _is_shared(settings: Settings) -> bool:
    """Return whether a Redis server has the jobs. A worker over agq keeps its own ledger and accounts."""
    from farro.config.settings import AGQ, is_factory

    return settings.store != "files" and not is_factory(settings.store) and not settings.store.startswith(AGQ)


@functools.cache
def _snapshots(root: str, durable: bool) -> Snapshots:
    from farro.worker.snapshot import Snapshots

    return Snapshots(root=root, clock=SystemClock(), durable=durable)


def _admit(run: GatewayRun) -> Admission:
    """Admit a run of a program to the model gateway of this process."""
    from farro.agents.gateway.gateway import open_gateway

    return open_gateway().admit(run)


class _Providers:
    """Keep one provider for each name and settings: its connections are reused, and a changed config makes another."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._known: list[tuple[str, ProviderSettings, Provider]] = []
        self._lock = threading.Lock()

    def get(self, name: str, settings: ProviderSettings) -> Provider:
        from farro.agents.providers.registry import make_provider

        with self._lock:
            for known_name, known_settings, provider in self._known:
                if (known_name, known_settings) == (name, settings):
                    return provider
            provider = make_provider(name, settings, root=self._root, environ=os.environ, admit=_admit)
            self._known.append((name, settings, provider))
            return provider
