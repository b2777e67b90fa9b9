"""Clean up jobs/.staging after crashed submitters and joining agents.

Safe beside live submitters: a folder that an id points to is published, not removed; a locked folder has a live
submitter; and a slow submitter whose folder was removed gets ENOENT at its rename, before anything is acknowledged.
[test_staging_cleanup_keeps_folders_that_an_id_points_to]
"""

from __future__ import annotations

from farro.errors import Damaged
from farro.host import fs, leases, trees
from farro.jobs import places
from farro.store.files import chosen_ids, dependencies
from farro.store.files import folder as folders
from farro.store.files.agents import LEASE
from farro.store.files.context import FilesContext
from farro.store.files.move import MoveResult, try_move

KEEP_S = 3600.0  # no submitter stages for an hour


def sweep(context: FilesContext) -> list[str]:
    """Remove or publish old folders. Returns their names."""
    done = []
    now_s = context.clock.now().timestamp()
    for name in fs.subdirectories(context.staging):
        path = f"{context.staging}/{name}"
        try:
            if now_s - fs.lstat(path).st_mtime < KEEP_S or leases.is_held(f"{path}/{LEASE}"):
                continue
            lease = leases.take(path) if leases.FOLDERS else None
            if lease is None and leases.FOLDERS:
                continue
        except FileNotFoundError:
            continue
        try:
            if _finish(context, name, path):
                done.append(name)
        finally:
            if lease is not None:
                lease.drop()
    return done


def _finish(context: FilesContext, name: str, path: str) -> bool:
    """Publish a folder that the registry points at (its submitter died before it could); remove any other."""
    job_id = name.split(".", 1)[0]
    try:
        if chosen_ids.registered(context, job_id)[1] == name:
            lifecycle = folders.read_lifecycle(path)
            blocks = dependencies.staged(context, path)
            home = context.path(places.WAITING) if blocks else context.incoming(lifecycle.role)
            # As its submitter would have done, and may have: a job must not outlive its link (see submit).
            chosen_ids.make_durable(context, name)
            context.sync([context.registry, *dependencies.register(context, job_id, blocks)])
            moved = try_move(path, f"{home}/{job_id}")
            context.sync([home])
            if moved is MoveResult.DONE:
                context.audit_transition(lifecycle)
            return True
    except (Damaged, FileNotFoundError, FileExistsError) as error:
        if not fs.exists(path):
            return False  # another submitter of that id has published it
        context.log("error", "staged job of a registered id cannot be published", {"job_id": job_id, "why": str(error)})
        return False
    trees.remove_tree(path)
    return True
