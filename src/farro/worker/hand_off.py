"""Pass on a finished job: to the manager, which may not be running, or to the next role where the config allows it.

SPEC-1 §12: workers never bypass the manager. While it is away they wait with backoff; then the job is marked stale in
place, with an error.md, and its result is kept: the next attempt finds it, and no agent is asked twice. The config
allows two exceptions: a role's fast path, and degraded mode. Neither fails a job whose work has succeeded: only the
manager decides that a workflow has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from farro.config.settings import RoleSettings
from farro.errors import FarroError
from farro.execution.stop import Stop
from farro.host.clock import Clock
from farro.jobs import moves
from farro.jobs.moves import Move
from farro.jobs.outcomes import ErrorInfo, Released, Succeeded, Unroutable
from farro.jobs.retry import RetryPolicy, Uniform, delay_after
from farro.jobs.times import in_words
from farro.lazy_dataclass import dataclass, field, replace
from farro.log.audit import Value
from farro.log.structured import Log
from farro.roles import workflow
from farro.roles.workflow import MANAGER, RouteCode, RouteDecision
from farro.store.leadership import AWAY_S
from farro.store.port import AttemptResult, Claim, Store
from farro.worker import routing

_SLICE_S = 0.1
AWAY = "manager_away"


@dataclass(frozen=True, kw_only=True)
class HandOff:
    """Hands finished jobs on to the manager; one for all slots of a worker."""

    store: Store
    clock: Clock
    log: Log
    retry: RetryPolicy
    uniform: Uniform
    bypass: bool = False  # degraded mode: asked for, and permitted
    roles: Mapping[str, RoleSettings] = field(default_factory=dict)

    @staticmethod
    def ends_here(result: AttemptResult) -> bool:
        """Return whether the job needs no manager: then it is committed as it is."""
        life = result.claim.envelope.lifecycle
        return not isinstance(result.outcome, Succeeded) or moves.next_role(life) != MANAGER

    def decide(self, result: AttemptResult, tick: Callable[[], None], stop: Stop) -> AttemptResult:
        """Return what to commit for a job that goes on to the manager. Waits for a manager that is away."""
        claim, outcome = result.claim, result.outcome
        if not isinstance(outcome, Succeeded) or self.ends_here(result):
            return result
        if (onward := self._fast_path(claim, outcome)) is not None:
            route = {**onward.route, "code": str(RouteCode.FAST_PATH)}
            role = claim.envelope.lifecycle.role
            return AttemptResult(claim, outcome, routing.move(onward, role=role, route=route))
        if self._manager_comes(claim, tick, stop):
            return result
        if stop.requested:
            return AttemptResult(claim, Released(note="the manager is away, and the worker was stopped"))
        if (
            self.bypass
            and (decision := self._decision(claim, outcome)) is not None
            and decision.code is not RouteCode.FAIL
        ):
            return AttemptResult(claim, outcome, self._past_the_manager(claim, decision))
        return AttemptResult(claim, self._unroutable(outcome))

    def _fast_path(self, claim: Claim, outcome: Succeeded) -> RouteDecision | None:
        """Return the next step if the role's config allows a success to go straight there.

        The end of a workflow, a question to a person and a review that asks for changes are the manager's; so are a
        role with success hooks, and an Architect's answer with drafts, which only the manager turns into jobs.
        """
        role = self.roles.get(claim.envelope.lifecycle.role)
        if role is None or not role.fast_path or role.on_success or routing.proposes(outcome):
            return None
        decision = self._decision(claim, outcome)
        return decision if decision is not None and decision.code is RouteCode.NEXT else None

    def _decision(self, claim: Claim, outcome: Succeeded) -> RouteDecision | None:
        try:
            return workflow.possible(routing.of_worker(claim, outcome), self.store.roles())
        except FarroError as error:  # the manager says what is wrong with the task
            self.log("warning", str(error), {"job_id": claim.job_id})
            return None

    def _past_the_manager(self, claim: Claim, decision: RouteDecision) -> Move:
        role = claim.envelope.lifecycle.role
        note = f"{decision.note} (the manager is away: degraded bypass)"
        route = {**decision.route, "code": str(RouteCode.DEGRADED_BYPASS), "decided": str(decision.code)}
        self.log("warning", note.splitlines()[0], {"job_id": claim.job_id, "event": {"type": "degraded_bypass"}})
        return routing.move(replace(decision, note=note), role=role, route=route)

    def _manager_comes(self, claim: Claim, tick: Callable[[], None], stop: Stop) -> bool:
        """Return whether the manager is alive, or comes back within the pinned backoff."""
        for number in range(1, self.retry.max_attempts + 1):
            away = self.away()
            if away is None:
                return True
            fields = {"job_id": claim.job_id, "attempt": claim.attempt, "event": {"type": AWAY, "try": number}}
            self.log("warning", f"cannot hand {claim.job_id} on: {away}", fields)
            role = claim.envelope.lifecycle.role
            codes: dict[str, Value] = {"job_id": claim.job_id, "role": role, "attempt": claim.attempt, "try": number}
            self.store.note(AWAY, actor=claim.agent.id, **codes)
            if number < self.retry.max_attempts:
                self._sleep(delay_after(number, self.retry, self.uniform), tick, stop)
            if stop.requested:
                return False
        return self.away() is None

    def away(self) -> str | None:
        """Return why no manager would take the job; None: the manager is alive."""
        silent = self.store.leadership().silent_s()
        if silent is None:
            return "no manager has run here yet; start one with `farro manager`"
        return f"the manager has been silent for {in_words(silent)}" if silent > AWAY_S else None

    def _sleep(self, seconds: float, tick: Callable[[], None], stop: Stop) -> None:
        until_s = self.clock.monotonic_s() + seconds
        while not stop.requested and (left := until_s - self.clock.monotonic_s()) > 0:
            tick()
            self.clock.sleep(min(_SLICE_S, left))

    def _unroutable(self, outcome: Succeeded) -> Unroutable:
        why = self.away() or "the manager was away"
        message = f"the work is done and could not be handed on: {why}. It is stale until a manager is back"
        markdown = f"# Not handed on\n\n**{AWAY}**: {message}.\n\n{outcome.report.markdown}"
        report = replace(outcome.report, markdown=markdown)
        return Unroutable(error=ErrorInfo(category=AWAY, message=message), report=report)
