"""Claim, commit and return batches of small jobs: JOB.TAKE, JOB.DONE, JOB.RETURN.

They act on the same claims as the commands of Redis for single jobs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from farro.agq import keys
from farro.agq.handlers import queues, results
from farro.agq.handlers.table import integer, seconds, table, text
from farro.agq.replies import NO_ARRAY, CommandError, DeferredReply
from farro.agq.roster import HeldJob

if TYPE_CHECKING:
    from farro.agq.connection import Connection

MOST = 16  # jobs of one batch: 16 MiB, as one LPOP


def take(connection: Connection, args: list[bytes]) -> Any:
    """JOB.TAKE queue count [seconds]: return attempt and text of up to `count` jobs; with seconds, wait for one. A
    worker that takes more has received the answers to its earlier results."""
    count = integer(args[2])
    if not 1 <= count <= MOST:
        raise CommandError(f"value is out of range, must be between 1 and {MOST}")
    timeout_s = seconds(args[3]) if len(args) > 3 else None
    server = connection.server
    roles = server.known_roles()
    server.workers.of(connection).posted.clear()
    if roles is None:
        return _take_later(connection, args[1], count, timeout_s)
    return _take(connection, queues.workable_role(args[1], roles), count, timeout_s)


async def _take_later(connection: Connection, queue: bytes, count: int, timeout_s: float | None) -> Any:
    """Read the roles first, once in a while."""
    role = queues.workable_role(queue, await connection.server.roles())
    return await _take(connection, role, count, timeout_s).wait()


def _take(connection: Connection, role: str, count: int, timeout_s: float | None) -> DeferredReply:
    later = DeferredReply()

    def answer(found: list[HeldJob] | Exception) -> None:
        later.answer(found if isinstance(found, Exception) else _reply(found))

    if timeout_s is not None:
        queues.wait(connection, [role], timeout_s, limit=count, batch=True).then(answer)
        return later
    workers = connection.server.workers

    def claimed(found: list[HeldJob] | Exception) -> None:
        answer(found if isinstance(found, Exception) else queues.deliver(connection, found))

    workers.claim_then(workers.of(connection), role, count, claimed, batch=True)
    return later


def _reply(found: list[HeldJob]) -> Any:
    reply: list[Any] = []
    for held in found:
        reply += (held.claim.attempt, held.text)
    return reply or NO_ARRAY


def done(connection: Connection, args: list[bytes]) -> Any:
    """JOB.DONE id result [id result …]: return OK for each, or why its result is refused."""
    pairs = list(zip(args[1::2], args[2::2], strict=False))
    if len(args) % 2 == 0:
        raise CommandError("wrong number of arguments for 'job.done' command")
    if sum(len(value) for _, value in pairs) > results.SMALL_RESULT * len(pairs):
        return _done_slowly(connection, pairs)
    later = DeferredReply()
    answers: list[Any] = [None] * len(pairs)
    left = len(pairs)

    def answered(at: int, answer: Any) -> None:
        nonlocal left
        answers[at] = connection.error_reply(answer) if isinstance(answer, Exception) else answer
        left -= 1
        if left == 0:
            later.answer(answers)

    for at, (job_id, value) in enumerate(pairs):
        results.commit_result(connection, keys.decoded(job_id), value, partial(answered, at))
    return later


async def _done_slowly(connection: Connection, pairs: list[tuple[bytes, bytes]]) -> Any:
    """Commit large results, one after the other."""
    answers: list[Any] = []
    for job_id, value in pairs:
        try:
            answers.append(await results.commit_large_result(connection, keys.decoded(job_id), value))
        except Exception as error:  # noqa: BLE001 - concerns this result only
            answers.append(connection.error_reply(error))
    return answers


async def return_jobs(connection: Connection, args: list[bytes]) -> Any:
    """JOB.RETURN id …: put jobs that were not begun back to their positions in the queue; return how many. Jobs that
    this worker does not hold are skipped."""
    server = connection.server
    worker = server.workers.of(connection)
    known = (worker.held.get(text(job_id)) for job_id in dict.fromkeys(args[1:]))
    mine = [held for held in known if held is not None and not held.busy and held.success is None]
    if mine:
        await server.workers.return_unbegun(mine)
        for held in mine:
            server.adjust_length(held.role, 1)
    return len(mine)


TABLE = table(
    ("JOB.TAKE", take, 2, 3),
    ("JOB.DONE", done, 2, None),
    ("JOB.RETURN", return_jobs, 1, MOST),
)
