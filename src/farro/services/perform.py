"""From a claim to an outcome: the prompt is loaded, its plan is run, what came of it becomes one of the closed set.

Claiming and committing live in worker; running steps lives in execution.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from farro.errors import BadDocument, Lost, StorageTrouble, SyncFailed
from farro.execution import resume
from farro.execution.run import run_plan
from farro.execution.stop import Interrupted, Stop
from farro.execution.tools import Tools
from farro.kernel.outcome import ErrorInfo, Failed, Outcome, Released, Report, Succeeded
from farro.plans.loading import load_data
from farro.plans.model import DEFAULT_TIMEOUT_S, Plan
from farro.ports.clock import Clock
from farro.ports.store import Claim

TICK_S = 1.0  # how soon a job that was taken away is noticed: its tree is ended within two seconds of a kill


@dataclass(frozen=True, kw_only=True, slots=True)
class Performer:
    """Runs the plan of a claim. One for all slots of a worker."""

    root: str
    base_env: Mapping[str, str]
    tools: Tools
    clock: Clock
    step_timeout_s: float = DEFAULT_TIMEOUT_S  # of a step that names none
    durable: bool = True  # successes of steps survive a power cut
    _plans: Plans = field(default_factory=lambda: Plans())

    def perform(self, claim: Claim, tick: Callable[[], None], stop: Stop) -> Outcome:
        """The outcome of the attempt. Lost goes through: somebody else has the job, and nothing may be written.

        Whatever a plan does, it is an outcome of that job alone and never ends the worker (RELIABILITY 26).
        """
        try:
            return self._run(claim, tick, stop)
        except (Lost, SyncFailed):
            raise
        except Interrupted as interrupted:
            done = len(interrupted.partial.step_results)
            return Released(note=f"the worker was stopped after {done} of {interrupted.partial.steps_total} steps")
        except BadDocument as error:
            return _failed(claim, "bad_prompt", str(error))
        except (StorageTrouble, OSError) as error:
            return _failed(claim, "storage", str(error), retryable=True)
        except Exception as error:  # noqa: BLE001 - the edge of a service loop: a bug here fails one job, not the worker
            return _failed(claim, "internal_error", f"{type(error).__name__}: {error}", detail=traceback.format_exc())

    def _run(self, claim: Claim, tick: Callable[[], None], stop: Stop) -> Outcome:
        plan = self._plans.of(claim.envelope.prompt)
        if plan.allowed_paths is not None:
            return _failed(
                claim,
                "sandbox_missing",
                "the plan has allowed_paths, and this farro has no sandbox yet to keep them: it is not run unconfined",
            )
        result = run_plan(
            plan,
            attempt_dir=claim.folder,
            job_id=claim.job_id,
            base_env={**self.base_env, "FARRO_AGENT": claim.agent.id},
            cwd=self.root,
            tools=self.tools,
            claim_marker=claim.marker,
            tick=tick,
            tick_every_s=TICK_S,
            stop=stop,
            clock=self.clock,
            root=self.root,
            step_timeout_s=self.step_timeout_s,
            earlier=_earlier(claim),
            durable=self.durable,
        )
        report = Report(
            result=result.to_json(claim.job_id, plan.plan_id), markdown=result.summary_md(), files=result.files
        )
        if result.success:
            return Succeeded(report=report)
        assert result.error is not None
        return Failed(error=result.error, report=report, retryable=result.retryable)


def _earlier(claim: Claim) -> tuple[str, ...]:
    life = claim.envelope.lifecycle
    return resume.earlier(claim.folder, claim.attempt, life.hop_start, retried=life.retry_of is not None)


class Plans:
    """The plans of the last prompts: many jobs say the same, and checking it again would tell nothing new."""

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._known: dict[str, Plan] = {}  # by the prompt's text

    def of(self, prompt: Mapping[str, Any]) -> Plan:
        text = _encode(prompt)
        plan = self._known.get(text)
        if plan is None:
            plan = load_data(prompt, "prompt.json")
            if len(text) <= _SMALL:
                if len(self._known) >= self._limit:
                    self._known.pop(next(iter(self._known), ""), None)
                self._known[text] = plan
        return plan


_SMALL = 4096
_encode = json.JSONEncoder(ensure_ascii=False).encode


def _failed(claim: Claim, category: str, message: str, *, retryable: bool = False, detail: str = "") -> Failed:
    """An attempt that failed before, or beside, its steps."""
    markdown = f"# Failed\n\n**{category}**: {message}\n"
    if detail:
        markdown += "\n" + "\n".join("    " + line for line in detail.splitlines()) + "\n"
    result: dict[str, Any] = {
        "job_id": claim.job_id,
        "plan_id": None,
        "success": False,
        "step_results": [],
        "error": {"category": category, "message": message},
    }
    return Failed(
        error=ErrorInfo(category=category, message=message),
        report=Report(result=result, markdown=markdown),
        retryable=retryable,
    )
