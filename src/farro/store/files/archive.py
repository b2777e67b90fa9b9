"""Move finished jobs from their folders into the archive: append-only segment files (archive_segment, archive_index).

    jobs/.archive/<number>-<random>.new   a segment whose newest jobs may still have their folders
    jobs/.archive/<number>-<random>.seg   a segment that is complete
    jobs/.archive/.gone/<job>.<random>/   the folder of an archived job, which the next archive or prune deletes

- One process at a time archives or prunes: both hold jobs/.trash/.lock. Therefore a final job stays where it is
  between the look at it and the rename (prune). Like a pruner this process is not an agent: it edits no job.
- **A move.** The segment is written under a temporary name, synced, and renamed to `.new`: from then on the job is
  archived, and its folder only hides that. Then each folder that is still what the segment says leaves completed/ with
  one rename; when these moves are on the disk, the links of chosen ids are removed, because the index has the ids; then
  the segment is renamed to `.seg`. A crash leaves a `.new`, and recovery does the rest of the same steps.
  [test_kill_at_every_call_of_archive, test_power_cut_during_an_archive]
- **A chosen id** is in the register, in the index, or in both. Who registers an id looks into the index before and
  after (submit). [test_an_archived_id_is_not_used_twice]
- **Few segments.** A new segment takes over the smallest ones while they are not larger than it, as far as it stays
  below `SEGMENT_JOBS`. It names them in `replaces`: once it has its own name they are not read any more.
- **Pruning** writes the segment anew without the jobs, in the same way; `dropped` keeps the ids until their names and
  the links to their costs are freed. [test_kill_at_every_call_of_pruning_the_archive]
- A job with a record in a journal is left alone, as by prune: after a power cut that record would restore its folder.
- Damage: a segment whose index was rebuilt is written anew by the next run; the damaged file is kept as `.damaged`.
  So is one with a block that cannot be copied. [test_a_segment_with_an_unreadable_block_is_rewritten]
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from farro.errors import Damaged, Refused, StorageTrouble
from farro.host import fs, trees
from farro.jobs import places
from farro.store.files import archive_index, chosen_ids, names, prune, views
from farro.store.files.archive_segment import ArchivedJob, Segment, SegmentWriter, pack, parsed_record, tree_of, unpack
from farro.store.files.context import FilesContext
from farro.store.files.move import MoveResult, try_move
from farro.store.port import Archived, JobAt, RecoveryAction

GONE = f"{archive_index.FOLDER}/.gone"
RUN_JOBS = 2_000  # that leave their folders together
SEGMENT_JOBS = 65_536
Progress = Callable[[int, int], None]


def archive(context: FilesContext, jobs: Sequence[JobAt], *, progress: Progress) -> Archived:
    """Archive those of these jobs that are final (Store.archive)."""
    moved = 0
    with prune.opened(context) as trash:
        _make_folders(context)
        finish_all(context)
        _mend(context)
        freed = _empty_gone(context)  # what an earlier run left
        for begin in range(0, len(jobs), RUN_JOBS):
            chosen = jobs[begin : begin + RUN_JOBS]
            progress(begin, len(jobs))
            moved += _archive_run(context, trash, chosen)
            freed += _empty_gone(context)
        progress(len(jobs), len(jobs))
    return Archived(jobs=moved, bytes=freed)


def drop(context: FilesContext, job_ids: Collection[str]) -> tuple[int, int]:
    """Remove these jobs from the archive, with their names. Returns how many there were, and the bytes that are free
    again."""
    if context.archive is None:
        return 0, 0
    wanted = {job_id for job_id in job_ids if context.archive_index.find(job_id) is not None}
    if not wanted and not fs.subdirectories(context.path(GONE)):
        return 0, 0
    removed = freed = 0
    with prune.opened(context):
        finish_all(context)
        for segment in context.archive_index.segments():
            inside = frozenset(job.job_id for job in segment.jobs()) & wanted if len(segment) else frozenset()
            if inside:
                freed += segment.size
                freed -= _write_without(context, segment, inside, dropped=inside)
                removed += len(inside)
        _empty_gone(context)
    return removed, freed


def recover(context: FilesContext) -> list[RecoveryAction]:
    """Finish what an archiver that died left half done."""
    if context.archive is None:
        return []
    archive_index.sweep_copies(context.root)
    if not any(segment.unfinished for segment in context.archive_index.segments()):
        return []
    try:
        with prune.opened(context):
            return [RecoveryAction(job_id=None, agent=None, what=f"archived {name}") for name in finish_all(context)]
    except Refused:
        return []  # the archiver lives


def export(context: FilesContext, to: str, jobs: Sequence[JobAt], *, progress: Progress) -> int:
    """Write the folders of archived jobs to `to`, at their places below it. Returns how many."""
    done = 0
    for count, job in enumerate(jobs, start=1):
        record = context.archive_index.record(job.job_id)
        if record is None:
            continue
        home = f"{to}/{job.place}"
        trees.make_folders(home)
        new = fs.temporary(home)
        try:
            unpack(record, new, exact=True)
            fs.move(new, f"{home}/{job.job_id}")
        except FileExistsError as error:
            trees.remove_tree(new)
            raise Refused(f"{home}/{job.job_id} exists already; name another folder") from error
        done += 1
        progress(count, len(jobs))
    return done


# --- the steps of a move ---------------------------------------------------------------------------------------------


def _archive_run(context: FilesContext, trash: prune.Trash, jobs: Sequence[JobAt]) -> int:
    """Archive some jobs together."""
    with _written(context) as writer:
        taken = _packed(context, trash, jobs)
        first = next(taken, None)
        if first is None:
            return 0
        absorbed = _absorbed(context, len(jobs))
        for segment in absorbed:
            writer.take_over(segment)
        writer.begin_fresh()
        moved = 0
        for job, record in chain([first], taken):  # one at a time: together they may be large
            writer.add(job, record)
            moved += 1
        writer.close(replaces=[segment.name for segment in absorbed])
        _publish(context, writer)
    finish_all(context)
    return moved


def _packed(context: FilesContext, trash: prune.Trash, jobs: Sequence[JobAt]) -> Iterator[tuple[ArchivedJob, bytes]]:
    """Read the folders of those jobs that can be archived, gently."""
    for job in prune.gently(context, jobs):
        path = context.path(job.place, job.job_id)
        found = None
        with contextlib.suppress(FileNotFoundError, Damaged):
            if trash.removable(job.job_id, path):
                place = places.parse(job.place)
                digest = chosen_ids.registered(context, job.job_id)[0]
                try:
                    found = pack(path, job.job_id, str(place.role), str(place.status), digest)
                except OSError as error:
                    prune.log_unreadable(context, job.job_id, error)
        if found is not None:
            yield found


def _absorbed(context: FilesContext, count: int) -> list[Segment]:
    """Return the newest segments that a new one of `count` jobs takes over."""
    found: list[Segment] = []
    for segment in sorted(context.archive_index.segments(), key=len):
        if len(segment) > count or len(segment) + count > SEGMENT_JOBS:
            break
        found.append(segment)
        count += len(segment)
    return found


def _no_segment(context: FilesContext, error: OSError) -> StorageTrouble:
    """Explain that no segment could be written."""
    why = f"{error.strerror}; this run changed nothing. {fs.remedy(error.errno)}"
    return StorageTrouble(f"{context.archive_index.folder}: {why}")


@contextlib.contextmanager
def _written(context: FilesContext) -> Iterator[SegmentWriter]:
    """Write a segment; one that was not published is removed."""
    writer = SegmentWriter(context.archive_index.folder)
    try:
        yield writer
    except OSError as error:
        raise _no_segment(context, error) from error
    finally:
        writer.discard()


def _publish(context: FilesContext, writer: SegmentWriter) -> None:
    """Give the written segment its name: the commit point of a move and of a removal."""
    context.sync([writer.path])
    numbers = [int(segment.name.split("-")[0]) for segment in context.archive_index.segments()]
    name = f"{max(numbers, default=0) + 1:010d}-{context.random_bits(32):08x}.new"
    fs.move(writer.path, f"{context.archive_index.folder}/{name}")
    context.archive_index.forget_listing()
    context.sync([context.archive_index.folder])


def finish_all(context: FilesContext) -> list[str]:
    """Do the rest of every half-done move. The caller holds the lock of the trash."""
    for name in fs.listdir(context.archive_index.folder) if fs.exists(context.archive_index.folder) else ():
        if name.startswith(fs.TEMPORARY):
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(f"{context.archive_index.folder}/{name}")
    finished = []
    for segment in context.archive_index.segments():
        if segment.unfinished:
            with contextlib.suppress(FileExistsError):
                fs.mkdir(context.path(GONE))
            _finish(context, segment)
            finished.append(segment.name)
    return finished


def _finish(context: FilesContext, segment: Segment) -> None:
    folder = context.archive_index.folder
    for name in segment.replaces:
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(f"{folder}/{name}")
    if segment.replaces:
        context.sync([folder])
    touched: set[str] = set()
    changed: list[str] = []
    chosen: list[tuple[str, str]] = []
    for span in segment.fresh_blocks():
        try:
            records = segment.records(span.offset)
        except Damaged:  # between writing and now: folders that are still there stay
            changed += [
                job.job_id for job in segment.jobs_of(span.offset) if fs.exists(context.archive_index.folder_of(job))
            ]
            continue
        for record in records:
            head = parsed_record(record).header
            if not _remove_folder(context, head, touched):
                changed.append(head["id"])
            elif head["digest"]:
                chosen.append((head["id"], head["digest"]))
    context.sync(sorted(filter(fs.exists, touched)))
    _free_links(context, chosen)  # after the sync: else a power cut could keep a folder and lose the link of its id
    if changed:  # edited since: these folders stay, and the next run archives them
        _write_without(context, segment, frozenset(changed), dropped=segment.dropped())
        return
    _free(context, segment.dropped())
    if len(segment):
        fs.move(segment.path, f"{folder}/{segment.name[:-4]}.seg")
    else:
        fs.unlink(segment.path)
    context.archive_index.forget_listing()
    context.sync([folder])


def _remove_folder(context: FilesContext, head: Mapping[str, Any], touched: set[str]) -> bool:
    """Move an archived job's folder out of completed/. False: it has changed."""
    job_id = str(head["id"])
    place = f"agents/{head['role']}/completed/{head['status']}"
    path = context.path(place, job_id)
    if fs.exists(path):
        if tree_of(path) != head["tree"]:
            return False
        gone = context.path(GONE, f"{job_id}.{context.random_bits(64):016x}")
        if try_move(path, gone) is not MoveResult.DONE and fs.exists(path):
            return False
    touched |= {context.path(place), context.path(GONE)}  # also if another run moved it: that one may not have synced
    return True


def _free_links(context: FilesContext, chosen: Sequence[tuple[str, str]]) -> None:
    """Remove the links of chosen ids, which the index has now."""
    for job_id, digest in chosen:
        with contextlib.suppress(Damaged, FileNotFoundError):
            if chosen_ids.registered(context, job_id)[0] == digest:
                fs.unlink(f"{context.registry}/{job_id}")
    if chosen:
        context.sync([context.registry])


def _free(context: FilesContext, job_ids: Iterable[str]) -> None:
    """Free the names of removed jobs, and the links to their costs; an id that was submitted again keeps them."""
    named: dict[str, str] | None = None
    for job_id in job_ids:
        if views.locate(context, job_id) is not None:
            continue
        named = names.pointing(context) if named is None else named
        if job_id in named:
            names.free(context, named[job_id], job_id)
            context.sync([context.path(names.FOLDER)])
        prune.forget_calls(context.root, job_id)


def _write_without(
    context: FilesContext, segment: Segment, without: frozenset[str], *, dropped: Collection[str]
) -> int:
    """Write a segment anew without some jobs. Returns the new size."""
    with _written(context) as writer:
        writer.take_over(segment, without)
        writer.begin_fresh()
        writer.close(replaces=[segment.name], dropped=sorted(dropped))
        size = fs.lstat(writer.path).st_size if writer.count else 0
        _publish(context, writer)
    finish_all(context)
    return size


def _mend(context: FilesContext) -> None:
    """Write segments whose index was rebuilt anew; keep the damaged file."""
    for segment in context.archive_index.segments():
        segment.check_index()
        if segment.damage is None or segment.unfinished:
            continue
        context.log("error", "damaged archive segment rewritten", {"segment": segment.name, "why": segment.damage})
        segment.keep_file()
        _write_without(context, segment, frozenset(), dropped=())


def _make_folders(context: FilesContext) -> None:
    for folder in (context.archive_index.folder, context.path(GONE)):
        with contextlib.suppress(FileExistsError):
            fs.mkdir(folder)
    context.sync([context.path("jobs"), context.archive_index.folder])


def _empty_gone(context: FilesContext) -> int:
    """Delete the folders of archived jobs, gently. Returns their bytes."""
    freed = 0
    for name in prune.gently(context, fs.subdirectories(context.path(GONE))):
        path = context.path(GONE, name)
        freed += trees.size(path)
        with contextlib.suppress(PermissionError):  # another user's files: they stay there
            trees.remove_tree(path)
    return freed
