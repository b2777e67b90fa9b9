"""Running a finished job again: a new job from the same prompt, which starts after the steps that need not be repeated.

Which those are is plans.again; how the new job takes them over is execution.resume.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from farro.errors import BadDocument, InputError, Refused, UnknownJob
from farro.execution import records, resume
from farro.kernel.envelope import Lifecycle
from farro.kernel.states import Status
from farro.late import dataclass
from farro.operations import tree
from farro.operations.admission import Gate, admitted
from farro.plans import after, again
from farro.plans.loading import load_data
from farro.plans.model import Plan
from farro.ports.store import CARRIED_BYTES, Carried, JobView, Store, Submission
from farro.system import fs

_PROMPT_LIMIT = 16 << 20
_PAYLOAD_LIMIT = 256 << 20

_NOT_YET = {
    Status.QUEUED: "is queued, and will run by itself; `farro explain {id}` says what it waits for",
    Status.IN_PROGRESS: "is running; `farro wait {id}` waits for its end, `farro kill {id}` ends it",
    Status.STALE: "is stale; `farro requeue {id}` puts it back into its queue, and it goes on where it was",
    Status.FAILED: "has failed, but not for good; `farro requeue {id}` puts it back into its queue",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Retried:
    job_id: str
    retry_of: str
    kept: tuple[str, ...]  # steps that are not run again, in the order of their ends


def retry(
    store: Store,
    root: str,
    job_id: str,
    *,
    from_step: str | None = None,
    from_start: bool = False,
    durable: bool = True,
    gate: Gate | None = None,
) -> Retried:
    """Queue the new job. Refused: the job has not ended. InputError: there is no such step, or nothing to repeat."""
    view = store.find(job_id)
    if view is None:
        raise UnknownJob(f"no job {job_id} in {root}; `farro ls` lists what there is")
    life = view.lifecycle
    if not life.terminal and not view.place.startswith("jobs/quarantine"):
        raise Refused(f"{job_id} {_NOT_YET[life.status].format(id=job_id)}")
    folder = store.folder(view)
    prompt = _prompt(folder, job_id)
    by_link = tree.in_folders(store)
    past = resume.Past(added_by={}) if from_start else _past(folder, prompt, life, from_step)
    carried = None
    if past.lines:
        synced = durable or not by_link  # what another machine is sent is whole, whatever a boot id says
        lines: list[records.Line] = [records.head(past.lines), *past.lines, *([{"synced": True}] if synced else [])]
        files = {path: f"{past.folder}/{path}" for line in past.succeeded for path in records.paths(line)}
        if not by_link:
            _check_size(job_id, files)
        carried = Carried(records=records.text(lines), files=files)
    submission = Submission(
        role=life.first_role,
        prompt=after.alone(prompt) if life.attempt else prompt,
        retry_of=job_id,
        payload=_payload(folder),
        narrative=_narrative(folder),
        carried=carried,
    )
    try:
        (made,) = admitted(store, [submission], gate)
    except FileNotFoundError as error:
        raise _gone(view) from error
    return Retried(job_id=made, retry_of=job_id, kept=tuple(line["id"] for line in past.succeeded))


def _check_size(job_id: str, files: Mapping[str, str]) -> None:
    """Where a job is no folder, what it brings along is sent."""
    size = sum(fs.lstat(path).st_size for path in files.values())
    if size > CARRIED_BYTES:
        raise Refused(
            f"the steps of {job_id} that need not be repeated left {size >> 20} MiB, and at most "
            f"{CARRIED_BYTES >> 20} MiB are sent along; `farro retry {job_id} --from-start` runs all of them again. "
            "Nothing was queued"
        )


def _past(folder: str, prompt: Mapping[str, Any], life: Lifecycle, from_step: str | None) -> resume.Past:
    """What stands of the job's attempts. Nothing of a job that was handed on: the new one starts in its first role."""
    try:
        plan: Plan = load_data(prompt, "prompt.json")
    except BadDocument:
        return resume.Past(added_by={})  # it fails again, and says why
    attempt = f"{folder}/attempts/{life.attempt + 1:04d}"
    earlier = resume.earlier(attempt, life.attempt + 1, 0, retried=life.retry_of is not None)
    found = resume.past(plan, () if life.hop_start else earlier)
    succeeded = [line["id"] for line in found.succeeded]
    if from_step is None and life.status is Status.SUCCEEDED and len(succeeded) == len(found.steps):
        return resume.Past(added_by={})  # nothing is left to go on with: who repeats it means all of it
    kept = again.kept(found.steps, succeeded, parallel=plan.parallel, from_step=from_step)
    return resume.only(plan, found, kept)


def _prompt(folder: str, job_id: str) -> Mapping[str, Any]:
    try:
        data = json.loads(fs.read_bytes(f"{folder}/prompt.json", _PROMPT_LIMIT))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{job_id} cannot be repeated: its prompt.json cannot be read ({error})") from error
    if not isinstance(data, dict):
        raise InputError(f"{job_id} cannot be repeated: its prompt.json is not an object")
    return data


def _payload(folder: str) -> dict[str, bytes]:
    try:
        names = fs.listdir(f"{folder}/payload")
    except FileNotFoundError:
        return {}
    return {name: fs.read_bytes(f"{folder}/payload/{name}", _PAYLOAD_LIMIT) for name in names}


def _narrative(folder: str) -> str | None:
    with contextlib.suppress(FileNotFoundError):
        return fs.read_bytes(f"{folder}/prompt.md", _PROMPT_LIMIT).decode("utf-8", "replace")
    return None


def _gone(view: JobView) -> Refused:
    return Refused(f"{view.job_id} was moved or pruned while it was read; nothing was queued. Try again")
