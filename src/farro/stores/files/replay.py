"""After a power cut: what the journals of the last boot say is made true in the tree again, before anyone looks at it.

Writing journals lives in journal; what becomes of jobs in dead agents' hands afterwards lives in recover.

A record says what the tree must at least say. A folder that says more (a later decision, which was synced where it
lies) keeps it: the number of hops tells. Every step can be repeated: a crash in the middle leaves the journals, and
the next process begins again. [test_power_cut_keeps_what_was_acknowledged, test_a_power_cut_during_the_replay]
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from farro.errors import FarroError
from farro.kernel import places
from farro.kernel.envelope import Lifecycle
from farro.kernel.moments import parse_timestamp
from farro.stores.files import folder as folders
from farro.stores.files import journal, views
from farro.stores.files.ground import Ground
from farro.stores.files.journal import Record
from farro.stores.files.moving import try_move
from farro.stores.files.settle import REPORTED
from farro.system import fs, leases


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


def replay(ground: Ground) -> int:
    """Make every record of an earlier boot true; answers how many jobs were looked at."""
    if not _of_earlier_boots(ground):
        return 0
    with leases.exclusively(ground.path(journal.FOLDER, ".lock")):
        names = _of_earlier_boots(ground)
        stories = _stories(ground, names)
        for job_id, story in stories.items():
            _restore(ground, job_id, story)
        if names:
            fs.sync_filesystem(ground.root)
        for name in names:
            fs.unlink(ground.path(journal.FOLDER, name))
    ground.log("warning", "journals replayed after a restart of the machine", {"jobs": len(stories)})
    return len(stories)


def _of_earlier_boots(ground: Ground) -> list[str]:
    found = journal.names(ground.root)
    return [name for name in found if not name.startswith(f"{ground.boot_id}.")] if found else []


def _stories(ground: Ground, names: list[str]) -> dict[str, Story]:
    stories: dict[str, Story] = {}
    for name in names:
        for record in journal.read(ground.path(journal.FOLDER, name)):
            story = stories.setdefault(record.job_id, Story())
            if record.kind == "enqueue":
                story.enqueued = record
            else:
                story.commits.append((record, Lifecycle.from_json(record.life)))
    return stories


def _restore(ground: Ground, job_id: str, story: Story) -> None:
    record, life = story.last()
    place = places.incoming(record.role) if life.decision is None else places.parse(life.decision.to).path
    found = _found(ground, job_id)
    if found is None:
        _rebuild(ground, job_id, story, life, place)
        return
    now = _lifecycle(found.path)
    behind = now is None or len(now.hops) < len(life.hops)
    final = life if now is None or behind else now
    _mend(found.path, story, final)
    if behind:
        _write_life(found.path, life)
    if not found.place.startswith(("jobs/.held/", "jobs/outbox")) and "/in-progress/" not in found.place:
        folders.drop_lock(found.path)  # nobody is at work: its removal was lost
        # Where it lies may be older than what it says: a move that was lost while the file was kept.
        if found.place != place and (behind or final.hops[-1:] == life.hops[-1:]):
            try_move(found.path, ground.path(place, job_id))


def _found(ground: Ground, job_id: str) -> views.Found | None:
    """The folder that says most; a second one of that id is recovery's to quarantine."""
    best: tuple[int, views.Found] | None = None
    for place, role, status, busy in views.spots(ground):
        path = ground.path(place, job_id)
        if fs.exists(path):
            life = _lifecycle(path)
            hops = -1 if life is None else len(life.hops)
            if best is None or hops > best[0]:
                best = hops, views.Found(job_id=job_id, path=path, place=place, role=role, status=status, busy=busy)
    return None if best is None else best[1]


def _lifecycle(path: str) -> Lifecycle | None:
    try:
        return folders.read_lifecycle(path)
    except (FarroError, OSError):
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
    _write_life(staged, life)
    try_move(staged, ground.path(place, job_id))


def _mend(path: str, story: Story, life: Lifecycle) -> None:
    """Every file that the records of this life name, as they name it."""
    if story.enqueued is not None:
        _files(path, story.enqueued)
    for record, decided in sorted(story.commits, key=lambda one: one[0].attempt):
        if decided.hops[-1] in life.hops:
            for folder in (f"{path}/attempts", folders.attempt_folder(path, record.attempt)):
                if not fs.exists(folder):
                    fs.mkdir(folder)
            _files(folders.attempt_folder(path, record.attempt), record)
            if decided.decision is not None and decided.decision.reason in REPORTED:
                folders.refresh_mirrors(path, record.attempt)


def _files(home: str, record: Record) -> None:
    for name, data in record.files.items():
        *above, _ = name.split("/")
        folder = home
        for part in above:
            folder = f"{folder}/{part}"
            if not fs.exists(folder):
                fs.mkdir(folder)
        with contextlib.suppress(OSError):
            if fs.read_bytes(f"{home}/{name}", len(data)) == data:
                continue
        fs.write_atomic(f"{home}/{name}", data, sync=False)


def _write_life(path: str, life: Lifecycle) -> None:
    fs.write_atomic(f"{path}/job.json", life.to_json(), sync=False)
    entered_ns = int(parse_timestamp(life.enqueued_at).timestamp() * 1e9)
    fs.set_mtime_ns(f"{path}/job.json", entered_ns)
