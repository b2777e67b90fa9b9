"""Turn a claim into an outcome: build the work and let a runner do it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from farro.errors import BadName, InputError, Lost, NoFolder, NoTask, SyncFailed
from farro.execution import resume
from farro.execution.commands import AGENT
from farro.execution.runner import DEFAULTS, Guarding, Runner, StopRequest, Work
from farro.execution.step import BegunCall
from farro.execution.stop import Stop
from farro.execution.work import bug, failed
from farro.host.clock import Clock
from farro.jobs import ids
from farro.jobs.outcomes import Outcome
from farro.lazy_dataclass import dataclass
from farro.plans.forms import is_agent_prompt
from farro.plans.model import AHEAD_BYTES, DEFAULT_TIMEOUT_S
from farro.roles import workflow
from farro.store.port import Claim
from farro.worker import routing, started_tasks
from farro.worker.snapshot import Snapshots


@runtime_checkable
class BatchRunner(Protocol):
    """A runner that does several small jobs in one call (runners.inline)."""

    def run_jobs(self, works: Sequence[Work]) -> list[Outcome | BegunCall]: ...

    def continue_run(self, work: Work, begun: BegunCall, *, tick: Callable[[], None], stop: StopRequest) -> Outcome: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Performer:
    """Run the plan of a claim. One for all slots of a worker."""

    root: str
    base_env: Mapping[str, str]
    runner: Runner[Any]
    clock: Clock
    step_timeout_s: float = DEFAULT_TIMEOUT_S  # of a step that names none
    durable: bool = True  # successes of steps survive a power cut
    ahead_bytes: int = AHEAD_BYTES
    # The runner of jobs that call a provider: a separate runner process would import the provider's libraries for each
    # job. Made for the first such job. None: the same as for other jobs.
    agents_runner: Callable[[], Runner[Any]] | None = None
    snapshots: Snapshots | None = None
    max_job_bytes: int | None = None  # of jobs with allowed_paths
    guarding: Guarding = DEFAULTS
    confined_env: Callable[[], Mapping[str, str]] | None = None  # base_env of jobs with allowed_paths. None: the same

    def run_batch(self, claims: Iterable[Claim]) -> list[Outcome | BegunCall]:
        """Run the first of these as far as they are functions that are over in a moment. Returns outcomes, or what
        `perform` has to continue; the last may still be running. The others were not begun."""
        row: Callable[[Sequence[Work]], list[Outcome | BegunCall]] | None = getattr(self.runner, "run_jobs", None)
        if row is None:
            return []
        works = []
        for claim in claims:
            prompt = claim.envelope.prompt
            if "allowed_paths" in prompt or asks_agents(prompt):
                break
            works.append(self.work(claim))
        return row(works) if works else []

    def perform(self, claim: Claim, tick: Callable[[], None], stop: Stop, begun: BegunCall | None = None) -> Outcome:
        """Return the outcome of the attempt. `begun`: what `run_batch` returned for it.

        Lost goes through: another agent has the job, and nothing may be written. So does NoFolder: nothing of it has
        begun.
        """
        try:
            work = self.work(claim)
            runner = self.runner
            if begun is not None:
                assert isinstance(runner, BatchRunner)
                return runner.continue_run(work, begun, tick=tick, stop=stop)
            if asks_agents(claim.envelope.prompt):
                self._keep_snapshot(claim)
                runner = runner if self.agents_runner is None else self.agents_runner()
            run = runner.spawn(work, tick=tick, stop=stop)
            return runner.wait(run, tick=tick, stop=stop)
        except (Lost, SyncFailed, NoFolder):
            raise
        except (NoTask, BadName) as error:
            return failed(claim.job_id, "bad_task", str(error))
        except InputError as error:
            return failed(claim.job_id, "bad_policy", str(error))
        except Exception as error:  # noqa: BLE001 - the edge of a service loop: a bug here fails one job, not the worker
            return bug(claim.job_id, error)

    def work(self, claim: Claim) -> Work:
        """Return all that is needed to run a claim's attempt, wherever it runs."""
        life, prompt = claim.envelope.lifecycle, claim.envelope.prompt
        if not getattr(self.runner, "late", False) or "allowed_paths" in prompt or asks_agents(prompt):
            claim.make()
        return Work(
            job_id=claim.job_id,
            prompt=prompt,
            folder=claim.place,
            make=claim.make,
            marker=claim.marker,
            env={**self._env(prompt), "FARRO_AGENT": claim.agent.id},
            cwd=self.root,
            root=self.root,
            step_timeout_s=self.step_timeout_s,
            earlier=()
            if claim.attempt == 1 and life.retry_of is None
            else resume.earlier(claim.place, claim.attempt, life.hop_start, retried=life.retry_of is not None),
            durable=self.durable,
            ahead_bytes=self.ahead_bytes,
            role=life.role,
            attempt=claim.attempt,
            previous=routing.previous(claim) if life.hops else (),
            step=workflow.sent_to(life.hops) if life.hops else None,
            note=workflow.asked_changes(life.hops) if life.hops else "",
            max_bytes=self.max_job_bytes if "allowed_paths" in prompt else None,
            guarding=self.guarding,
        )

    def _env(self, prompt: Mapping[str, Any]) -> Mapping[str, str]:
        return self.base_env if self.confined_env is None or "allowed_paths" not in prompt else self.confined_env()

    def _keep_snapshot(self, claim: Claim) -> None:
        """Copy the claim's config and policies into the job: its agents work under these."""
        if self.snapshots is not None:
            life = claim.envelope.lifecycle
            self._keep_task(claim, self.snapshots)
            snapshot = self.snapshots.claimed(life.role, life.policy_version)
            snapshot = self.snapshots.with_roles(snapshot, asked_roles(claim.envelope.prompt), life.role)
            self.snapshots.keep(snapshot, claim.folder)

    def _keep_task(self, claim: Claim, snapshots: Snapshots) -> None:
        """Copy the task into the job. Only a job that the manager routes needs it; for others the id may be any
        word."""
        task_id = routing.task_id(claim.envelope.prompt)
        if task_id is None:
            return
        try:
            snapshots.keep_task(task_id, routing.job_folder(claim))
        except (NoTask, BadName):
            if (claim.envelope.lifecycle.routing or {}).get("mode") == "manager":
                raise
        else:
            started_tasks.mark(self.root, task_id, claim.job_id)


def asks_agents(prompt: Mapping[str, Any]) -> bool:
    """Return whether a provider is called: for the prompt itself, or by one of its steps."""
    if is_agent_prompt(prompt):
        return True
    return any(True for _ in _agent_steps(prompt))


def asked_roles(prompt: Mapping[str, Any]) -> set[str]:
    """Return the roles that steps of a plan call."""
    names = (step.get("command") for step in _agent_steps(prompt))
    return {name for name in names if isinstance(name, str) and ids.ROLE.fullmatch(name)}


def _agent_steps(prompt: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    steps = prompt.get("steps", prompt.get("tasks"))
    if not isinstance(steps, list):
        return iter(())  # reported when the plan is loaded
    return (step for step in steps if isinstance(step, dict) and step.get("tool") == AGENT)
