"""Read the schedules of a root (schedules/*.json and .yaml), compute what is due, and fire it: once, in the
manager, or in a daemon of its own.

No double run: the job of a run has an id made of the schedule's name and the due time, and submitting an id again is
the same job (jobs/.ids). That alone keeps any number of managers, restarts and clocks that are set back from running a
due time twice. `jobs/.schedules/<name>.json` only records the last due time that was handled, to know what was missed.
It is written after the submission; a crash in between submits the same id once more.
[test_firing_killed_at_any_call_runs_each_time_once, test_two_managers_run_each_time_once]
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import takewhile
from typing import Any

from farro import documents
from farro.documents import Document
from farro.errors import BadDocument, CapacityReached, FarroError, IdConflict, InputError, Problem, SyncFailed
from farro.host import fs, leases
from farro.host.clock import Clock
from farro.jobs import ids
from farro.jobs.request import JobRequest
from farro.jobs.times import parse_timestamp, timestamp
from farro.lazy_dataclass import dataclass
from farro.log.structured import Log
from farro.plans import cron
from farro.plans.schedule import MOST_MISSED, NAME, NAME_RULE, Schedule, load, plan_problems, run_id, to_run
from farro.queue import schedules
from farro.queue.submit import SubmitPolicy, submit
from farro.store.port import Store
from farro.worker.daemon import Daemon

FOLDER = "schedules"
STATES = "jobs/.schedules"
_ENDINGS = (".json", ".yaml", ".yml")
_LOOK_BACK = (timedelta(days=1), timedelta(days=32), timedelta(days=400))
_AHEAD = timedelta(days=1)  # a handled time farther in the future than this came from a wrong clock


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleFile:
    """One file of schedules/: a schedule, or what is wrong with it."""

    name: str
    file: str  # relative to the root
    document: Document | None = None
    schedule: Schedule | None = None
    problems: tuple[str, ...] = ()

    @property
    def active(self) -> bool:
        return self.schedule is not None and not self.problems and self.schedule.enabled


@dataclass(frozen=True, kw_only=True, slots=True)
class Handled:
    """The recorded state of a schedule in jobs/.schedules."""

    until: datetime  # every due time up to this one is handled
    last_due: datetime | None = None
    last_job: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Fired:
    """A run that was submitted."""

    schedule: str
    due: datetime
    job_id: str


# --- reading ---


def read(root: str, roles: Sequence[str]) -> list[ScheduleFile]:
    """Return every schedule of the root by name; a file with problems is returned with them."""
    try:
        names = sorted(name for name in fs.listdir(f"{root}/{FOLDER}") if _is_schedule(name))
    except (FileNotFoundError, NotADirectoryError):
        return []
    entries = [read_file(root, f"{FOLDER}/{name}", roles) for name in names]
    return [*_named_once(entries)]


def named(root: str, roles: Sequence[str], name: str) -> ScheduleFile:
    """Return the valid schedule of that name. InputError: there is none, or what is wrong with it."""
    entries = read(root, roles)
    found = next((entry for entry in entries if entry.name == name), None)
    if found is None:
        known = ", ".join(entry.name for entry in entries) or "none"
        raise InputError(f"no schedule {name} in {root}/{FOLDER}; known: {known}")
    if found.problems:
        raise InputError("\n".join(found.problems))
    return found


def line(root: str, entry: ScheduleFile, now: datetime) -> dict[str, Any]:
    """Return a schedule as data: its settings, and when it ran last and runs next."""
    known = handled(root, entry.name) if not entry.problems else None
    due = next_due(entry, now) if entry.active else None
    schedule = entry.schedule
    return {
        "name": entry.name,
        "file": entry.file,
        "cron": schedule.cron if schedule else None,
        "zone": schedule.zone if schedule else None,
        "missed": schedule.missed if schedule else None,
        "role": schedule.role if schedule else None,
        "enabled": schedule.enabled if schedule else False,
        "next": None if due is None else spelled(due),
        "last": spelled(known.last_due) if known and known.last_due else None,
        "last_job": known.last_job if known else None,
        "problems": list(entry.problems),
    }


def spelled(moment: datetime | None) -> str:
    """Format a time to the second; schedules have no finer times."""
    return "never" if moment is None else f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _is_schedule(name: str) -> bool:
    """Ignore hidden files, which editors leave beside those that they edit."""
    return name.lower().endswith(_ENDINGS) and not name.startswith(".")


def read_file(root: str, file: str, roles: Sequence[str]) -> ScheduleFile:
    """Read the schedule of one file and check it completely: cron line, zone, role and plan."""
    path = os.path.join(root, file)
    stem = os.path.basename(file).rsplit(".", 1)[0]
    try:
        document = documents.parse(fs.read_regular(path, documents.DEFAULT.size), file)
        schedule = load(document, lambda document, data: _problems(root, file, document, data, stem, roles))
    except BadDocument as bad:
        return ScheduleFile(name=stem, file=file, problems=tuple(str(bad).splitlines()))
    except OSError as error:
        return ScheduleFile(name=stem, file=file, problems=(f"{file}: cannot be read: {error.strerror or error}",))
    return ScheduleFile(name=schedule.name or stem, file=file, document=document, schedule=schedule)


def _problems(
    root: str, file: str, document: Document, data: Mapping[str, Any], stem: str, roles: Sequence[str]
) -> Iterator[Problem]:
    """Yield problems of fields with the right type; the model reports the others."""
    zone, role, plan_file = data.get("zone"), data.get("role"), data.get("plan_file")
    if data.get("name") is None and NAME.fullmatch(stem) is None:
        yield document.problem((), f"the file's name is not a valid schedule name ({NAME_RULE}); give it a `name`")
    if isinstance(zone, str):
        try:
            zone_of(zone)
        except InputError as error:
            yield document.problem(("zone",), str(error))
    if isinstance(role, str) and role not in roles:
        yield document.problem(("role",), f"no role {documents.show(role)} here; known: {', '.join(roles)}")
    if isinstance(plan_file, str):
        try:
            plan = _plan_file(root, file, plan_file)
        except InputError as error:
            yield document.problem(("plan_file",), str(error))
            return
        for problem in plan_problems(plan):
            yield document.problem(("plan_file",), problem.render(plan.source))


def _plan_file(root: str, file: str, named: str) -> Document:
    source = os.path.normpath(os.path.join(os.path.dirname(file), named))
    try:
        return documents.parse(fs.read_regular(os.path.join(root, source), documents.DEFAULT.size), source)
    except (OSError, ValueError) as error:
        why = (error.strerror or error) if isinstance(error, OSError) else error
        raise InputError(f"{source}: cannot be read: {why}") from error


def _named_once(entries: Sequence[ScheduleFile]) -> Iterator[ScheduleFile]:
    """Refuse the second of two files with one name: they would share the ids of their runs."""
    first: dict[str, str] = {}
    for entry in entries:
        other = first.setdefault(entry.name, entry.file) if entry.schedule is not None else entry.file
        if other == entry.file:
            yield entry
        else:
            why = f"{entry.file}: {other} has a schedule of this name ({entry.name}), too; give it another `name`"
            yield ScheduleFile(name=entry.name, file=entry.file, problems=(why,))


def zone_of(name: str) -> tzinfo:
    """Return the time zone of that name. InputError: this machine does not have it."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise InputError(
            f"no time zone {documents.show(name)} on this machine; write UTC or a name such as Europe/Berlin "
            "(they come with the system's tzdata)"
        ) from error


# --- what is due ---


def handled(root: str, name: str) -> Handled | None:
    """Return the recorded state. None: never seen, or unreadable; then it starts from now."""
    try:
        data = json.loads(fs.read_bytes(f"{root}/{STATES}/{name}.json", 4096))
        last_due = data.get("last_due")
        return Handled(
            until=parse_timestamp(data["handled"]),
            last_due=None if last_due is None else parse_timestamp(last_due),
            last_job=data.get("last_job"),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def next_due(entry: ScheduleFile, after: datetime) -> datetime | None:
    """Return the first due time after `after`."""
    if entry.schedule is None:
        return None
    return next(cron.due(entry.schedule.parsed(), zone_of(entry.schedule.zone), after), None)


def _dues(schedule: Schedule, after: datetime, now: datetime) -> tuple[Sequence[datetime], int]:
    """Return the latest times that fell due in (after, now], and how many were found.

    Looks back no farther than needed to find those that may run: a year of minutes would keep a manager busy for
    seconds.
    """
    line, zone = schedule.parsed(), zone_of(schedule.zone)
    dues: list[datetime] = []
    for back in _LOOK_BACK:
        start = max(after, now - back)
        dues = list(takewhile(lambda moment: moment <= now, cron.due(line, zone, start)))
        if start == after or len(dues) >= MOST_MISSED:
            break
    return dues[-MOST_MISSED:], len(dues)


# --- firing ---


def fire_due(store: Store, entry: ScheduleFile, now: datetime, policy: SubmitPolicy) -> list[Fired]:
    """Run what is due of one schedule, by its policy for missed runs. What is refused (a full queue) stays due."""
    schedule = entry.schedule
    assert schedule is not None
    with _one_at_a_time(store.root):
        known = handled(store.root, entry.name)
        if known is None or known.until - now > _AHEAD:
            _remember(store.root, entry.name, Handled(until=now))  # from now on: earlier times do not count as missed
            return []
        dues, count = _dues(schedule, known.until, now)
        if not dues:
            return []
        fired: list[Fired] = []
        for due in to_run(schedule.missed, dues, now):
            job_id = run_id(entry.name, due)
            with contextlib.suppress(IdConflict):  # already run, with the plan it had then
                _submit(store, entry, job_id, policy)
                store.note("scheduled", job_id=job_id, schedule=entry.name)
            fired.append(Fired(schedule=entry.name, due=due, job_id=job_id))
            known = Handled(until=due, last_due=due, last_job=job_id)
            _remember(store.root, entry.name, known)
        if count > len(fired):
            store.note("schedule_missed", schedule=entry.name, missed=count - len(fired), policy=schedule.missed)
        _remember(store.root, entry.name, Handled(until=dues[-1], last_due=known.last_due, last_job=known.last_job))
        return fired


def fire_now(store: Store, entry: ScheduleFile, policy: SubmitPolicy) -> str:
    """Run a schedule once beside its timetable and return the job's id. No due time counts as handled."""
    job_id = _submit(store, entry, None, policy)
    store.note("scheduled", job_id=job_id, schedule=entry.name, by_hand=True)
    return job_id


def _submit(store: Store, entry: ScheduleFile, job_id: str | None, policy: SubmitPolicy) -> str:
    assert entry.schedule is not None
    assert entry.document is not None
    if entry.schedule.plan_file is not None:
        plan = _plan_file(store.root, entry.file, entry.schedule.plan_file)
    else:
        plan = entry.document.inside("plan")
    (job,) = submit(store, [JobRequest(document=plan, role=entry.schedule.role, id=job_id)], policy)
    return job.id


@contextlib.contextmanager
def _one_at_a_time(root: str) -> Iterator[None]:
    """Serialize firing. Two at once would start no job twice (see the ids), but the slower one would set the record
    back."""
    with contextlib.suppress(FileExistsError):
        fs.mkdir(f"{root}/{STATES}")
    with leases.exclusively(f"{root}/{STATES}/.lock"):
        yield


def _remember(root: str, name: str, state: Handled) -> None:
    assert ids.is_job_id(name)
    data: Mapping[str, Any] = {
        "handled": timestamp(state.until),
        "last_due": None if state.last_due is None else timestamp(state.last_due),
        "last_job": state.last_job,
    }
    # Synced once per run: a torn file reads as "never seen", and runs missed during a power cut would be skipped.
    fs.write_atomic(f"{root}/{STATES}/{name}.json", json.dumps(data).encode() + b"\n", sync=True)


_NEVER = datetime.max.replace(tzinfo=UTC)
REREAD_S = 60.0  # even if no schedule changed: a plan_file or the machine's time zones may have


class Timetable:
    """The schedules of a root as one process knows them; read again when a file changes."""

    def __init__(self, *, store: Store, clock: Clock, log: Log, policy: SubmitPolicy) -> None:
        self._store = store
        self._root = store.root
        self._clock = clock
        self._log = log
        self._policy = policy
        self._entries: list[ScheduleFile] = []
        self._seen: Any = None
        self._read_s = float("-inf")
        self._reported: dict[str, tuple[str, ...]] = {}
        self._upcoming: dict[str, datetime] = {}  # cleared with every reading: a clock may have been set back

    def turn(self) -> list[Fired]:
        """Fire what is due. A problem with one schedule is logged and affects it alone."""
        self._refresh()
        fired: list[Fired] = []
        for entry in self._entries:
            if not entry.active:
                continue
            if entry.name not in self._upcoming or self._upcoming[entry.name] <= self._clock.now():
                fired += self._fire(entry)
                due = schedules.next_due(entry, self._clock.now())
                self._upcoming[entry.name] = due or _NEVER
        return fired

    def patience_s(self, longest_s: float) -> float:
        """Return how long a loop may sleep: until the next due time, at most its usual interval."""
        waits_s = [(due - self._clock.now()).total_seconds() for due in self._upcoming.values()]
        return min(longest_s, max(0.0, min(waits_s, default=longest_s)))

    def _refresh(self) -> None:
        seen, now_s = self._fingerprint(), self._clock.monotonic_s()
        if seen == self._seen and now_s - self._read_s < REREAD_S:
            return
        self._seen, self._read_s = seen, now_s
        self._upcoming.clear()
        self._entries = schedules.read(self._root, list(self._store.roles())) if seen else []
        for entry in self._entries:
            if self._reported.get(entry.file, ()) != entry.problems:
                self._reported[entry.file] = entry.problems
                for problem in entry.problems:
                    self._log("error", problem, {"event": {"type": "schedule_trouble"}})

    def _fingerprint(self) -> Any:
        """Return what shows that a file was added, removed or changed, without reading it."""
        try:
            with os.scandir(f"{self._root}/{schedules.FOLDER}") as found:
                return sorted((entry.name, entry.stat().st_mtime_ns, entry.stat().st_size) for entry in found)
        except OSError:
            return []

    def _fire(self, entry: ScheduleFile) -> list[Fired]:
        try:
            fired = schedules.fire_due(self._store, entry, self._clock.now(), self._policy)
        except SyncFailed:
            raise
        except (FarroError, OSError) as error:
            level = "warning" if isinstance(error, CapacityReached) else "error"
            self._log(level, f"schedule {entry.name}: {error}", {"event": {"type": "schedule_trouble"}})
            return []  # tried again after the next reading, not every turn
        for run in fired:
            event = {"type": "scheduled", "schedule": run.schedule, "due": f"{run.due:%Y-%m-%dT%H:%M:%SZ}"}
            self._log("info", f"schedule {run.schedule} queued {run.job_id}", {"job_id": run.job_id, "event": event})
        return fired


class Scheduler(Daemon):
    """A daemon that only fires schedules."""

    def __init__(self, *, store: Store, log: Log, timetable: Timetable) -> None:
        super().__init__(store=store, name="scheduler", log=log)
        self._timetable = timetable

    def run_once(self) -> list[Fired]:
        return self._timetable.turn()

    def patience_s(self, every_s: float) -> float:
        return self._timetable.patience_s(every_s)
