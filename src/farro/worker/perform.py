"""Turn a claim into an outcome: build the work and let a runner do it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from farro.errors import BadName, InputError, Lost, NoFolder, NoTask, SyncFailed
from farro.execution import resume, task_snapshot
from farro.execution.find_program import AGENT
from farro.execution.runner import DEFAULTS, Guarding, Runner, Work
from farro.execution.stop import Stop
from farro.execution.work import bug, failed
from farro.host.clock import Clock
from farro.jobs import ids
from farro.jobs.outcomes import Failed, Outcome, Released, Succeeded, Unroutable
from farro.lazy_dataclass import dataclass
from farro.plans.forms import is_agent_prompt
from farro.plans.model import AHEAD_BYTES, DEFAULT_TIMEOUT_S
from farro.roles import workflow
from farro.store.port import Claim
from farro.worker import routing, started_tasks
from farro.worker.snapshot import Snapshots


@dataclass(frozen=True, kw_only=True, slots=True)
class BegunJob:
    """A job that is not over in a moment. `Performer.finish` runs it to its end."""

    runner: Runner[Any]
    work: Work
    run: Any = None  # the runner's handle; None: not begun

    @property
    def over(self) -> bool:
        """Return whether only its result is missing."""
        return self.run is not None and not self.runner.is_alive(self.run)


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

    def begin(self, claims: Iterable[Claim], stop: Stop) -> list[Outcome | BegunJob]:
        """Begin the first of these claims: at least one, and more as far as they are over in a moment. Returns for each
        its outcome, or what `finish` has to run to its end. The others were not begun."""
        works: list[Work] = []
        for claim in claims:
            try:
                if (alone := self._alone(claim.envelope.prompt)) and works:
                    break
                begun = self._prepare(claim, alone=alone)
            except Exception as error:  # noqa: BLE001 - the edge of a service loop: a bug here fails one job, not the worker
                if works:
                    break  # it is the first of the next call
                return [_failure(claim.job_id, error)]
            if alone:
                return [begun]
            works.append(begun.work)
        runs = [] if stop.requested else self.runner.run(works)
        if not runs:
            return [BegunJob(runner=self.runner, work=works[0])]
        return [
            came
            if isinstance(came, Succeeded | Failed | Released | Unroutable)
            else BegunJob(runner=self.runner, work=work, run=came)
            for work, came in zip(works, runs, strict=False)
        ]

    def finish(self, begun: BegunJob, tick: Callable[[], None], stop: Stop) -> Outcome:
        """Return the outcome of the attempt.

        Lost goes through: another agent has the job, and nothing may be written. So does NoFolder: nothing of it has
        begun.
        """
        runner = begun.runner
        try:
            run = runner.spawn(begun.work, tick=tick, stop=stop) if begun.run is None else begun.run
            return runner.wait(run, tick=tick, stop=stop)
        except Exception as error:  # noqa: BLE001 - the edge of a service loop: a bug here fails one job, not the worker
            return _failure(begun.work.job_id, error)

    def perform(self, claim: Claim, tick: Callable[[], None], stop: Stop) -> Outcome:
        """Run one job to its end, as `finish` does."""
        try:
            begun = self._prepare(claim, alone=self._alone(claim.envelope.prompt))
        except Exception as error:  # noqa: BLE001 - as above
            return _failure(claim.job_id, error)
        return self.finish(begun, tick, stop)

    def _prepare(self, claim: Claim, *, alone: bool) -> BegunJob:
        if alone:
            claim.make()
        runner = self.runner
        work = self.work(claim)
        if alone and asks_agents(claim.envelope.prompt):
            self._keep_snapshot(claim)
            runner = runner if self.agents_runner is None else self.agents_runner()
        return BegunJob(runner=runner, work=work)

    @staticmethod
    def _alone(prompt: Mapping[str, Any]) -> bool:
        """Return whether the job is never part of a batch."""
        return "allowed_paths" in prompt or asks_agents(prompt)

    def work(self, claim: Claim) -> Work:
        """Return all that is needed to run a claim's attempt, wherever it runs."""
        life, prompt = claim.envelope.lifecycle, claim.envelope.prompt
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
        task_id = task_snapshot.task_id(claim.envelope.prompt)
        if task_id is None:
            return
        try:
            snapshots.keep_task(task_id, routing.job_folder(claim))
        except (NoTask, BadName):
            if (claim.envelope.lifecycle.routing or {}).get("mode") == "manager":
                raise
        else:
            started_tasks.mark(self.root, task_id, claim.job_id)


def _failure(job_id: str, error: Exception) -> Failed:
    """Turn an error outside of the job's steps into an outcome; raise what the worker has to handle."""
    match error:
        case Lost() | SyncFailed() | NoFolder():
            raise error
        case NoTask() | BadName():
            return failed(job_id, "bad_task", str(error))
        case InputError():
            return failed(job_id, "bad_policy", str(error))
        case _:
            return bug(job_id, error)


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
