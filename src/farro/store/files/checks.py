"""Doctor checks of a file store: the folders of its root, and the findings of one scan of the tree.

Each finding names the command that repairs it; where only a person can judge, the commands move the job to quarantine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache

from farro.doctor.checks import Check, Finding, counted, failed, ok, quoted, warning
from farro.doctor.root import wanted_folders
from farro.jobs import places
from farro.store.files.context import FilesContext
from farro.store.files.scan import Scan, Tally, scan

RECOVER = "farro watchdog --once"


def checks(context: FilesContext, roles: Iterable[str], *, finished: int | None) -> list[Check]:
    """Return all checks. They share one scan; `finished` limits how many finished jobs it opens (see scan)."""
    root, roles = context.root, tuple(roles)
    findings = _Findings(root)

    @cache
    def scanned() -> Scan | OSError:
        try:
            return scan(context, finished=finished)
        except OSError as error:
            return error

    def tally_check(
        name: str, title: str, tally_of: Callable[[Scan], Tally], describe: Callable[[Tally], Finding]
    ) -> Check:
        def look() -> Finding:
            found = scanned()
            if isinstance(found, OSError):
                return ok("not known: see jobs-seen")  # which fails
            tally = tally_of(found)
            return describe(tally) if tally.count else ok("none")

        return Check(id=name, title=title, look=look)

    def tree() -> Finding:
        found = scanned()
        if isinstance(found, OSError):
            raise found
        unread = f"; {found.unread} finished ones by their place only (--all opens them too)" if found.unread else ""
        return ok(f"{counted(found.jobs, 'job')} looked at{unread}")

    return [
        Check(id="folders", title="folders of the root", look=lambda: _folders(root, roles), quick=True),
        Check(id="jobs-seen", title="jobs", look=tree),
        tally_check("jobs-in-two-places", "one id, one place", lambda found: found.twins, findings.twins),
        tally_check(
            "jobs-contradict", "place and status agree", lambda found: found.contradicting, findings.contradicting
        ),
        tally_check("jobs-damaged", "jobs can be read", lambda found: found.damaged, findings.damaged),
        tally_check("jobs-foreign", "schema versions", lambda found: found.foreign, findings.foreign),
        tally_check("dead-locks", "locks of dead agents", lambda found: found.dead_locks, findings.dead_locks),
        tally_check("dead-agents", "jobs of dead agents", lambda found: found.dead_agents, findings.dead_agents),
        tally_check("staging", "leftovers in staging", lambda found: found.left_in_staging, findings.left_in_staging),
        tally_check("quarantine", "quarantine", lambda found: found.quarantined, findings.quarantined),
        tally_check("temporary-files", "temporary files", lambda found: found.temporary, findings.temporary),
        tally_check("strays", "what is not a job", lambda found: found.strays, findings.strays),
        Check(id="archive", title="archived jobs", look=lambda: _archive(context)),
    ]


class _Findings:
    """Describe each kind of contradiction: what was found, the likely cause, and the commands that help."""

    def __init__(self, root: str) -> None:
        self._root = root

    def _path(self, path: str) -> str:
        return quoted(f"{self._root}/{path}")

    def _move_aside(self, tally: Tally) -> list[str]:
        quarantine = self._path(f"{places.QUARANTINE}/")
        return [f"mv -n {self._path(example.path)} {quarantine}" for example in tally.examples]

    def twins(self, tally: Tally) -> Finding:
        # The job that is further along is kept: a commit is accepted once, and the earlier place is a leftover.
        cause = "a power cut on a filesystem without a journal, or a copy by hand; put the one aside that is behind"
        details = tuple(f"{example.what}: {example.path} and {example.other}" for example in tally.examples)
        found = f"{counted(tally.count, 'job')} in two places"
        return failed(found, cause, *self._move_aside(tally), details=details)

    def contradicting(self, tally: Tally) -> Finding:
        cause = "it was edited or moved by hand; no worker takes such a job. Put it aside, look, and queue it again"
        found = f"{counted(tally.count, 'job')} whose job.json contradicts the place"
        return failed(found, cause, *self._move_aside(tally), details=_details(tally))

    def damaged(self, tally: Tally) -> Finding:
        cause = "a file was removed or cut by hand, or by a disk; put it aside, where it is shown as failed"
        found = f"{counted(tally.count, 'job')} that cannot be read"
        return failed(found, cause, *self._move_aside(tally), details=_details(tally))

    def foreign(self, tally: Tally) -> Finding:
        cause = "another version of farro wrote it, and this one leaves it alone; use that one, or a newer one"
        found = f"{counted(tally.count, 'job')} of another version"
        return warning(found, cause, "python3 -m pip install --upgrade farro", details=_details(tally))

    def dead_locks(self, tally: Tally) -> Finding:
        cause = "a worker was killed between lock and move; the next worker of that role takes it over, or you do"
        commands = [f"rm {self._path(example.path)}" for example in tally.examples]
        return warning(f"{counted(tally.count, 'lock')} of dead agents", cause, *commands, details=_details(tally))

    def dead_agents(self, tally: Tally) -> Finding:
        cause = "a worker was killed; a watchdog recovers its jobs, and the manager queues them again"
        found = f"{counted(tally.count, 'dead agent')} with what they held"
        return warning(found, cause, RECOVER, "farro manager --once", details=_details(tally))

    def left_in_staging(self, tally: Tally) -> Finding:
        cause = "the submitter was killed before the job was queued; a watchdog clears it"
        found = f"{counted(tally.count, 'folder')} in jobs/.staging for more than a day"
        return warning(found, cause, RECOVER, details=_details(tally))

    def quarantined(self, tally: Tally) -> Finding:
        cause = (
            "they contradicted themselves and were put aside; look at each, queue it anew if it matters, and remove it"
        )
        commands = [
            line
            for example in tally.examples
            for line in (f"farro show {example.what}", f"rm -r {self._path(example.path)}")
        ]
        return warning(f"{counted(tally.count, 'job')} in quarantine", cause, *commands, details=_details(tally))

    def temporary(self, tally: Tally) -> Finding:
        cause = "a process was killed while it wrote; nothing reads them"
        commands = [f"rm -rf {self._path(example.path)}" for example in tally.examples]
        return warning(f"{counted(tally.count, 'temporary file')} left", cause, *commands, details=_paths(tally))

    def strays(self, tally: Tally) -> Finding:
        cause = "only jobs' folders belong there; nothing works them"
        commands = [f"mv -n {self._path(example.path)} {quoted(f'{self._root}/')}" for example in tally.examples]
        found = f"{counted(tally.count, 'thing')} in a queue that is not a job"
        return warning(found, cause, *commands, details=_paths(tally))


def _archive(context: FilesContext) -> Finding:
    """Read every segment, whole."""
    index = context.archive
    segments = [] if index is None else index.segments()
    bad = {segment: segment.damaged_blocks() for segment in segments}
    damaged = [segment for segment, blocks in bad.items() if blocks or segment.damage is not None]
    if damaged:
        cause = (
            "the disk, or an edit by hand; only the jobs in damaged blocks are lost. The next run writes a lost index "
            "anew and keeps the damaged file"
        )
        details = tuple(
            f"{segment.name}: {segment.damage or 'index whole'}; {counted(bad[segment], 'damaged block')} of "
            f"{len(segment.blocks)}"
            for segment in damaged
        )
        found = f"{len(damaged)} of {counted(len(segments), 'segment')} damaged"
        return failed(found, cause, "farro archive --keep 1000000000", details=details)
    if any(segment.unfinished for segment in segments):
        cause = "an archive run was killed, or runs now; recovery finishes it"
        return warning("a half-done move into the archive", cause, RECOVER)
    return ok(f"{counted(sum(map(len, segments)), 'job')} in {counted(len(segments), 'segment')}")


def _details(tally: Tally) -> tuple[str, ...]:
    return tuple(f"{example.what} ({example.path})" for example in tally.examples)


def _paths(tally: Tally) -> tuple[str, ...]:
    return tuple(example.path for example in tally.examples)


def _folders(root: str, roles: Iterable[str]) -> Finding:
    missing = [name for name in wanted_folders(roles) if not os.path.isdir(f"{root}/{name}")]
    if missing:
        return failed(
            f"{missing[0]} is missing" + (f", and {len(missing) - 1} more" if len(missing) > 1 else ""),
            "git keeps no empty folders, or it was removed, or the config declares a new role",
            "farro init",
            details=tuple(missing[:5]),
        )
    return ok("all there")
