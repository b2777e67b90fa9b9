"""Return what a job produced to a program: the value of its plan's last step, or why there is none."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from farro.errors import Damaged, JobFailed
from farro.execution import results
from farro.execution.progress import read_prompt, read_result, step_results
from farro.execution.tools import FUNCTION
from farro.host import fs
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.plans.forms import is_agent_prompt
from farro.queue import find_job
from farro.queue.history import attempt_numbers
from farro.store.port import JobView, Store

_STDOUT_LIMIT = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class JobAnswer:
    """The latest attempt of a job as it is now."""

    view: JobView
    prompt: Mapping[str, Any]
    result: Mapping[str, Any]  # result.json; empty when there is none
    attempt_dir: str | None  # where it was when it was read


def answer(store: Store, job_id: str) -> JobAnswer:
    """Read the latest attempt of a job."""

    def read(view: JobView, folder: str) -> JobAnswer:
        numbers = attempt_numbers(folder)
        return JobAnswer(
            view=view,
            prompt=read_prompt(folder),
            result=read_result(folder, numbers[-1]) if numbers else {},
            attempt_dir=f"{folder}/attempts/{numbers[-1]:04d}" if numbers else None,
        )

    return find_job.read_folder(store, job_id, read)


def value(answer: JobAnswer) -> Any:
    """Return the value of a finished job; raise JobFailed if it did not succeed.

    That is an agent's answer; else the value of a function or the stdout as text of the last step that its plan names
    (not of an added one).
    """
    if answer.view.status is not Status.SUCCEEDED:
        raise failure(answer)
    if is_agent_prompt(answer.prompt):
        return _answered(answer.result)
    step = _last_step(answer.prompt)
    record = _records(answer.result).get(str(step.get("id") or step.get("step_number")), {})
    stdout = _stdout(answer, record)
    if step.get("tool") != FUNCTION:
        return stdout
    try:
        return json.loads(stdout) if stdout else None
    except (ValueError, RecursionError) as error:
        raise Damaged(f"the value of {answer.view.job_id} is not JSON: {error}") from error


def _answered(result: Mapping[str, Any]) -> Any:
    """Return the answer of the last role: an object of its form, or its text. None: a person declared the job done."""
    agent = result.get("agent")
    said = agent.get("answer") if isinstance(agent, dict) else None
    return said["text"] if isinstance(said, dict) and list(said) == ["text"] else said


def failure(answer: JobAnswer) -> JobFailed:
    """Return why there is no value: the exception that the function raised, else the job's error."""
    life = answer.view.lifecycle
    error = life.error or {}
    failed = next((record for record in _records(answer.result).values() if record.get("success") is False), {})
    message, kind = str(error.get("message") or f"it was {life.status}"), None
    raised = _raised(failed) if error.get("category") == "step_failed" else None
    if raised is not None:
        kind, message = raised
    return JobFailed(
        life.job_id,
        status=str(life.status),
        message=message,
        category=error.get("category"),
        error_type=kind,
        step=failed.get("id"),
        last_words=_last_words(answer, failed),
    )


def _last_words(answer: JobAnswer, failed: Mapping[str, Any]) -> str:
    paths = [failed.get("stderr_path"), failed.get("stdout_path")]
    with contextlib.suppress(OSError):  # it may be pruned meanwhile
        return results.last_words([f"{answer.attempt_dir}/{path}" for path in paths if isinstance(path, str)])
    return ""


def _raised(record: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return type and message of the exception that a function left on its step's stdout."""
    try:
        error = json.loads(record.get("stdout") or "null")["error"]
        return str(error["type"]), str(error["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _last_step(prompt: Mapping[str, Any]) -> Mapping[str, Any]:
    steps = prompt.get("steps") or prompt.get("tasks")
    last = steps[-1] if isinstance(steps, list) and steps else None
    return last if isinstance(last, dict) else {}


def _records(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(record.get("id")): record for record in step_results(result)}


def _stdout(answer: JobAnswer, record: Mapping[str, Any]) -> str:
    """Return the whole stdout: result.json truncates it when it is long."""
    path = record.get("stdout_path")
    if record.get("stdout_truncated") and isinstance(path, str) and answer.attempt_dir is not None:
        data = fs.read_bytes(f"{answer.attempt_dir}/{path}", _STDOUT_LIMIT)
        if len(data) > _STDOUT_LIMIT:
            raise Damaged(f"{path} of {answer.view.job_id} has more than {_STDOUT_LIMIT} bytes; read the file itself")
        return data.decode("utf-8", "replace")
    return str(record.get("stdout") or "")
