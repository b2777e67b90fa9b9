"""Clean-up of jobs/.staging: what crashed submitters and joining agents left behind.

Safe beside live submitters: what an id points to is published, not removed; a locked folder has a live submitter; and a
slow submitter whose folder was removed gets ENOENT at its rename and says so, nothing was acknowledged.
[test_staging_cleanup_spares_what_an_id_points_to]
"""

from __future__ import annotations

from farro.errors import Damaged
from farro.host import fs, leases, trees
from farro.jobs import places
from farro.store.files import chosen_ids, dependencies
from farro.store.files import folder as folders
from farro.store.files.agents import LEASE
from farro.store.files.context import Ground
from farro.store.files.move import Moved, try_move

KEEP_S = 3600.0  # nobody stages for an hour


def sweep(ground: Ground) -> list[str]:
    """Remove debris; answers the names that were dealt with."""
    done = []
    now_s = ground.clock.now().timestamp()
    for name in fs.subdirectories(ground.staging):
        path = f"{ground.staging}/{name}"
        try:
            if now_s - fs.lstat(path).st_mtime < KEEP_S or leases.is_held(f"{path}/{LEASE}"):
                continue
            lease = leases.take(path) if leases.FOLDERS else None
            if lease is None and leases.FOLDERS:
                continue
        except FileNotFoundError:
            continue
        try:
            if _finish(ground, name, path):
                done.append(name)
        finally:
            if lease is not None:
                lease.drop()
    return done


def _finish(ground: Ground, name: str, path: str) -> bool:
    """Publish what the registry points at (its submitter died between the two), remove everything else."""
    job_id = name.split(".", 1)[0]
    try:
        if chosen_ids.registered(ground, job_id)[1] == name:
            lifecycle = folders.read_lifecycle(path)
            blocks = dependencies.staged(ground, path)
            home = ground.path(places.WAITING) if blocks else ground.incoming(lifecycle.role)
            # As its submitter would have, or has, or has not lived to: a job must not outlive its link (see submit).
            chosen_ids.make_durable(ground, name)
            ground.sync([ground.registry, *dependencies.register(ground, job_id, blocks)])
            moved = try_move(path, f"{home}/{job_id}")
            ground.sync([home])
            if moved is Moved.DONE:
                ground.tell(lifecycle)
            return True
    except (Damaged, FileNotFoundError, FileExistsError) as error:
        if not fs.exists(path):
            return False  # another submitter of that id published it meanwhile
        ground.log("error", "staged job of a registered id cannot be published", {"job_id": job_id, "why": str(error)})
        return False
    trees.remove_tree(path)
    return True
