"""Children of a commit: sealed with the decision, delivered once the commit is in jobs/outbox.

Only attempts that decided by their own commit deliver (RELIABILITY 30): the list of attempt N is read only when the
decision is that attempt's, and a child's id is derived from (job, attempt, index), so delivering twice enqueues once.
[test_children_are_delivered_once, test_children_of_a_fenced_attempt_are_not_delivered]
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

from farro.errors import Damaged, InputError, SyncFailed, TryAgain, UnknownSchema
from farro.host import fs
from farro.jobs import ids, places, transitions
from farro.jobs.envelope import Decision
from farro.jobs.outcomes import Child
from farro.jobs.states import Reason
from farro.store.files import folder as folders
from farro.store.files import submit
from farro.store.files.context import Ground, Held
from farro.store.files.move import Moved, deliver, quarantine, try_move
from farro.store.port import Submission

_LIMIT = 16 << 20
_OWING = frozenset({Reason.COMMITTED, Reason.ROUTED})  # what a worker's own success may be decided as


def seal(ground: Ground, path: str, attempt: int, children: Sequence[Child]) -> list[str]:
    """Write the attempt's children as one file, whole or not at all. Answers what to sync before the decision."""
    for child in children:
        ground.check_role(child.role)  # refused now, while the attempt can still fail for it
    with contextlib.suppress(FileExistsError):
        fs.mkdir(f"{path}/outbox")
    name = _list_of(path, attempt)
    body = json.dumps(
        [{"role": child.role, "prompt": dict(child.prompt)} for child in children], ensure_ascii=False
    ).encode()
    fs.write_atomic(name, body, sync=False, pause=ground.clock.sleep)
    return [name, f"{path}/outbox"]


def has_children(path: str, decision: Decision) -> bool:
    """Whether the decision owes children. A watchdog's or operator's decision about an attempt that died after sealing
    its list owes none: without the look at the reason they came too, and once more with the next attempt."""
    return decision.reason in _OWING and fs.exists(_list_of(path, decision.attempt))


def unseal(path: str, attempt: int) -> list[str]:
    """Forget the list of a commit that failed half-way: this attempt now commits something without children. Answers
    what to sync before the decision: a list that comes back with the power would be delivered."""
    fs.unlink(_list_of(path, attempt))
    return [f"{path}/outbox"]


def is_sealed(path: str, attempt: int) -> bool:
    return fs.exists(_list_of(path, attempt))


def _list_of(path: str, attempt: int) -> str:
    return f"{path}/outbox/{attempt:04d}.json"


def dispatch(ground: Ground, held: Held, job_id: str) -> bool:
    """Take a job from jobs/outbox, deliver its children, send it where it was decided to go. False: another has it, or
    it stays in the outbox for the next pass: the commit itself is accepted either way."""
    path = f"{held.folder}/{job_id}"
    if job_id in ground.foreign or try_move(ground.path(places.OUTBOX, job_id), path) is not Moved.DONE:
        return False
    try:
        return finish(ground, path, job_id)
    except TryAgain as error:
        ground.log("error", "children not delivered yet, will be tried again", {"job_id": job_id, "why": str(error)})
        return not deliver(ground, path, places.OUTBOX, job_id)
    except UnknownSchema as error:  # moved nowhere (DESIGN §3.3): back to where it lay, and left alone then
        ground.tell_foreign(job_id, str(error))
        deliver(ground, path, places.OUTBOX, job_id)
        return False


def finish(ground: Ground, path: str, job_id: str) -> bool:
    """As `dispatch`, for a job that we hold already. True: delivered. TryAgain: it is still in our hands."""
    try:
        lifecycle = folders.read_lifecycle(path)
        if lifecycle.decision is None or not transitions.is_decided(lifecycle, folders.highest_attempt(path)):
            raise Damaged(f"{job_id} lies in the outbox, but nothing is decided about its last attempt")
        children = _submissions(path, job_id, lifecycle.decision.attempt)
        submit.enqueue_many(ground, children, by=lifecycle.agent, gone_is_done=True)
    except (SyncFailed, UnknownSchema):
        raise  # the disk's trouble, not the job's: an accepted commit must not end in quarantine for it
    except (Damaged, InputError, FileNotFoundError) as error:
        quarantine(ground, path, job_id, str(error))
        return False
    delivered = deliver(ground, path, places.parse(lifecycle.decision.to).path, job_id)
    if delivered:
        codes = {"role": lifecycle.role, "status": lifecycle.status.value, "attempt": lifecycle.attempt}
        ground.audit("dispatched", actor=lifecycle.agent, job_id=job_id, **codes, children=len(children))
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
