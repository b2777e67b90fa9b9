"""Report the paused accounts of providers with the jobs that wait for them, and resume an account."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from farro.config.settings import Settings
from farro.documents import did_you_mean
from farro.errors import IllegalTransition, InputError, TryAgain, UnknownJob
from farro.host.clock import Clock
from farro.jobs.moves import awaited_accounts
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.queue.jobs import operator
from farro.store.accounts import AccountPause
from farro.store.port import JobView, Store

MOST_JOBS = 1000  # of a role's queue that are read to count those that wait
_LATE_S = 0.5  # a worker that saw the pause just before it ended has released its job by then


@dataclass(frozen=True, kw_only=True, slots=True)
class PausedAccount:
    """An account that is paused now."""

    pause: AccountPause
    jobs: int  # that wait for it, among the first MOST_JOBS of each queue

    @property
    def resume_command(self) -> str:
        return f"farro provider resume {self.pause.account}"

    @property
    def line(self) -> str:
        waiting = "no job waits" if not self.jobs else "1 job waits" if self.jobs == 1 else f"{self.jobs} jobs wait"
        return f"{self.pause.words()}; {waiting}"

    def to_json(self) -> dict[str, Any]:
        pause = self.pause
        said = {name: getattr(pause, name) for name in ("account", "kind", "reason", "since", "until")}
        return {**said, "jobs": self.jobs, "fix": self.resume_command}


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumedAccount:
    """The result of resuming an account."""

    account: str
    was_paused: bool
    jobs: tuple[str, ...]  # that waited for it, and start now


def paused_accounts(store: Store) -> list[PausedAccount]:
    """Return the accounts that are paused. Where none is, no job is read."""
    return _with_jobs(store, store.accounts().paused())


def accounts_for_person(store: Store, now: datetime) -> list[PausedAccount]:
    """Return the paused accounts that need a person: refused ones, and those whose reset is unknown for a day."""
    return _with_jobs(store, [pause for pause in store.accounts().paused() if pause.needs_person(now)])


def _with_jobs(store: Store, paused: Sequence[AccountPause]) -> list[PausedAccount]:
    counts: Counter[str] = Counter()
    if paused:
        counts.update(account for view in _waiting(store, MOST_JOBS) for account in awaited_accounts(view.lifecycle))
    return [PausedAccount(pause=pause, jobs=counts[pause.account]) for pause in paused]


def named_account(store: Store, settings: Settings, name: str) -> str:
    """Return the account that `name` means: a provider's, a configured one, or a paused one. Raises InputError."""
    if name in settings.providers:
        return settings.account_of(name)
    known = {settings.account_of(each) for each in settings.providers}
    if name in known or name in (one.account for one in store.accounts().paused()):
        return name
    there = [*settings.providers, *sorted(known - set(settings.providers))]
    hint = did_you_mean(name, there, f"known: {', '.join(there) or 'none'}")
    raise InputError(f"{name[:60]} is neither a provider nor an account here; {hint}")


def resume(store: Store, account: str, *, by: str, clock: Clock) -> ResumedAccount:
    """Let an account be called again, and start the jobs that wait for it. Safe to repeat after a crash."""
    was_paused = store.accounts().resume(account)
    started = _start(store, account, by)
    if store.count().get(Status.IN_PROGRESS, 0):
        clock.sleep(_LATE_S)
        started += _start(store, account, by)
    if was_paused or started:
        store.note("account_resumed", actor=by, account=account, jobs=len(started))
    return ResumedAccount(account=account, was_paused=was_paused, jobs=tuple(started))


def _start(store: Store, account: str, by: str) -> list[str]:
    waiting = [view.job_id for view in _waiting(store, None) if account in awaited_accounts(view.lifecycle)]
    started: list[str] = []
    if waiting:
        with operator(store, by) as agent:
            for job_id in waiting:
                try:
                    store.start_now(agent, job_id, note=f"account {account} was resumed")
                except (IllegalTransition, TryAgain, UnknownJob):  # it was claimed, killed or moved meanwhile
                    continue
                started.append(job_id)
    return started


def _waiting(store: Store, most: int | None) -> Iterator[JobView]:
    """Yield the queued jobs that wait for an account, of each role the first `most`."""
    for role in store.roles():
        found: Sequence[JobView] = store.list(roles=[role], statuses=[Status.QUEUED], limit=most)
        yield from (view for view in found if awaited_accounts(view.lifecycle))
