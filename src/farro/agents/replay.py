"""`farro replay`: an agent job once more, from its snapshots and with the recorded answers. No provider is asked.

Its folder is read only; what is made anew lies in a scratch folder, and goes. Running a job again for real is retry.

The same prompt, policies and answers must give the same result. Where they do not, this says what differs: a question
that is another than the one that was asked (with the lines that changed), an answer that is read otherwise, or one that
nobody recorded.
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
from farro.agents.providers.port import Answer, ProviderTrouble, Request, Usage
from farro.config.settings import Settings
from farro.errors import InputError
from farro.execution import task_snapshot
from farro.execution.progress import read_result
from farro.execution.runner import Guarding, Work
from farro.execution.stop import Stop
from farro.execution.tools import Tools
from farro.execution.work import Plans, perform_work
from farro.host import fs, links, trees
from farro.host.clock_port import Clock
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Failed, Succeeded
from farro.lazy_dataclass import dataclass
from farro.plans.forms import is_agent_prompt
from farro.roles import workflow
from farro.sandbox.redaction import Redactor
from farro.store.ledger import Budgets, CallEnd, CallRecord, Charge
from farro.store.port import Store, marker

_LINES = 40  # of a difference that are shown


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayedAttempt:
    """One attempt, run again."""

    attempt: int
    role: str
    calls: int  # recorded ones that it had
    same: bool
    difference: str = ""  # in words, and as a diff


def replay_job(
    store: Store, root: str, job_id: str, *, settings_of: Callable[[str], Settings], clock: Clock
) -> list[ReplayedAttempt]:
    """Every attempt of that job that an agent answered, in order. InputError: there is nothing to replay."""
    view = store.find(job_id)
    assert view is not None, "resolved by the caller"
    folder = store.folder(view)
    prompt = _prompt(folder)
    if not is_agent_prompt(prompt):
        raise InputError(f"{job_id} is a plan of commands, which are not recorded; run it again: farro retry {job_id}")
    done = [
        _attempt(root, folder, view.lifecycle, number, prompt, settings_of, clock)
        for number in range(1, view.lifecycle.attempt + 1)
        if _answered(folder, number)
    ]
    if not done:
        raise InputError(f"{job_id} has no answer yet that could be replayed; see: farro show {job_id}")
    return done


def _prompt(folder: str) -> Mapping[str, Any]:
    data: Mapping[str, Any] = json.loads(fs.read_bytes(f"{folder}/prompt.json"))
    return data


def _answered(folder: str, number: int) -> bool:
    result = read_result(folder, number)
    # An attempt of the manager's repeats what the role before it found, and asked nobody.
    return bool(result and result.get("success") and result.get("agent") and "decision" not in result)


def _attempt(
    root: str,
    folder: str,
    life: Lifecycle,
    number: int,
    prompt: Mapping[str, Any],
    settings_of: Callable[[str], Settings],
    clock: Clock,
) -> ReplayedAttempt:
    home = f"{folder}/attempts/{number:04d}"
    before = read_result(folder, number)
    role = before["agent"]["role"]
    hops = [hop for hop in life.hops if hop.attempt < number]
    answers = recorded_answers(home, "1")
    scratch = fs.temporary(f"{root}/jobs/.staging")
    try:
        attempt = _copied(folder, home, scratch, number)
        told = _Told([one.asked for one in answers])
        work = Work(
            job_id=life.job_id,
            prompt=prompt,
            folder=attempt,
            marker=marker(life.job_id, number, f"replay-{os.path.basename(scratch)}"),
            env={},
            cwd=root,
            root=root,
            step_timeout_s=600.0,
            earlier=(home,),
            durable=False,
            role=role,
            attempt=number,
            previous=tuple((role, f"{folder}/attempts/{n:04d}") for role, n in workflow.worked_before(hops)),
            step=workflow.sent_to(hops),
            note=workflow.asked_changes(hops),
            guarding=Guarding(),
        )
        agents = Agents(
            root=root,
            settings_of=settings_of,
            provider=lambda name, described: told,
            ledger=_NoLedger(),
            prices=lambda providers: _NoPrices(),
            redactor=lambda settings: Redactor({}),
            clock=clock,
            uniform=lambda low, high: low,
        )
        stop = Stop(clock)
        try:
            came = perform_work(
                work, plans=Plans(), tools=Tools(), clock=clock, tick=lambda: None, stop=stop, agents=agents
            )
        finally:
            stop.close()
        return _compared(number, role, len(answers), before, came, told)
    finally:
        with contextlib.suppress(OSError):
            trees.remove_tree(scratch)


def _copied(folder: str, home: str, scratch: str, number: int) -> str:
    """What an attempt reads, as links: the job's own files, and the attempt's snapshot."""
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


def _compared(number: int, role: str, calls: int, before: Mapping[str, Any], came: Any, told: _Told) -> ReplayedAttempt:
    if told.difference:
        return ReplayedAttempt(attempt=number, role=role, calls=calls, same=False, difference=told.difference)
    if isinstance(came, Succeeded):
        now, then = _shown(came.report.result["agent"]["answer"]), _shown(before["agent"]["answer"])
        if now == then:
            return ReplayedAttempt(attempt=number, role=role, calls=calls, same=True)
        difference = "the same answers are read otherwise:\n" + _diff(then, now)
    else:
        why = came.error.message if isinstance(came, Failed) else "it did not end"
        difference = f"it succeeded then, and fails now: {why}"
    return ReplayedAttempt(attempt=number, role=role, calls=calls, same=False, difference=difference)


def _shown(answer: Any) -> str:
    return json.dumps(answer, indent=2, ensure_ascii=False)


def _diff(before: str, now: str) -> str:
    lines = list(difflib.unified_diff(before.splitlines(), now.splitlines(), "then", "now", lineterm="", n=1))
    more = [f"… and {len(lines) - _LINES} more lines"] if len(lines) > _LINES else []
    return "\n".join([*lines[:_LINES], *more])


class _Told:
    """Port: Provider. Asked only when no recorded answer fits: then this is where the job differs."""

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
        raise ProviderTrouble("no recorded answer fits", kind="missing", retryable=False, charged=False)

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
    """Port: Prices."""

    def cost_usd(self, provider: str, model: str | None, usage: Usage) -> Decimal | None:
        return None

    def most_usd(
        self, provider: str, model: str | None, *, prompt_bytes: int, max_output_tokens: int
    ) -> Decimal | None:
        return None
