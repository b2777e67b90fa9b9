"""From a claim to an outcome: the claim becomes a piece of work, and a runner does it.

Claiming and committing live in worker; what a runner does with the work, in runners and execution.work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from farro.errors import Lost, SyncFailed
from farro.execution import resume
from farro.execution.stop import Stop
from farro.execution.work import bug
from farro.kernel.outcome import Outcome
from farro.plans.model import AHEAD_BYTES, DEFAULT_TIMEOUT_S
from farro.ports.clock import Clock
from farro.ports.runner import DEFAULTS, Guarding, Runner, Work
from farro.ports.store import Claim


@dataclass(frozen=True, kw_only=True, slots=True)
class Performer:
    """Runs the plan of a claim. One for all slots of a worker."""

    root: str
    base_env: Mapping[str, str]
    runner: Runner[Any]
    clock: Clock
    step_timeout_s: float = DEFAULT_TIMEOUT_S  # of a step that names none
    durable: bool = True  # successes of steps survive a power cut
    ahead_bytes: int = AHEAD_BYTES
    guarding: Guarding = DEFAULTS

    def perform(self, claim: Claim, tick: Callable[[], None], stop: Stop) -> Outcome:
        """The outcome of the attempt. Lost goes through: somebody else has the job, and nothing may be written."""
        try:
            run = self.runner.spawn(self.work(claim), tick=tick, stop=stop)
            return self.runner.wait(run, tick=tick, stop=stop)
        except (Lost, SyncFailed):
            raise
        except Exception as error:  # noqa: BLE001 - the edge of a service loop: a bug here fails one job, not the worker
            return bug(claim.job_id, error)

    def work(self, claim: Claim) -> Work:
        """All that is needed to run a claim's attempt, wherever it is run."""
        life = claim.envelope.lifecycle
        return Work(
            job_id=claim.job_id,
            prompt=claim.envelope.prompt,
            folder=claim.folder,
            marker=claim.marker,
            env={**self.base_env, "FARRO_AGENT": claim.agent.id},
            cwd=self.root,
            root=self.root,
            step_timeout_s=self.step_timeout_s,
            earlier=resume.earlier(claim.folder, claim.attempt, life.hop_start, retried=life.retry_of is not None),
            durable=self.durable,
            ahead_bytes=self.ahead_bytes,
            guarding=self.guarding,
        )
