"""After a power cut: what the journals of the last boot say is made true in the tree again, before anyone looks at it.

Writing journals lives in journal; what becomes of jobs in dead agents' hands afterwards lives in recover.

A record says what the tree must at least say. A folder that says more (a later decision, which was synced where it
lies) keeps it: the number of hops tells. Every step can be repeated: a crash in the middle leaves the journals, and
the next process begins again; nobody works in a root before that is through.
[test_power_cut_keeps_what_was_acknowledged, test_a_power_cut_during_the_replay,
test_two_processes_after_a_power_cut_replay_once]

A record that cannot be understood, or a folder that cannot be written, keeps the root closed, with the reason: to go on
without it would be to forget what was acknowledged. [test_a_journal_of_another_version_is_not_forgotten]
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
from farro.plans.priority import head_start_ns
from farro.store.files import chosen_ids, journal_records, views
from farro.store.files import folder as folders
from farro.store.files.commit import REPORTED
from farro.store.files.context import Ground
from farro.store.files.errors import explained
from farro.store.files.journal_cleanup import forget
from farro.store.files.journal_records import FOLDER, Record
from farro.store.files.move import Moved, quarantine, try_move

_TICK_NS = 10**9  # what a time may be off by: the time of entry is written to the millisecond, files have ticks


@dataclass
class Story:
    """What the journals say of one job."""

    enqueued: Record | None = None
    commits: list[tuple[Record, Lifecycle]] = field(default_factory=list)

    def last(self) -> tuple[Record, Lifecycle]:
        if not self.commits:
            assert self.enqueued is not None
            return self.enqueued, Lifecycle.from_json(self.enqueued.life)
        return max(self.commits, key=lambda one: (len(one[1].hops), one[1].hops[-1].at, one[0].order))


@explained
def replay(ground: Ground) -> int:
    """Make every record of an earlier boot true; answers how many jobs were looked at."""
    if not _of_earlier_boots(ground):
        return 0
    with leases.exclusively(ground.path(FOLDER, ".lock")), contextlib.ExitStack() as taken:
        dead: list[tuple[str, leases.Lease]] = []
        for name in _of_earlier_boots(ground):
            path = ground.path(FOLDER, name)
            lease = leases.take(path)
            if lease is None:  # no earlier boot: another one beside ours, of a container perhaps
                ground.log("error", "a journal of another boot, but its process lives: left alone", {"journal": name})
                continue
            taken.callback(lease.drop)
            dead.append((path, lease))
        if not dead:
            return 0
        stories = _stories([path for path, _ in dead])
        for job_id, story in stories.items():
            try:
                _restore(ground, job_id, story)
                _link(ground, job_id, story)
            except UnknownSchema as error:
                ground.tell_foreign(job_id, str(error))  # a newer farro's, and that much further on: left alone
        _drop_dead_links(ground)
        forget(ground.root, ground.boot_id, dead)
    ground.log("warning", "journals replayed after a restart of the machine", {"jobs": len(stories)})
    return len(stories)


def _of_earlier_boots(ground: Ground) -> list[str]:
    found = journal_records.names(ground.root)
    if not found or not ground.boot_id:  # where nobody can tell one boot from the next, nothing was journalled
        return []
    return [name for name in found if not name.startswith(f"{ground.boot_id}.")]


def _stories(paths: list[str]) -> dict[str, Story]:
    stories: dict[str, Story] = {}
    void: set[str] = set()
    for path in paths:
        for record in journal_records.read(path):
            story = stories.setdefault(record.job_id, Story())
            if record.kind == "enqueue":
                story.enqueued = record
            elif record.kind == "commit":
                story.commits.append((record, Lifecycle.from_json(record.life)))
            else:
                void.add(record.job_id)
    return {job_id: story for job_id, story in stories.items() if job_id not in void}


def _restore(ground: Ground, job_id: str, story: Story) -> None:
    record, life = story.last()
    place = places.incoming(record.role) if life.decision is None else places.parse(life.decision.to).path
    spots = _found(ground, job_id)
    if not spots:
        _rebuild(ground, job_id, story, life, place)
        return
    found, *twins = spots
    for twin in twins:
        quarantine(ground, twin.path, job_id, "after a power cut this id lay in two places; the other one says more")
    if found.place == places.QUARANTINE:
        return  # somebody has put it aside, for a reason that no record knows
    now = _lifecycle(found.path)
    behind = now is None or len(now.hops) < len(life.hops)
    final = life if now is None or behind else now
    _mend(found.path, story, final)
    if behind:
        fs.write_atomic(f"{found.path}/job.json", life.to_json(), sync=False)
    path = found.path
    if not found.place.startswith(("jobs/.held/", "jobs/outbox")) and "/in-progress/" not in found.place:
        folders.drop_lock(found.path)  # nobody is at work: its removal was lost
        # Where it lies may be older than what it says: a move that was lost while the file was kept.
        if found.place != place and (behind or final.hops[-1:] == life.hops[-1:]):
            path = _put(ground, found.path, place, job_id)
    _keep_order(path, story, final)


def _link(ground: Ground, job_id: str, story: Story) -> None:
    """The registry's word of a chosen id, which was not synced: its record has it."""
    record = story.enqueued
    if record is None or record.digest is None:
        return
    path = f"{ground.registry}/{job_id}"
    with contextlib.suppress(Damaged):
        if chosen_ids.registered(ground, job_id)[0]:
            return
    with contextlib.suppress(FileNotFoundError):
        fs.unlink(path)
    fs.symlink(f"{record.digest}.{record.staged}", path)


def _drop_dead_links(ground: Ground) -> None:
    """Ids that were registered and got no further: nobody was told that they are queued. Without this whoever submits
    one of them again is told that it is, and there is no job. What is whole in staging stays: clean-up publishes it.
    [test_power_cut_keeps_what_was_acknowledged]"""
    names = {name for name in fs.listdir(ground.registry) if ids.is_job_id(name)}
    for place, *_ in views.spots(ground) if names else ():
        names.difference_update(fs.subdirectories(ground.path(place)))
    for job_id in sorted(names):
        staged = ""
        with contextlib.suppress(Damaged):
            digest, staged = chosen_ids.registered(ground, job_id)
            if staged and chosen_ids.digest_of(f"{ground.staging}/{staged}") == digest:
                continue
        fs.unlink(f"{ground.registry}/{job_id}")
        if staged:
            trees.remove_tree(f"{ground.staging}/{staged}")
        ground.log("warning", "an id whose job did not survive the power cut is free again", {"job_id": job_id})


def _found(ground: Ground, job_id: str) -> list[views.Found]:
    """Where it lies, the folder that says most first. In quarantine only when it lies nowhere else."""
    found: list[tuple[int, views.Found]] = []
    for place, role, status, busy in views.spots(ground):
        path = ground.path(place, job_id)
        if fs.exists(path) and not (place == places.QUARANTINE and found):
            life = _lifecycle(path)
            spot = views.Found(job_id=job_id, path=path, place=place, role=role, status=status, busy=busy)
            found.append((-1 if life is None else len(life.hops), spot))
    return [spot for _, spot in sorted(found, key=lambda one: -one[0])]


def _lifecycle(path: str) -> Lifecycle | None:
    """job.json, None when it is lost or torn. UnknownSchema goes through: it is neither."""
    try:
        return folders.read_lifecycle(path)
    except UnknownSchema:
        raise
    except (FarroError, FileNotFoundError, NotADirectoryError):
        return None


def _rebuild(ground: Ground, job_id: str, story: Story, life: Lifecycle, place: str) -> None:
    """The folder is nowhere, or was never published. A commit whose enqueue is no longer in a journal had its folder
    synced after that enqueue: it is somewhere."""
    if story.enqueued is None:
        ground.log("critical", "a journalled commit of a job that is nowhere", {"job_id": job_id})
        return
    staged = f"{ground.staging}/{story.enqueued.staged}"
    if not fs.exists(staged):
        fs.mkdir(staged)
    folders.drop_lock(staged)
    _mend(staged, story, life)
    fs.write_atomic(f"{staged}/job.json", life.to_json(), sync=False)
    _keep_order(_put(ground, staged, place, job_id), story, life)


def _put(ground: Ground, source: str, place: str, job_id: str) -> str:
    """Move it to where it belongs; it is nowhere else."""
    path = ground.path(place, job_id)
    if try_move(source, path) is not Moved.DONE:
        raise StorageTrouble(
            f"{ground.path(place)} is missing, where {job_id} was when the power went; `farro init` makes it again"
        )
    return path


def _mend(path: str, story: Story, life: Lifecycle) -> None:
    """Every file that the records of this life name, as they name it; and the mirrors of all its reports in turn, those
    which no record names among them: the last one is to be seen."""
    if story.enqueued is not None:
        _files(path, story.enqueued)
    mended = False
    for record, decided in story.commits:
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


def _keep_order(path: str, story: Story, life: Lifecycle) -> None:
    """Its turn in the queue: the time of entry, less its head start (draft.keep_order)."""
    if life.status is not Status.QUEUED:
        return
    try:
        text = story.enqueued.files["prompt.json"] if story.enqueued else fs.read_bytes(f"{path}/prompt.json")
        prompt = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return  # whoever claims it says what is wrong with it
    entered_ns = int(parse_timestamp(life.enqueued_at).timestamp() * 1e9) - head_start_ns(prompt)
    if abs(fs.lstat(f"{path}/job.json").st_mtime_ns - entered_ns) > _TICK_NS:
        fs.set_mtime_ns(f"{path}/job.json", entered_ns)
