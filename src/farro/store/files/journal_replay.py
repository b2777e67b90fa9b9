"""Restore the tree after a power cut from the journals of earlier boots, before the store is used.

A record is the minimum that the tree must contain. A folder with more hops (a later decision, which was synced
directly) keeps them. Every step can be repeated: a crash in the middle leaves the journals, and the next process starts
again. No process works in a root before the replay is complete.
[test_power_cut_keeps_what_was_acknowledged, test_a_power_cut_during_the_replay,
test_two_processes_after_a_power_cut_replay_once]

A record that cannot be read, or a folder that cannot be written, keeps the root closed and says why: continuing would
lose acknowledged work. [test_a_journal_of_another_version_keeps_the_root_closed]
"""

from __future__ import annotations

import contextlib
import json

from farro.errors import Damaged, FarroError, StorageTrouble, UnknownSchema
from farro.host import fs, leases, trees
from farro.jobs import ids, places
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.jobs.times import parse_timestamp
from farro.lazy_dataclass import dataclass, field
from farro.plans.metadata import head_start_ns
from farro.store.files import chosen_ids, journal_file, views
from farro.store.files import folder as folders
from farro.store.files.commit import REPORTED
from farro.store.files.context import FilesContext
from farro.store.files.errors import explained
from farro.store.files.journal_file import FOLDER, Record, forget
from farro.store.files.move import MoveResult, quarantine, try_move

_TICK_NS = 10**9  # tolerance: times of entry are written to the millisecond, file times in clock ticks


@dataclass
class JobRecords:
    """The records of one job in all journals."""

    enqueued: Record | None = None
    commits: list[tuple[Record, Lifecycle]] = field(default_factory=list)

    def last(self) -> tuple[Record, Lifecycle]:
        if not self.commits:
            assert self.enqueued is not None
            return self.enqueued, Lifecycle.from_json(self.enqueued.life)
        return max(self.commits, key=lambda one: (len(one[1].hops), one[1].hops[-1].at, one[0].order))


@explained
def replay(context: FilesContext) -> int:
    """Apply every record of earlier boots. Returns the number of jobs examined."""
    if not _of_earlier_boots(context):
        return 0
    with leases.exclusively(context.path(FOLDER, ".lock")), contextlib.ExitStack() as taken:
        dead: list[tuple[str, leases.Lease]] = []
        for name in _of_earlier_boots(context):
            path = context.path(FOLDER, name)
            lease = leases.take(path)
            if lease is None:  # not an earlier boot but one beside ours, perhaps of a container
                context.log("error", "journal of another boot whose process is alive: left alone", {"journal": name})
                continue
            taken.callback(lease.drop)
            dead.append((path, lease))
        if not dead:
            return 0
        by_job = _records_by_job([path for path, _ in dead])
        for job_id, records in by_job.items():
            try:
                _restore(context, job_id, records)
                _link(context, job_id, records)
            except UnknownSchema as error:
                context.log_foreign(job_id, str(error))  # written by a newer farro after the record: left alone
        _drop_dead_links(context)
        forget(context.root, context.boot_id, dead)
    context.log("warning", "journals replayed after a restart of the machine", {"jobs": len(by_job)})
    return len(by_job)


def _of_earlier_boots(context: FilesContext) -> list[str]:
    found = journal_file.names(context.root)
    if not found or not context.boot_id:  # without boot ids nothing was journalled
        return []
    return [name for name in found if not name.startswith(f"{context.boot_id}.")]


def _records_by_job(paths: list[str]) -> dict[str, JobRecords]:
    by_job: dict[str, JobRecords] = {}
    void: set[str] = set()
    for path in paths:
        for record in journal_file.read(path):
            records = by_job.setdefault(record.job_id, JobRecords())
            if record.kind == "enqueue":
                records.enqueued = record
            elif record.kind == "commit":
                records.commits.append((record, Lifecycle.from_json(record.life)))
            else:
                void.add(record.job_id)
    return {job_id: records for job_id, records in by_job.items() if job_id not in void}


def _restore(context: FilesContext, job_id: str, records: JobRecords) -> None:
    record, life = records.last()
    place = places.incoming(record.role) if life.decision is None else places.parse(life.decision.to).path
    copies = _found(context, job_id)
    if not copies:
        _rebuild(context, job_id, records, life, place)
        return
    found, *twins = copies
    for twin in twins:
        quarantine(context, twin.path, job_id, "after a power cut this id lay in two places; the other one says more")
    if found.place == places.QUARANTINE:
        return  # quarantined for a reason that no record knows
    now = _lifecycle(found.path)
    behind = now is None or len(now.hops) < len(life.hops)
    final = life if now is None or behind else now
    _mend(found.path, records, final)
    if behind:
        fs.write_atomic(f"{found.path}/job.json", life.to_json(), sync=False)
    path = found.path
    if not found.place.startswith(("jobs/.held/", "jobs/outbox")) and "/in-progress/" not in found.place:
        folders.drop_lock(found.path)  # no agent works on it: the removal of the lock was lost
        # The place may be older than job.json: the power cut lost a move and kept the file.
        if found.place != place and (behind or final.hops[-1:] == life.hops[-1:]):
            path = _put(context, found.path, place, job_id)
    _keep_order(path, records, final)


def _link(context: FilesContext, job_id: str, records: JobRecords) -> None:
    """Restore the registry link of a chosen id, which was not synced, from its record."""
    record = records.enqueued
    if record is None or record.digest is None:
        return
    path = f"{context.registry}/{job_id}"
    with contextlib.suppress(Damaged):
        if chosen_ids.registered(context, job_id)[0]:
            return
    with contextlib.suppress(FileNotFoundError):
        fs.unlink(path)
    fs.symlink(f"{record.digest}.{record.staged}", path)


def _drop_dead_links(context: FilesContext) -> None:
    """Remove ids that were registered but never acknowledged as queued. Without this a repeated submission of such an
    id would be acknowledged though there is no job. A complete folder in staging stays: clean-up publishes it.
    [test_power_cut_keeps_what_was_acknowledged]"""
    names = {name for name in fs.listdir(context.registry) if ids.is_job_id(name)}
    for place, *_ in views.job_places(context) if names else ():
        names.difference_update(fs.subdirectories(context.path(place)))
    for job_id in sorted(names):
        if context.archive is not None and context.archive.find(job_id) is not None:
            continue  # recovery of the archive removes the link
        staged = ""
        with contextlib.suppress(Damaged):
            digest, staged = chosen_ids.registered(context, job_id)
            if staged and chosen_ids.digest_of(f"{context.staging}/{staged}") == digest:
                continue
        fs.unlink(f"{context.registry}/{job_id}")
        if staged:
            trees.remove_tree(f"{context.staging}/{staged}")
        context.log("warning", "an id whose job did not survive the power cut is free again", {"job_id": job_id})


def _found(context: FilesContext, job_id: str) -> list[views.LocatedJob]:
    """Return the places that contain the job, the folder with the most hops first. Quarantine only if there is no
    other."""
    found: list[tuple[int, views.LocatedJob]] = []
    for place, role, status, busy in views.job_places(context):
        path = context.path(place, job_id)
        if fs.exists(path) and not (place == places.QUARANTINE and found):
            life = _lifecycle(path)
            spot = views.LocatedJob(job_id=job_id, path=path, place=place, role=role, status=status, busy=busy)
            found.append((-1 if life is None else len(life.hops), spot))
    return [spot for _, spot in sorted(found, key=lambda one: -one[0])]


def _lifecycle(path: str) -> Lifecycle | None:
    """Read job.json; None when it is lost or torn. Raises UnknownSchema."""
    try:
        return folders.read_lifecycle(path)
    except UnknownSchema:
        raise
    except (FarroError, FileNotFoundError, NotADirectoryError):
        return None


def _rebuild(context: FilesContext, job_id: str, records: JobRecords, life: Lifecycle, place: str) -> None:
    """Make the folder of a job that is in no place. A commit whose enqueue is no longer in a journal had its folder
    synced after that enqueue, so that folder must exist."""
    if records.enqueued is None:
        context.log("critical", "a journalled commit of a job that is nowhere", {"job_id": job_id})
        return
    staged = f"{context.staging}/{records.enqueued.staged}"
    if not fs.exists(staged):
        fs.mkdir(staged)
    folders.drop_lock(staged)
    _mend(staged, records, life)
    fs.write_atomic(f"{staged}/job.json", life.to_json(), sync=False)
    _keep_order(_put(context, staged, place, job_id), records, life)


def _put(context: FilesContext, source: str, place: str, job_id: str) -> str:
    """Move the folder to where it belongs; it exists in no other place."""
    path = context.path(place, job_id)
    if try_move(source, path) is not MoveResult.DONE:
        raise StorageTrouble(
            f"{context.path(place)} is missing, where {job_id} was when the power went; `farro init` makes it again"
        )
    return path


def _mend(path: str, records: JobRecords, life: Lifecycle) -> None:
    """Write every file of the records that belong to this lifecycle. Then refresh the mirrors of all its reports in
    turn, including those without a record, so that the last one is visible."""
    if records.enqueued is not None:
        _files(path, records.enqueued)
    mended = False
    for record, decided in records.commits:
        last = decided.hops[-1]
        same = last in life.hops and (last != life.hops[-1] or decided.result_sha256 == life.result_sha256)
        if same:
            for folder in (f"{path}/attempts", folders.attempt_folder(path, record.attempt)):
                if not fs.exists(folder):
                    fs.mkdir(folder)
            _files(folders.attempt_folder(path, record.attempt), record)
            mended = True
    for hop in life.hops if mended else ():
        if hop.reason in REPORTED:
            folders.refresh_mirrors(path, hop.attempt)


def _files(home: str, record: Record) -> None:
    for name, data in record.files.items():
        *above, _ = name.split("/")
        folder = home
        for part in above:
            folder = f"{folder}/{part}"
            if not fs.exists(folder):
                fs.mkdir(folder)
        with contextlib.suppress(FileNotFoundError):
            if fs.read_bytes(f"{home}/{name}", len(data)) == data:
                continue
        fs.write_atomic(f"{home}/{name}", data, sync=False)


def _keep_order(path: str, records: JobRecords, life: Lifecycle) -> None:
    """Restore the place in the queue: the time of entry minus the head start (see draft.keep_order)."""
    if life.status is not Status.QUEUED:
        return
    try:
        text = records.enqueued.files["prompt.json"] if records.enqueued else fs.read_bytes(f"{path}/prompt.json")
        prompt = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return  # the agent that claims the job reports what is wrong with it
    entered_ns = int(parse_timestamp(life.enqueued_at).timestamp() * 1e9) - head_start_ns(prompt)
    if abs(fs.lstat(f"{path}/job.json").st_mtime_ns - entered_ns) > _TICK_NS:
        fs.set_mtime_ns(f"{path}/job.json", entered_ns)
