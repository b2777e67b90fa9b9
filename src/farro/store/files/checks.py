"""Checks of a file store: the folders of its root, and what one look through the tree found. The look lives in scan.

Each names the command that repairs it; where only a person can judge, the commands put the job aside, in quarantine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache

from farro.doctor.checks import Check, Finding, counted, failed, ok, quoted, warning
from farro.doctor.folders import wanted_folders
from farro.jobs import places
from farro.store.files.context import Ground
from farro.store.files.scan import Scan, Seen, Tally, scan

RECOVER = "farro watchdog --once"


def checks(ground: Ground, roles: Iterable[str], *, finished: int | None) -> list[Check]:
    root, roles = ground.root, tuple(roles)

    @cache  # one look for all of them
    def looked() -> Scan | OSError:
        try:
            return scan(ground, finished=finished)
        except OSError as error:
            return error

    def each(name: str, title: str, tally: Callable[[Scan], Tally], judge: Callable[[Tally], Finding]) -> Check:
        def look() -> Finding:
            seen = looked()
            if isinstance(seen, OSError):
                return ok("not known: see jobs-seen")  # which fails
            found = tally(seen)
            return judge(found) if found.count else ok("none")

        return Check(id=name, title=title, look=look)

    def aside(tally: Tally) -> list[str]:
        home = f"{root}/{places.QUARANTINE}/"
        return [f"mv -n {quoted(f'{root}/{seen.path}')} {quoted(home)}" for seen in tally.examples]

    def twins(tally: Tally) -> Finding:
        """The one farther on its way is kept: a commit is accepted once, and the earlier place is what was left."""
        cause = "a power cut on a filesystem without a journal, or a copy by hand; put the one aside that is behind"
        details = tuple(f"{seen.what}: {seen.path} and {seen.other}" for seen in tally.examples)
        found = f"{counted(tally.count, 'job')} in two places"
        return failed(found, cause, *aside(tally), details=details)

    def contradicting(tally: Tally) -> Finding:
        cause = (
            "somebody edited or moved it by hand; no worker takes such a job. Put it aside, look, and queue it again"
        )
        return failed(
            f"{counted(tally.count, 'job')} whose job.json contradicts the place",
            cause,
            *aside(tally),
            details=_told(tally),
        )

    def damaged(tally: Tally) -> Finding:
        cause = "a file was removed or cut by hand, or by a disk; put it aside, where it is shown as failed"
        return failed(f"{counted(tally.count, 'job')} that cannot be read", cause, *aside(tally), details=_told(tally))

    def foreign(tally: Tally) -> Finding:
        cause = "another version of farro wrote it, and this one leaves it alone; use that one, or a newer one"
        return warning(
            f"{counted(tally.count, 'job')} of another version", cause, "python3 -m pip install --upgrade farro",
            details=_told(tally),
        )  # fmt: skip

    def dead_locks(tally: Tally) -> Finding:
        cause = "a worker was killed between lock and move; the next worker of that role takes it over, or you do"
        removed = [f"rm {quoted(f'{root}/{seen.path}')}" for seen in tally.examples]
        return warning(f"{counted(tally.count, 'lock')} of dead agents", cause, *removed, details=_told(tally))

    def dead_agents(tally: Tally) -> Finding:
        cause = "a worker was killed; a watchdog recovers its jobs, and the manager queues them again"
        return warning(
            f"{counted(tally.count, 'dead agent')} with what they held", cause, RECOVER, "farro manager --once",
            details=_told(tally),
        )  # fmt: skip

    def left_in_staging(tally: Tally) -> Finding:
        cause = "whoever submitted was killed before the job was queued; a watchdog clears it"
        return warning(
            f"{counted(tally.count, 'folder')} in jobs/.staging for more than a day",
            cause,
            RECOVER,
            details=_told(tally),
        )

    def quarantined(tally: Tally) -> Finding:
        cause = (
            "they contradicted themselves and were put aside; look at each, queue it anew if it matters, and remove it"
        )
        commands = [
            line
            for seen in tally.examples
            for line in (f"farro show {seen.what}", f"rm -r {quoted(f'{root}/{seen.path}')}")
        ]
        return warning(f"{counted(tally.count, 'job')} in quarantine", cause, *commands, details=_told(tally))

    def temporary(tally: Tally) -> Finding:
        cause = "a process was killed while it wrote; nothing reads them"
        removed = [f"rm -rf {quoted(f'{root}/{seen.path}')}" for seen in tally.examples]
        return warning(f"{counted(tally.count, 'temporary file')} left", cause, *removed, details=_paths(tally))

    def strays(tally: Tally) -> Finding:
        cause = "only jobs' folders belong there; nothing works them"
        moved = [f"mv -n {quoted(f'{root}/{seen.path}')} {quoted(f'{root}/')}" for seen in tally.examples]
        return warning(
            f"{counted(tally.count, 'thing')} in a queue that is no job", cause, *moved, details=_paths(tally)
        )

    def tree() -> Finding:
        found = looked()
        if isinstance(found, OSError):
            raise found
        unread = f"; {found.unread} finished ones by their place only (--all opens them too)" if found.unread else ""
        return ok(f"{counted(found.jobs, 'job')} looked at{unread}")

    return [
        Check(id="folders", title="folders of the root", look=lambda: _folders(root, roles), quick=True),
        Check(id="jobs-seen", title="jobs", look=tree),
        each("jobs-in-two-places", "one id, one place", lambda seen: seen.twins, twins),
        each("jobs-contradict", "place and status agree", lambda seen: seen.contradicting, contradicting),
        each("jobs-damaged", "jobs can be read", lambda seen: seen.damaged, damaged),
        each("jobs-foreign", "schema versions", lambda seen: seen.foreign, foreign),
        each("dead-locks", "locks of dead agents", lambda seen: seen.dead_locks, dead_locks),
        each("dead-agents", "jobs of dead agents", lambda seen: seen.dead_agents, dead_agents),
        each("staging", "leftovers in staging", lambda seen: seen.left_in_staging, left_in_staging),
        each("quarantine", "quarantine", lambda seen: seen.quarantined, quarantined),
        each("temporary-files", "temporary files", lambda seen: seen.temporary, temporary),
        each("strays", "what is no job", lambda seen: seen.strays, strays),
    ]


def _told(tally: Tally) -> tuple[str, ...]:
    return tuple(_of(seen) for seen in tally.examples)


def _of(seen: Seen) -> str:
    return f"{seen.what} ({seen.path})"


def _paths(tally: Tally) -> tuple[str, ...]:
    return tuple(seen.path for seen in tally.examples)


def _folders(root: str, roles: Iterable[str]) -> Finding:
    missing = [name for name in wanted_folders(roles) if not os.path.isdir(f"{root}/{name}")]
    if missing:
        return failed(
            f"{missing[0]} is missing" + (f", and {len(missing) - 1} more" if len(missing) > 1 else ""),
            "git keeps no empty folders, or somebody removed it, or the config declares a new role",
            "farro init",
            details=tuple(missing[:5]),
        )
    return ok("all there")
