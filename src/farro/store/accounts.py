"""The Accounts port: the accounts of providers that are paused, why, and until when.

An account is what a limit or a refusal applies to: a key or a login. Providers with the same account share its pause.
Every process that uses the store sees the pauses. Each adapter passes tests/contracts/test_accounts.py.

- `pause` returns once the pause is as durable as the store's jobs. A crash during it leaves the old state or the new
  one. [test_a_pause_is_seen_by_others, tests/crash/test_accounts.py]
- Two processes that report one limit make one pause; the later reset wins. A pause that waits for a person is never
  shortened. [test_of_two_limits_the_later_reset_wins, test_a_refusal_waits_for_a_person]
- While the reset is unknown, pauses take 5, 10, 20, 40, 60, 60 … minutes, until a call is answered or the reset is
  known. [test_pauses_grow_while_the_reset_is_unknown]
- On the machine that recorded it a pause is measured by the clock that never jumps. Elsewhere, and after a reboot, the
  wall clock decides; a clock that runs before the pause's beginning ends it.
  [test_a_jump_of_the_clock_neither_ends_a_pause_nor_extends_it, test_no_pause_outlives_a_reboot_with_a_wrong_clock]
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Literal, Protocol

from farro.errors import TryAgain
from farro.host import process_table
from farro.host.clock import Clock
from farro.jobs.retry import Uniform
from farro.jobs.times import in_words, parse_timestamp, timestamp
from farro.lazy_dataclass import dataclass, replace

PauseKind = Literal["limited", "refused"]

FIRST_S, LONGEST_S = 300.0, 3600.0  # the first and the longest pause while the reset is unknown
ASK_S = 86_400.0  # a limit whose reset stays unknown for so long is a question to a person
_JITTER_S, _JITTER = 30.0, 0.1  # a pause is longer by up to this, and by up to this share
_SLACK_S = 60.0  # how much clocks of machines may differ
_TRIES = 100  # each lost try means that another process changed the account


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountPause:
    """The last pause of an account. `left_s` is from the time at which it was read."""

    account: str
    kind: PauseKind
    reason: str  # what the provider said
    since: str  # when the trouble began; pauses with an unknown reset that follow each other have one beginning
    at: str  # when this pause began
    until: str | None  # None: a person resumes the account
    tries: int = 0  # pauses in a row whose reset was unknown
    boot_id: str = ""  # of the machine that recorded it
    ends_boot_s: float = 0.0  # `until` on the clock of that boot
    left_s: float | None = None  # None: until a person resumes it; 0: it is over

    @property
    def holds(self) -> bool:
        return self.left_s is None or self.left_s > 0

    def needs_person(self, now: datetime) -> bool:
        """Return whether only a person can help, or must be asked after a day of unknown resets."""
        lasted_s = (now - parse_timestamp(self.since)).total_seconds()
        return self.until is None or (self.tries > 0 and lasted_s >= ASK_S)

    def words(self) -> str:
        """Describe the pause in one sentence."""
        if self.until is None:
            return f"account {self.account} is refused since {self.at}: {self.reason}"
        unknown = ", and the provider does not say when it resets" if self.tries else ""
        left = f" (in {in_words(self.left_s or 0.0)})"
        return f"account {self.account} is limited until {self.until}{left}{unknown}: {self.reason}"


class Accounts(Protocol):
    def pause(self, account: str, *, kind: PauseKind, reason: str, wait_s: float | None = None) -> AccountPause:
        """Pause an account and return the pause that holds then. A limit lasts `wait_s`, with jitter; None: the reset
        is unknown. A refusal lasts until `resume`."""

    def find(self, account: str) -> AccountPause | None:
        """Return the last pause of an account, which may be over. None: there was none since it last answered."""

    def resume(self, account: str, *, only: AccountPause | None = None) -> bool:
        """Remove the account's pause; with `only`, not if another one has replaced it. False: nothing was removed."""

    def paused(self) -> Sequence[AccountPause]:
        """Return the pauses that hold, sorted by account."""


class StoredAccounts(Accounts, Protocol):
    """The rules of the port over records that are compared and swapped."""

    clock: Clock
    uniform: Uniform
    boot_id: str

    @abstractmethod
    def load(self) -> Mapping[str, str]:
        """Return the record of each account."""

    @abstractmethod
    def swap(self, account: str, before: str | None, after: str | None) -> bool:
        """Replace the account's record by `after`, durably and in one step. False: it is not `before` any more."""

    def now(self) -> datetime:
        return self.clock.now()

    def pause(self, account: str, *, kind: PauseKind, reason: str, wait_s: float | None = None) -> AccountPause:
        for _ in range(_TRIES):
            before = self.load().get(account)
            seen = None if before is None else self._read(account, before)
            after = self._next(account, seen, kind, reason, wait_s)
            if after is seen or self.swap(account, before, json.dumps(asdict(after), ensure_ascii=False)):
                return after
        raise TryAgain(f"account {account} is changed by others again and again; try again in a moment")

    def find(self, account: str) -> AccountPause | None:
        text = self.load().get(account)
        return None if text is None else self._read(account, text)

    def resume(self, account: str, *, only: AccountPause | None = None) -> bool:
        text = self.load().get(account)
        if text is None or (only is not None and _unread(self._read(account, text)) != _unread(only)):
            return False
        return self.swap(account, text, None)

    def paused(self) -> list[AccountPause]:
        found = (self._read(account, text) for account, text in sorted(self.load().items()))
        return [one for one in found if one is not None and one.holds]

    def _next(
        self, account: str, seen: AccountPause | None, kind: PauseKind, reason: str, wait_s: float | None
    ) -> AccountPause:
        """Return the pause after another report; `seen` itself where it stays."""
        holds = seen is not None and seen.holds
        if seen is not None and holds:
            longer = seen.left_s is None or (kind == "limited" and seen.left_s >= (wait_s or 0.0))
            if longer:
                return seen
        now = self.now()
        at, tries, since = timestamp(now), 0, timestamp(now)
        if kind == "refused":
            wait_s = None
        elif wait_s is None:
            tries = 1
            if seen is not None and seen.tries and _is_recent(seen, now):
                tries, since = seen.tries + 1, seen.since
            wait_s = min(FIRST_S * 2.0 ** min(tries - 1, 10), LONGEST_S)
        elif seen is not None and holds:
            since = seen.since
        if wait_s is not None:
            wait_s = max(wait_s, 0.0) + jitter_s(wait_s, self.uniform)
        return AccountPause(
            account=account,
            kind=kind,
            reason=reason,
            since=since,
            at=at,
            until=None if wait_s is None else timestamp(now + timedelta(seconds=wait_s)),
            tries=tries,
            boot_id=self.boot_id,
            ends_boot_s=self.clock.boottime_s() + (wait_s or 0.0),
            left_s=wait_s,
        )

    def _read(self, account: str, text: str) -> AccountPause | None:
        """Return the pause of a record. None: it cannot be read; then the next call finds the limit again."""
        try:
            record = AccountPause(**{**json.loads(text), "account": account, "left_s": None})
            return replace(record, left_s=self._left_s(record))
        except (ValueError, TypeError, RecursionError):
            return None

    def _left_s(self, record: AccountPause) -> float | None:
        if record.until is None:
            return None
        if record.boot_id and record.boot_id == self.boot_id:
            return max(0.0, record.ends_boot_s - self.clock.boottime_s())
        now, until = self.now(), parse_timestamp(record.until)
        before = (now - parse_timestamp(record.at)).total_seconds() < -_SLACK_S
        return 0.0 if before else max(0.0, (until - now).total_seconds())


def jitter_s(wait_s: float, uniform: Uniform) -> float:
    """Draw what is added to a wait, so that not every job comes back in the same moment."""
    return uniform(0.0, min(_JITTER_S, max(wait_s, 0.0) * _JITTER))


def _is_recent(seen: AccountPause, now: datetime) -> bool:
    """Return whether a pause ended so shortly ago that another one continues it."""
    return seen.until is not None and now - parse_timestamp(seen.until) < timedelta(seconds=LONGEST_S)


def _unread(pause: AccountPause | None) -> AccountPause | None:
    """Return the pause as it was recorded, whenever it was read."""
    return None if pause is None else replace(pause, left_s=None)


def this_boot() -> str:
    return process_table.boot_id()
