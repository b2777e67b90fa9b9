"""Child jobs of a commit: listed in a file with the decision, enqueued once the parent is in jobs/outbox.

Only attempts that ended by their own commit deliver children (RELIABILITY 30): the list of attempt N is read only if
attempt N itself made the decision. A child's id is derived from (job, attempt, index), so delivering twice enqueues
once.
[test_children_are_delivered_once, test_children_of_a_fenced_attempt_are_not_delivered]
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

from farro.errors import Damaged, InputError, SyncFailed, TryAgain, UnknownSchema
from farro.host import fs
from farro.jobs import ids, moves, places
from farro.jobs.envelope import Decision
from farro.jobs.outcomes import Child
from farro.jobs.states import Reason
from farro.store.files import folder as folders
from farro.store.files import submit
from farro.store.files.context import FilesContext, LocalAgent
from farro.store.files.move import MoveResult, deliver, quarantine, try_move
from farro.store.port import Submission

_LIMIT = 16 << 20
_DELIVERING = frozenset({Reason.COMMITTED, Reason.ROUTED})  # the decisions of a worker's own success


def seal(context: FilesContext, path: str, attempt: int, children: Sequence[Child]) -> list[str]:
    """Write the attempt's children into one file, atomically. Returns the paths to sync before the decision."""
    for child in children:
        context.check_role(child.role)  # refused now, while the attempt can still fail because of it
    with contextlib.suppress(FileExistsError):
        fs.mkdir(f"{path}/outbox")
    name = _list_of(path, attempt)
    body = json.dumps(
        [{"role": child.role, "prompt": dict(child.prompt)} for child in children], ensure_ascii=False
    ).encode()
    fs.write_atomic(name, body, sync=False, pause=context.clock.sleep)
    return [name, f"{path}/outbox"]


def has_children(path: str, decision: Decision) -> bool:
    """Return whether the decision delivers children. A watchdog's or operator's decision about an attempt that died
    after sealing its list does not: without the check of the reason they were delivered, and again by the next
    attempt."""
    return decision.reason in _DELIVERING and fs.exists(_list_of(path, decision.attempt))


def unseal(path: str, attempt: int) -> list[str]:
    """Remove the list of a commit that failed half-way, because this attempt now commits a result without children.
    Returns the paths to sync before the decision: a list that reappears after a power cut would be delivered."""
    fs.unlink(_list_of(path, attempt))
    return [f"{path}/outbox"]


def is_sealed(path: str, attempt: int) -> bool:
    return fs.exists(_list_of(path, attempt))


def _list_of(path: str, attempt: int) -> str:
    return f"{path}/outbox/{attempt:04d}.json"


def dispatch(context: FilesContext, owner: LocalAgent, job_id: str) -> bool:
    """Take a job from jobs/outbox, deliver its children, and move the job where it was decided to go. False: another
    agent has it, or it stays in the outbox for the next pass. The commit itself is accepted either way."""
    path = f"{owner.folder}/{job_id}"
    if job_id in context.foreign or try_move(context.path(places.OUTBOX, job_id), path) is not MoveResult.DONE:
        return False
    try:
        return finish(context, path, job_id)
    except TryAgain as error:
        context.log("error", "children not delivered yet, will be tried again", {"job_id": job_id, "why": str(error)})
        return not deliver(context, path, places.OUTBOX, job_id)
    except UnknownSchema as error:  # put back where it was, and then left alone (DESIGN §3.3)
        context.log_foreign(job_id, str(error))
        deliver(context, path, places.OUTBOX, job_id)
        return False


def finish(context: FilesContext, path: str, job_id: str) -> bool:
    """Deliver the children of a job that is already in our folder, then move the job on. True: delivered. TryAgain: the
    job is still in our folder."""
    try:
        lifecycle = folders.read_lifecycle(path)
        if lifecycle.decision is None or not moves.is_decided(lifecycle, folders.highest_attempt(path)):
            raise Damaged(f"{job_id} lies in the outbox, but nothing is decided about its last attempt")
        children = _submissions(path, job_id, lifecycle.decision.attempt)
        submit.enqueue_many(context, children, by=lifecycle.agent, gone_is_done=True)
    except (SyncFailed, UnknownSchema):
        raise  # trouble of the disk, not of the job: an accepted commit must not end in quarantine
    except (Damaged, InputError, FileNotFoundError) as error:
        quarantine(context, path, job_id, str(error))
        return False
    delivered = deliver(context, path, places.parse(lifecycle.decision.to).path, job_id)
    if delivered:
        codes = {"role": lifecycle.role, "status": lifecycle.status.value, "attempt": lifecycle.attempt}
        context.audit("dispatched", actor=lifecycle.agent, job_id=job_id, **codes, children=len(children))
    return delivered


def _submissions(path: str, job_id: str, attempt: int) -> list[Submission]:
    try:
        items = json.loads(fs.read_bytes(_list_of(path, attempt), _LIMIT))
        return [
            Submission(role=item["role"], prompt=item["prompt"], job_id=ids.child_id(job_id, attempt, index))
            for index, item in enumerate(items)
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{job_id}: outbox/{attempt:04d}.json cannot be read: {error}") from error
