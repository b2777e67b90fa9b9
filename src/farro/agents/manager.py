"""The manager: claims what roles have finished, decides what comes next, and handles stale and failed jobs.

One manager acts at a time; any number may run, the others wait. A decision is a commit like any other: a manager that
is killed before it leaves the job to be decided again; after it, the decision is carried out.
[tests/crash/test_manager.py]
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from farro.agents.auto_plan import AutoPlan, child_jobs
from farro.config.settings import RoleSettings
from farro.errors import AgentLost, BadDocument, BadName, FarroError, Lost, NoTask, Refused, SyncFailed
from farro.execution import task_snapshot
from farro.host import fs, programs, waiting
from farro.host.clock import Clock
from farro.jobs.envelope import Hop, Lifecycle
from farro.jobs.moves import AWAITS_ACCOUNT, Move, waits_for_person
from farro.jobs.outcomes import Child, ErrorInfo, Failed, Outcome, Released, Report, Succeeded
from farro.jobs.states import Reason, Status
from farro.jobs.times import in_words, parse_timestamp
from farro.lazy_dataclass import dataclass, replace
from farro.log.structured import Log
from farro.queue.retention import Retention
from farro.queue.schedules import Fired, Timetable
from farro.roles import workflow
from farro.roles.names import RUNNER
from farro.roles.workflow import MANAGER, RouteCode, RouteDecision
from farro.store.leadership import Leadership, NoRivals, beating
from farro.store.port import Agent, Claim, DeathWatch, Store, claim_one, commit_one
from farro.worker import routing
from farro.worker.daemon import Daemon
from farro.worker.snapshot import Snapshots
from farro.worker.watchdog import Recovery

_LOOK_S = 0.5  # the longest rest between two checks of the stop flag
_SOON_S, _LATEST_S = 30.0, 600.0  # delays before a job that waits for room is tried again
_AT_ONCE = 200  # decisions in one turn, before other duties get theirs
_RESULT = 1 << 20  # bytes of the last role's result.md that are repeated


class Manager(Daemon):
    """Routes jobs between roles. See the module."""

    def __init__(
        self,
        *,
        store: Store,
        log: Log,
        timetable: Timetable | None = None,
        leadership: Leadership | None = None,
        snapshots: Snapshots | None = None,
        auto_plan: AutoPlan | None = None,
        hooks: Hooks | None = None,
        abandoning: AbandonedJobs | None = None,
        recovery: Recovery | None = None,
        retention: Retention | None = None,
    ) -> None:
        super().__init__(store=store, name="manager", log=log)
        self._timetable = timetable
        self._leadership = leadership or NoRivals()
        self._snapshots = snapshots
        self._auto_plan = auto_plan
        self._hooks = hooks
        self._abandoning = abandoning
        self._recovery = recovery  # None: a watchdog beside this manager recovers
        self._retention = retention  # None: nothing is archived automatically
        self._urgent = False  # an agent died or a job became stale since the last turn
        self._shows = False  # whether it is registered as an agent even with nothing to decide
        self._router: Agent | None = None
        self._cursor: int | None = None
        self._waited = False
        self._hooked: set[str] = set()  # failed jobs whose hooks ran

    def run(self, every_s: float) -> None:
        """Run until stopped. Registers as an agent at once, so that `farro status` and `explain` show it."""
        self._shows = True
        deaths = self._store.watch_deaths(stale=True)
        if deaths is None:
            super().run(every_s)
            return
        thread = threading.Thread(target=self._notice, args=(deaths,), name="deaths")
        thread.start()
        try:
            super().run(every_s)
        finally:
            self.stop()  # ends the thread
            thread.join()
            deaths.close()

    def _notice(self, deaths: DeathWatch) -> None:
        """End a rest as soon as an agent dies or a job becomes stale."""
        while self._flag.fd not in waiting.readable([self._flag.fd, deaths.fileno()], None):
            if deaths.read():
                self._urgent = True
                self._store.wake(MANAGER)

    def patience_s(self, every_s: float) -> float:
        return every_s if self._timetable is None else self._timetable.patience_s(every_s)

    def rest(self, seconds: float) -> None:
        """Wait until a job comes or a turn is due."""
        if MANAGER not in self._store.roles():
            super().rest(seconds)
            return
        left_s = seconds
        planned = self._plans()
        while left_s > 0 and not self._stopped:
            changes = self._store.changes(self._cursor, role=MANAGER, timeout_s=min(left_s, _LOOK_S))
            new = self._cursor is not None and (changes.items or changes.gap)
            self._cursor = changes.cursor
            self._leadership.beat()  # a rest may be longer than a heartbeat interval
            if new or self._urgent or (not planned and self._plans()):
                return
            left_s -= _LOOK_S

    def _plans(self) -> bool:
        return self._auto_plan is not None and self._auto_plan.is_on()

    def run_once(self) -> list[Lifecycle | Fired | str]:
        """Decide every job that is stale or waits to be routed, and fire due schedules; return what was done.

        A text in the result is a job that auto-plan created. Raises Refused if it runs only once and another manager
        acts.
        """
        urgent, self._urgent = self._urgent, False  # before the turn: a death during it is for the next
        if not self._leads():
            return []
        self._recover(urgent)
        done: list[Lifecycle | Fired | str] = [*self._settle(), *self._route(), *self._finalize(), *self._abandon()]
        if self._timetable is not None:
            done += self._timetable.turn()
        if self._auto_plan is not None:
            done += self._auto_plan.turn()
        if self._retention is not None:
            self._retention.turn(background=self._shows)
        return done

    def leave(self) -> None:
        super().leave()
        self._leave_router()
        self._leadership.drop()

    def _leave_router(self) -> None:
        agent, self._router = self._router, None
        if agent is not None:
            self._store.leave(agent)

    def _leads(self) -> bool:
        if self._leadership.take():
            self._waited = False
            self._leadership.beat()
            return True
        message = f"another manager acts ({self._leadership.holder()}); only one may act at a time"
        if not self._shows:
            raise Refused(f"{message}. Let it run, or stop it first.")
        if not self._waited:
            self._log("warning", f"{message}: this one waits", {"event": {"type": "manager_waits"}})
            self._waited = True
        return False

    def _stands(self) -> bool:
        """Tell whether this process still leads. Checked before every action: it may have slept for too long."""
        return self._leadership.stands()

    # --- routing ---

    def _route(self) -> list[Lifecycle]:
        if MANAGER not in self._store.roles():
            return []
        done: list[Lifecycle] = []
        while len(done) < _AT_ONCE and not self._stopped and self._stands():
            try:
                claim = claim_one(self._store, self._routing_agent())
                if claim is None:
                    return done
                done.append(self._decide(claim))
            except AgentLost as lost:
                self._log("warning", str(lost), {})
                self._leave_router()
                return done
            except Lost as lost:
                self._log("warning", str(lost), {})
            except SyncFailed:
                raise
            except FarroError as error:  # only this job is affected (RELIABILITY 26)
                self._log("error", str(error), {"event": {"type": "routing_trouble"}})
                self._leave_router()  # a watchdog takes the job from an agent that left
                return done
            self._leadership.beat()
        return done

    def _routing_agent(self) -> Agent:
        if self._router is None:
            self._router = self._store.join("manager", role=MANAGER)
        self._store.heartbeat(self._router)
        return self._router

    def _decide(self, claim: Claim) -> Lifecycle:
        try:
            task_id = task_snapshot.task_id(claim.envelope.prompt)
            if task_id is not None and self._snapshots is not None:
                self._snapshots.keep_task(task_id, routing.job_folder(claim))
            decision, task, at = routing.of_manager(claim)
        except (BadDocument, NoTask, BadName) as error:
            why = f"its task cannot be followed: {error}"[: workflow.MAX_NOTE]
            return self._commit(claim, RouteDecision(code=RouteCode.FAIL, note=why))
        decision = workflow.possible(decision, self._store.roles())
        drafts = routing.drafts(claim, at)
        plans = self._auto_plan
        if plans is None or not drafts or decision.code is RouteCode.FAIL or not plans.is_on():
            return self._commit(claim, decision, at.worked)
        if not plans.look():
            return self._wait_for_room(claim)
        chosen = plans.select(claim, drafts, task, at)
        words = f"{decision.note}; auto-plan: {len(chosen.prompts)} of {len(drafts)} drafts become jobs"
        note = "\n".join([words, *chosen.refused])[: workflow.MAX_NOTE]
        life = self._commit(claim, replace(decision, note=note), at.worked, child_jobs(chosen))
        plans.delivered(claim, chosen)
        return life

    def _wait_for_room(self, claim: Claim) -> Lifecycle:
        """Put a job back whose drafts cannot become jobs because the queues are too full; each time for longer."""
        route = {"code": str(RouteCode.PAUSED)}
        before = sum(1 for hop in claim.envelope.lifecycle.hops if hop.route == route)
        move = Move(
            reason=Reason.RELEASED,
            status=Status.QUEUED,
            role=MANAGER,
            delay_s=min(_LATEST_S, _SOON_S * 2 ** min(before, 10)),
            note="auto-plan is paused: too much is queued",
            route=route,
        )
        return commit_one(self._store, claim, Released(), move)

    def _commit(
        self, claim: Claim, decision: RouteDecision, worked: Hop | None = None, offspring: tuple[Child, ...] = ()
    ) -> Lifecycle:
        if worked is not None:
            self._run_hooks(claim.job_id, worked.role, decision, routing.job_folder(claim))
        outcome = _outcome(claim, decision)
        if offspring and isinstance(outcome, Succeeded):
            outcome = replace(outcome, children=offspring)
        life = commit_one(self._store, claim, outcome, routing.move(decision, role=MANAGER))
        event = {"type": "routed", "decision": str(decision.code), "to": decision.to, "status": str(life.status)}
        self._log("info", decision.note.splitlines()[0], {"job_id": claim.job_id, "event": event})
        return life

    def _run_hooks(self, job_id: str, role: str, decision: RouteDecision, folder: str) -> None:
        good = decision.code is not RouteCode.FAIL
        if self._hooks is None or not self._hooks.commands(role, good=good):
            return
        with beating(self._leadership):
            self._hooks.run(job_id, role, good=good, decision=str(decision.code), to=decision.to, folder=folder)

    # --- failures and stale jobs ---

    def _recover(self, urgent: bool) -> None:
        """Do what a watchdog does, so that a manager and workers alone recover dead workers."""
        if self._recovery is None or not (urgent or self._recovery.is_due()):
            return
        try:
            self._recovery.run_once(self._store, self.agent(), self._log)
        except Lost as lost:  # declared dead by a watchdog: it hung, or was stopped
            self._log("warning", str(lost), {})
            super().leave()

    def _finalize(self) -> list[Lifecycle]:
        """Make failures final in roles that hand on to the manager."""
        done: list[Lifecycle] = []
        route = {"code": str(RouteCode.FAIL)}
        for job_id in self._store.open_failures():
            view = self._store.find(job_id)
            if view is not None and view.status is Status.FAILED and job_id not in self._hooked:
                self._hooked.add(job_id)  # else a job that cannot be made final would run them every turn
                failed = RouteDecision(code=RouteCode.FAIL, note="")
                self._run_hooks(job_id, view.lifecycle.role, failed, self._store.folder(view))
            life = self._one(job_id, lambda job: self._store.finalize(self.agent(), job, route=route))
            if life is not None:
                self._hooked.discard(job_id)
                self._log("info", "failed job is final", {"job_id": job_id, "event": {"type": "finalized"}})
                done.append(life)
        return done

    def _abandon(self) -> list[Lifecycle]:
        done: list[Lifecycle] = []
        for job_id, why in self._abandoning.turn(self._store) if self._abandoning is not None else ():
            life = self._one(job_id, lambda job, why=why: self._store.kill(self.agent(), job, note=why))  # type: ignore[misc]
            if life is not None:
                self._log("warning", why, {"job_id": job_id, "event": {"type": "abandoned"}})
                done.append(life)
        return done

    def _settle(self) -> list[Lifecycle]:
        done: list[Lifecycle] = []
        if self._agent is not None or self._shows:
            self.agent()  # a heartbeat: an idle manager would be taken for hung after `stale_after`
        for job_id in self._store.stale():
            life = self._one(job_id, lambda job: self._store.resolve_stale(self.agent(), job))
            if life is not None:
                event = {"type": "state_transition", "from": "stale", "to": str(life.status)}
                self._log("info", "stale job decided", {"job_id": job_id, "event": event})
                done.append(life)
        return done

    def _one(self, job_id: str, decide: Callable[[str], Lifecycle | None]) -> Lifecycle | None:
        """Decide about one job; an error affects that job alone."""
        if not self._stands():
            return None
        try:
            return decide(job_id)
        except Lost as lost:
            self._log("warning", str(lost), {"job_id": job_id})
            super().leave()
        except SyncFailed:
            raise
        except FarroError as error:  # only this job is affected (RELIABILITY 26)
            self._log("error", str(error), {"job_id": job_id})
            super().leave()  # the job may be in our folder: without a lease a watchdog takes it from there
        return None


def _outcome(claim: Claim, decision: RouteDecision) -> Outcome:
    """Build the outcome of the manager's attempt: the last role's result again, with the decision.

    So result.md at the top of a job stays the result of the last role.
    """
    earlier = routing.previous(claim)
    folder = earlier[-1][1] if earlier else ""
    last = routing.result(claim, int(folder.rsplit("/", 1)[1])) if earlier else {}
    kept = {name: last[name] for name in ("plan_id", "step_results", "agent") if name in last}
    result: dict[str, Any] = {
        "job_id": claim.job_id,
        "success": decision.code is not RouteCode.FAIL,
        **kept,
        "decision": {**decision.route, "to": decision.to, "note": decision.note},
    }
    if decision.code is RouteCode.FAIL:
        error = ErrorInfo(category="workflow", message=decision.note)
        markdown = f"# Failed\n\n{decision.note}\n"
        return Failed(error=error, report=Report(result=result, markdown=markdown))
    text = ""
    if folder:
        try:
            text = fs.read_bytes(f"{folder}/result.md", _RESULT)[:_RESULT].decode("utf-8", "replace")
        except OSError:
            text = ""
    note = decision.note.splitlines()[0]
    markdown = f"{text.rstrip()}\n\n---\n*Manager ({decision.code}): {note}*\n".lstrip()
    return Succeeded(report=Report(result=result, markdown=markdown))


_SAID = 16 << 10  # bytes of output that are read
_LOGGED = 2000  # characters that are logged


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """The commands that a config names for a decision about a role's result: roles.<Role>.on_success and on_failure.

    They run after a decision is made and before it is committed: a manager that dies in between decides again, and runs
    them again. So they run at least once. Their output is logged; their failure changes nothing.
    """

    store: Store
    root: str
    env: Mapping[str, str]  # the base of the commands' environment
    roles: Mapping[str, RoleSettings]
    timeout_s: float
    log: Log

    def commands(self, role: str, *, good: bool) -> Sequence[Sequence[str]]:
        """Return the commands for a result of that role."""
        settings = self.roles.get(role)
        if settings is None:
            return ()
        return settings.on_success if good else settings.on_failure

    def run(self, job_id: str, role: str, *, good: bool, decision: str, to: str | None, folder: str) -> None:
        """Run the hooks of a decision, and log each."""
        kind = "on_success" if good else "on_failure"
        env = {
            **self.env,
            "FARRO_ROOT": self.root,
            "FARRO_JOB": job_id,
            "FARRO_ROLE": role,
            "FARRO_DECISION": decision,
            "FARRO_NEXT": to or "",
            "FARRO_FOLDER": folder,
        }
        for number, argv in enumerate(self.commands(role, good=good)):
            result = programs.ask(argv, timeout_s=self.timeout_s, limit=_SAID, cwd=self.root, env=env, errors=True)
            words = result.stdout.decode("utf-8", "replace").strip()[:_LOGGED]
            event = {"type": "hook", "hook": f"{role}.{kind}[{number}]", "said": words}
            if result.trouble is None:
                self.log("info", f"hook {argv[0]} ran", {"job_id": job_id, "event": event})
                continue
            self.log("error", f"hook {argv[0]} {result.trouble}", {"job_id": job_id, "event": event})
            self.store.note("hook_failed", job_id=job_id, role=role, hook=kind, number=number)


_WAITS = frozenset({RouteCode.HUMAN, RouteCode.PAUSED, AWAITS_ACCOUNT})
LOOK_S = 30.0
OPEN = (Status.QUEUED, Status.IN_PROGRESS, Status.STALE)


def age_s(life: Lifecycle, now: datetime) -> float | None:
    """Return how long ago the job was first claimed; None if its time does not count now.

    Time in which a job waited for a person, for room (auto-plan), for an account or for its start time does not count.
    Command plans are exempt: their steps have their own timeouts, and a build may take a day.
    """
    if life.routing is None or life.first_claimed_at is None or waits_for_person(life):
        return None
    if life.not_before is not None and parse_timestamp(life.not_before) > now:
        return None
    waited_s = 0.0
    claimed = [life.updated_at] if life.status is Status.IN_PROGRESS else []
    ends = [*(hop.at for hop in life.hops[1:]), *claimed]
    for hop, end in zip(life.hops, ends, strict=False):
        if (hop.route or {}).get("code") in _WAITS:
            waited_s += (parse_timestamp(end) - parse_timestamp(hop.at)).total_seconds()
    return (now - parse_timestamp(life.first_claimed_at)).total_seconds() - waited_s


@dataclass(kw_only=True)
class AbandonedJobs:
    """Finds jobs that have run for too long (SPEC-1's `abandon_after`), at most every LOOK_S seconds."""

    clock: Clock
    after_s: float
    _looked_s: float = float("-inf")

    def turn(self, store: Store) -> list[tuple[str, str]]:
        """Return the jobs to abandon, each with the reason."""
        now_s = self.clock.monotonic_s()
        if now_s - self._looked_s < LOOK_S:
            return []
        self._looked_s = now_s
        roles = [role for role in store.roles() if role != RUNNER]
        found = []
        for view in store.list(roles=roles, statuses=OPEN):
            age = age_s(view.lifecycle, self.clock.now())
            if age is not None and age >= self.after_s:
                longest = f"watchdog.abandon_after_s, {in_words(self.after_s)}"
                found.append((view.job_id, f"abandoned: it has run for {in_words(age)}, longer than {longest}"))
        return found
