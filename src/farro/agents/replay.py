"""Run an agent job again from its snapshots and recorded answers (`farro replay`). No provider is asked.

The job's folder is only read; new files go to a scratch folder that is removed. The same prompt, policies and answers
must give the same result. If not, the report says what differs: a question that changed (with the changed lines), an
answer that is read differently, or a call that was not recorded.

A coding agent is not run again: it would change files again. What passed through the gateway is read again, and must
tell the same tokens, model and end of each answer.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from farro.agents.agent_step import Agents, question_text
from farro.agents.call_records import recorded_answers
from farro.agents.exchange_records import recorded_calls, recorded_exchanges
from farro.agents.gateway.wire_usage import read_again
from farro.agents.providers.port import Answer, ProviderTrouble, Request, Usage
from farro.config.settings import Settings
from farro.errors import InputError
from farro.execution import task_snapshot
from farro.execution.progress import read_result
from farro.execution.runner import Guarding, Work
from farro.execution.stop import Stop
from farro.execution.tools import Tools
from farro.execution.work import PlanCache, perform_work
from farro.host import fs, links, trees
from farro.host.clock import Clock
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Failed, Outcome, Succeeded
from farro.lazy_dataclass import dataclass
from farro.plans.forms import is_agent_prompt
from farro.roles import workflow
from farro.sandbox.redaction import Redactor
from farro.store.ledger import Budgets, CallEnd, CallRecord, Charge
from farro.store.port import Store, marker

_LINES = 40  # lines of a difference that are shown


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayedAttempt:
    """The comparison of one attempt with its replay."""

    attempt: int
    role: str
    calls: int  # recorded answers of the attempt
    same: bool
    difference: str = ""  # a description, with a diff


def replay_job(
    store: Store, job_id: str, *, settings_of: Callable[[str], Settings], clock: Clock
) -> list[ReplayedAttempt]:
    """Replay every attempt of a job that an agent answered, in order.

    Raises InputError if there is nothing to replay.
    """
    view = store.find(job_id)
    assert view is not None, "resolved by the caller"
    folder = store.folder(view)
    prompt = _prompt(folder)
    if not is_agent_prompt(prompt):
        raise InputError(f"{job_id} is a plan of commands, which are not recorded; run it again: farro retry {job_id}")
    replay = _Replay(
        root=store.root, folder=folder, life=view.lifecycle, prompt=prompt, settings_of=settings_of, clock=clock
    )
    done = [replay.attempt(number) for number in range(1, view.lifecycle.attempt + 1) if _answered(folder, number)]
    if not done:
        raise InputError(f"{job_id} has no answer yet that could be replayed; see: farro show {job_id}")
    return done


def _prompt(folder: str) -> Mapping[str, Any]:
    data: Mapping[str, Any] = json.loads(fs.read_bytes(f"{folder}/prompt.json"))
    return data


def _answered(folder: str, number: int) -> bool:
    result = read_result(folder, number)
    # An attempt of the manager repeats the result of the role before it, and called no provider.
    return bool(result and result.get("success") and result.get("agent") and "decision" not in result)


@dataclass(frozen=True, kw_only=True)
class _Replay:
    """Replays the attempts of one job."""

    root: str
    folder: str  # of the job
    life: Lifecycle
    prompt: Mapping[str, Any]
    settings_of: Callable[[str], Settings]
    clock: Clock

    def attempt(self, number: int) -> ReplayedAttempt:
        home = f"{self.folder}/attempts/{number:04d}"
        before = read_result(self.folder, number)
        answers = recorded_answers(home, "1")
        provider = _NoProvider([one.asked for one in answers])
        scratch = fs.temporary(f"{self.root}/jobs/.staging")
        try:
            folder = _copied(self.folder, home, scratch, number)
            marked = marker(self.life.job_id, number, f"replay-{os.path.basename(scratch)}")
            work = self._work(number, role=before["agent"]["role"], home=home, folder=folder, marker=marked)
            outcome = self._perform(work, provider)
        finally:
            with contextlib.suppress(OSError):
                trees.remove_tree(scratch)
        difference = provider.difference or _difference(before, outcome) or _wire_difference(f"{home}/steps/1/calls")
        return ReplayedAttempt(
            attempt=number, role=work.role, calls=len(answers), same=not difference, difference=difference
        )

    def _work(self, number: int, *, role: str, home: str, folder: str, marker: str) -> Work:
        hops = [hop for hop in self.life.hops if hop.attempt < number]
        worked = workflow.worked_before(hops)
        return Work(
            job_id=self.life.job_id,
            prompt=self.prompt,
            folder=folder,
            marker=marker,
            env={},
            cwd=self.root,
            root=self.root,
            step_timeout_s=600.0,
            earlier=(home,),
            durable=False,
            role=role,
            attempt=number,
            previous=tuple((worker, f"{self.folder}/attempts/{attempt:04d}") for worker, attempt in worked),
            step=workflow.sent_to(hops),
            note=workflow.asked_changes(hops),
            guarding=Guarding(),
        )

    def _perform(self, work: Work, provider: _NoProvider) -> Outcome:
        agents = Agents(
            settings_of=self.settings_of,
            provider=lambda name, settings: provider,
            ledger=_NoLedger(),
            prices=lambda providers: _NoPrices(),
            redactor=lambda settings: Redactor({}),
            clock=self.clock,
            uniform=lambda low, high: low,
        )
        stop = Stop(self.clock)
        try:
            return perform_work(
                work, plans=PlanCache(), tools=Tools(), clock=self.clock, tick=lambda: None, stop=stop, agents=agents
            )
        finally:
            stop.close()


def _copied(folder: str, home: str, scratch: str, number: int) -> str:
    """Link what an attempt reads into the scratch folder: the job's own files, and the attempt's snapshot."""
    attempt = f"{scratch}/attempts/{number:04d}"
    for path in (scratch, f"{scratch}/attempts", attempt, f"{attempt}/.snapshot", f"{scratch}/payload"):
        fs.mkdir(path)
    pairs = [(f"{home}/.snapshot", f"{attempt}/.snapshot"), (f"{folder}/payload", f"{scratch}/payload")]
    for source, target in pairs:
        if fs.exists(source):
            for name in fs.listdir(source):
                links.place(f"{source}/{name}", f"{target}/{name}")
    fs.mkdir(f"{scratch}/.snapshot")
    for name in task_snapshot.NAMES:
        if fs.exists(f"{folder}/.snapshot/{name}"):
            links.place(f"{folder}/.snapshot/{name}", f"{scratch}/.snapshot/{name}")
    if fs.exists(f"{folder}/prompt.md"):
        links.place(f"{folder}/prompt.md", f"{scratch}/prompt.md")
    return attempt


def _difference(before: Mapping[str, Any], outcome: Outcome) -> str:
    """Say how the outcome differs from the recorded result; empty if it is the same."""
    if not isinstance(outcome, Succeeded):
        why = outcome.error.message if isinstance(outcome, Failed) else "it did not end"
        return f"it succeeded then, and fails now: {why}"
    now, then = _shown(outcome.report.result["agent"]["answer"]), _shown(before["agent"]["answer"])
    return "" if now == then else "the same answers are read otherwise:\n" + _diff(then, now)


def _wire_difference(folder: str) -> str:
    """Read what the gateway kept again; empty if it is read as it was then."""
    for number in recorded_calls(folder):
        for exchange in recorded_exchanges(folder, number):
            then = (exchange.model, exchange.usage)
            now = read_again(exchange)
            if exchange.whole and 200 <= exchange.status < 300 and now != then:
                return f"request {exchange.number} of call {number} ({exchange.path}) is read otherwise:\n" + _diff(
                    "\n".join(map(repr, then)), "\n".join(map(repr, now))
                )
    return ""


def _shown(answer: Any) -> str:
    return json.dumps(answer, indent=2, ensure_ascii=False)


def _diff(before: str, now: str) -> str:
    lines = list(difflib.unified_diff(before.splitlines(), now.splitlines(), "then", "now", lineterm="", n=1))
    more = [f"… and {len(lines) - _LINES} more lines"] if len(lines) > _LINES else []
    return "\n".join([*lines[:_LINES], *more])


class _NoProvider:
    """Port: Provider. Called only when no recorded answer fits: then it notes where the job differs."""

    tries = 1

    def __init__(self, asked: Sequence[str]) -> None:
        self._asked = asked
        self.difference = ""

    def answer(self, request: Request) -> Answer:
        now = question_text(request.system, request.messages)
        number = int(request.key.rsplit("/", 1)[-1])
        if number <= len(self._asked):
            self.difference = f"call {number} asks something else:\n" + _diff(self._asked[number - 1], now)
        else:
            self.difference = f"call {number} was not made then: {len(self._asked)} were"
        raise ProviderTrouble("no recorded answer fits", kind="failed", retryable=False, charged=False)

    def close(self) -> None: ...


class _NoLedger:
    """Port: Ledger. Nothing is spent."""

    def reserve(self, charge: Charge, budgets: Budgets) -> str:
        return ""

    def settle(self, call_id: str, *, end: CallEnd, usage: Usage | None, cost_usd: Decimal | None) -> None: ...

    def of_job(self, job_id: str) -> Sequence[CallRecord]:
        return ()

    def of_day(self, day: str) -> Sequence[CallRecord]:
        return ()

    def days(self) -> Sequence[str]:
        return ()


class _NoPrices:
    """Port: Prices. Nothing has a price."""

    def cost_usd(self, provider: str, model: str | None, usage: Usage) -> Decimal | None:
        return None

    def most_usd(
        self, provider: str, model: str | None, *, prompt_bytes: int, max_output_tokens: int
    ) -> Decimal | None:
        return None
