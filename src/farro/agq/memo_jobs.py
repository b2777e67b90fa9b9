"""Convert jobs and results from and to the memo's form (seed 004): push, claim, commit.

farro.plans.memo has the rules.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from farro.documents import Limits, parse_json, refusal
from farro.errors import BadDocument, ClaimLost, FarroError, InputError
from farro.execution import results
from farro.execution.progress import read_prompt, read_result
from farro.execution.results import NO_TEXT, Inline, PlanResult, StepResult
from farro.execution.work import PlanCache
from farro.host import fs
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import ErrorInfo, Failed, Released, Report, Succeeded
from farro.jobs.request import Attachments, JobRequest
from farro.jobs.states import Reason, Status
from farro.lazy_dataclass import dataclass
from farro.plans import memo
from farro.plans.forms import is_agent_prompt
from farro.plans.memo import PostedResult, PostedStep
from farro.plans.model import Plan
from farro.queue import results as job_results
from farro.queue.logs import STREAMS
from farro.queue.submit import DEFAULT_ROLE, SubmitPolicy, prepare, submit
from farro.store.port import Claim, JobView, Store, Submission, Submitted, commit_one

RESULT_BYTES = 16 << 20
LAST_LINES = 20  # of a failed step, in the update of its job
_JOB_LIMITS = Limits(size=memo.JOB_BYTES)
_RESULT_LIMITS = Limits(size=RESULT_BYTES, depth=16, nodes=100_000)
_RELEASES = 5  # a job that loses more workers than this has its attempts counted: it may be what kills them

# --- pushing -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class PushRequest:
    """Jobs that one client pushes, all of them or none."""

    texts: Sequence[bytes]
    role: str
    input: bytes | None = None  # of the only job, for its first step

    @property
    def size(self) -> int:
        return sum(map(len, self.texts)) + len(self.input or b"")


def push_all(
    store: Store,
    pushes: Sequence[PushRequest],
    policy: SubmitPolicy,
    expect: Callable[[Iterable[str]], None] | None = None,
) -> list[list[Submitted] | FarroError]:
    """Queue the jobs of many clients with merged syncs; answer each client separately. `expect` gets the ids before
    anything is queued. BadDocument: the first bad job of that client with its problems; the source says which.

    All are tried together first. If that fails, each is tried alone, which is safe to repeat for jobs that have ids.
    """
    answers: list[list[Submitted] | FarroError] = []
    waiting: dict[int, list[Submission]] = {}
    for at, push in enumerate(pushes):
        answers.append([])
        try:
            waiting[at] = _prepare(store, push, policy)
        except FarroError as error:
            answers[at] = error
    if expect is not None:
        expect([item.job_id for wanted in waiting.values() for item in wanted if item.job_id is not None])
    together = [at for at, wanted in waiting.items() if all(item.job_id is not None for item in wanted)]
    if len(together) > 1:
        with contextlib.suppress(FarroError):
            made = iter(submit(store, [item for at in together for item in waiting[at]], policy))
            for at in together:
                answers[at] = [next(made) for _ in waiting.pop(at)]
    for at, wanted in waiting.items():
        try:
            answers[at] = submit(store, wanted, policy)
        except FarroError as error:
            answers[at] = error
    return answers


def _prepare(store: Store, push: PushRequest, policy: SubmitPolicy) -> list[Submission]:
    several = len(push.texts) > 1
    asked = [_request(text, push.role, f"value {at}" if several else "") for at, text in enumerate(push.texts, start=1)]
    if push.input is not None:
        asked = [replace(one, attachments=Attachments(input=push.input)) for one in asked]
    return prepare(store, asked, policy)


def _request(text: bytes, role: str, source: str) -> JobRequest:
    document = parse_json(text, source=source, limits=_JOB_LIMITS)
    if not (is_agent_prompt(document.data) and role != DEFAULT_ROLE) and (problems := memo.missing(document)):
        raise refusal(source, problems)
    return JobRequest(document=document, role=role)


def spell(name: str) -> str:
    """Spell a field of a request: a client names the role by the queue."""
    return "the queue" if name == "role" else name


def first_problem(error: BadDocument) -> str:
    """Return `<where>: <what>` of the first problem in one line, and how many more there are."""
    problem = error.problems[0]
    # otherwise it concerns the whole text
    inside = problem.line is not None and (problem.line, problem.column) != (1, 1)
    where = problem.path or (f"line {problem.line} column {problem.column}" if inside else "job")
    more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
    which = f"{error.source}: " if error.source.startswith("value ") else ""
    return f"{which}{where}: {problem.message}{more}"


# --- claimed jobs ------------------------------------------------------------------------------------------------


def job_text(claim: Claim) -> bytes:
    """Return the text of a claimed job for its worker. BadDocument: it is not a plan, so no worker can run it."""
    return _json(memo.as_job(claim.envelope.prompt, claim.job_id, _plan(claim)))


def queued_text(store: Store, view: JobView) -> bytes:
    """Return the text of a queued job."""
    prompt = read_prompt(store.folder(view))
    try:
        return _json(memo.as_job(prompt, view.job_id))
    except InputError:
        return _json({**prompt, "id": view.job_id})


def bad_prompt(claim: Claim, error: BadDocument) -> Failed:
    """Build the failure of a claimed job that is not a plan, as a worker would."""
    message = str(error)
    result = {"job_id": claim.job_id, "success": False, "step_results": [], "error": message}
    return Failed(
        error=ErrorInfo(category="bad_prompt", message=message),
        report=Report(result=result, markdown=f"# Failed\n\n**bad_prompt**: {message}\n"),
    )


def release(store: Store, claim: Claim, why: str) -> Lifecycle:
    """Hand back a job whose worker is gone. If it has lost several workers, count an attempt, so that it ends."""
    released = sum(1 for hop in claim.envelope.lifecycle.hops if hop.reason is Reason.RELEASED and hop.route is None)
    if released < _RELEASES:
        return commit_one(store, claim, Released(note=why))
    message = f"{why}; it was handed back {released} times before, so this one counts as an attempt"
    result = {"job_id": claim.job_id, "success": False, "step_results": [], "error": message}
    report = Report(result=result, markdown=f"# Failed\n\n**agent_died**: {message}\n")
    return commit_one(
        store, claim, Failed(error=ErrorInfo(category="agent_died", message=message), report=report, retryable=True)
    )


# --- posted results ----------------------------------------------------------------------------------------------


def read_posted(text: bytes, claim: Claim) -> tuple[PostedResult, Mapping[str, Any]]:
    """Parse the posted result of a claimed job; return it with its document, or raise BadDocument."""
    document = parse_json(text, source="result", limits=_RESULT_LIMITS)
    return memo.result(document, claim.job_id, _plan(claim)), document.data


def status_result(claim: Claim, *, success: bool, stdout: str, stderr: str) -> PostedResult:
    """Build a result from the three keys that AGW posts instead. The output belongs to the last step: AGW does not say
    which."""
    last = max(memo.step_ids(_plan(claim)), default=1)
    step = PostedStep(step_number=last, exit_code=0 if success else 1, success=success, stdout=stdout, stderr=stderr)
    return PostedResult(success=success, step_results=(step,))


def outcome(
    claim: Claim, posted: PostedResult, document: Mapping[str, Any], *, worker: str | None
) -> Succeeded | Failed:
    """Build the outcome of an attempt from its posted result, and write its output. ClaimLost: it lost the job."""
    try:
        return _outcome(claim, posted, document, worker)
    except FileNotFoundError as error:  # its folder moved on with the job
        raise ClaimLost(f"{claim.job_id} no longer belongs to {claim.agent.id}: it was recovered or killed") from error


def _outcome(claim: Claim, posted: PostedResult, document: Mapping[str, Any], worker: str | None) -> Succeeded | Failed:
    plan = _plan(claim)
    raw = document.get("step_results")
    extras = raw if isinstance(raw, list) else [{}] * len(posted.step_results)
    names = memo.step_ids(plan)
    inline = Inline()
    steps = tuple(
        _step(claim.folder, names.get(step.step_number, str(step.step_number)), step, extra, inline)
        for step, extra in zip(posted.step_results, extras, strict=True)
    )
    error = None if posted.success else _error(document, steps)
    came = PlanResult(
        success=posted.success,
        step_results=steps,
        steps_total=max(len(plan.steps), len(steps)),
        duration_s=_seconds(document.get("duration_s")),
        error=error,
    )
    result = came.to_json(claim.job_id, plan.plan_id)
    if worker is not None:
        result["worker"] = worker
    report = Report(result=result, markdown=came.summary_md(), files=came.files)
    return Succeeded(report=report) if error is None else Failed(error=error, report=report)


def _step(folder: str, name: str, step: PostedStep, extra: Mapping[str, Any], inline: Inline) -> StepResult:
    """Build the result of a step. Its output is written where farro's own workers write it, so that `farro logs` shows
    it. An empty stream has no file."""
    home = f"steps/{name}"
    streams = _SILENT
    if step.stdout or step.stderr:
        streams = dict(streams)
        for stream in STREAMS:
            text = getattr(step, stream)
            if text:
                for path in ("steps", home):
                    with contextlib.suppress(FileExistsError):
                        fs.mkdir(f"{folder}/{path}")
                path = f"{home}/{stream}"
                fs.write_atomic(f"{folder}/{path}", text.encode("utf-8", "replace"), sync=False)
                streams[stream] = inline.said(folder, path)
    why = extra.get("error")
    return StepResult(
        step_number=step.step_number,
        id=name,
        stdout=streams["stdout"].text,
        stderr=streams["stderr"].text,
        stdout_truncated=streams["stdout"].truncated,
        stderr_truncated=streams["stderr"].truncated,
        stdout_path=streams["stdout"].path,
        stderr_path=streams["stderr"].path,
        exit_code=step.exit_code,
        success=step.success,
        timed_out=extra.get("timed_out") is True,
        duration_s=_seconds(extra.get("duration_s")),
        user_s=_seconds(extra.get("user_s")),
        system_s=_seconds(extra.get("system_s")),
        max_rss_kb=0,
        attempts=1,
        error=why if isinstance(why, str) else None if step.success else f"exit code {step.exit_code}",
        last_words="" if step.success else results.last_words([f"{folder}/{home}/{s}" for s in ("stderr", "stdout")]),
    )


_SILENT = dict.fromkeys(STREAMS, NO_TEXT)


def _error(document: Mapping[str, Any], steps: Sequence[StepResult]) -> ErrorInfo:
    reason = document.get("error")
    if isinstance(reason, dict) and isinstance(reason.get("message"), str):
        return ErrorInfo(category=str(reason.get("category") or "step_failed")[:64], message=reason["message"][:4096])
    if isinstance(reason, str) and reason:
        return ErrorInfo(category="step_failed", message=reason[:4096])
    bad = next((step for step in steps if not step.success), None)
    if bad is None:
        return ErrorInfo(category="step_failed", message="the worker says that it failed, and not why")
    return ErrorInfo(category="step_failed", message=f"step {bad.id}: {bad.error or f'exit code {bad.exit_code}'}")


def _seconds(value: Any) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9
    return float(value) if good else 0.0


def _plan(claim: Claim) -> Plan:
    """Return the plan of a claimed job without its id; jobs that differ only in their ids share one plan."""
    prompt = claim.envelope.prompt
    if prompt.get("id") == claim.job_id:
        prompt = {name: value for name, value in prompt.items() if name != "id"}
    return _plans.of(prompt)


_plans = PlanCache()  # used when a job is given out, and again when its result comes


# --- queries -----------------------------------------------------------------------------------------------------


def result_text(store: Store, view: JobView) -> bytes | None:
    """Return result.json of the latest attempt, whichever worker ran it; None: there is none yet."""
    if not view.lifecycle.attempt:
        return None
    found = read_result(store.folder(view), view.lifecycle.attempt)
    return _json(found) if found else None


def plan_id(store: Store, view: JobView) -> str | None:
    found = read_prompt(store.folder(view)).get("plan_id")
    return found if isinstance(found, str) else None


def failure(store: Store, view: JobView) -> dict[str, Any]:
    """Describe a failed job for its update: why it failed, the failing step, its exit code and its last lines."""
    if view.status is not Status.FAILED:  # it went on meanwhile
        return {}
    answer = job_results.answer(store, view.job_id)
    error = job_results.failure(answer)
    steps = answer.result.get("step_results")
    failed = next((step for step in steps or () if isinstance(step, dict) and step.get("success") is False), {})
    return {
        "error": {"category": error.category, "message": error.message},
        "step": failed.get("step_number"),
        "exit_code": failed.get("exit_code"),
        "last_lines": error.last_words.splitlines()[-LAST_LINES:],
    }


def _json(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
