"""Call no paused account, and pause one when a provider says that it is limited or refused.

A limit that resets within MOMENT_S is waited for, and pauses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from farro.agents.providers.port import ProviderTrouble
from farro.config.settings import Settings
from farro.host.clock import Clock
from farro.jobs.moves import LONGEST_WAIT_S
from farro.jobs.outcomes import AccountWait
from farro.jobs.retry import Uniform
from farro.lazy_dataclass import dataclass
from farro.store.accounts import AccountPause, Accounts, PauseKind, jitter_s

MOMENT_S = 10.0
_REASON = 400  # characters that are kept of what a provider said


def reset_wait_s(trouble: ProviderTrouble, now: datetime) -> float | None:
    """Return how long the provider asks its caller to wait; None: it does not say."""
    if trouble.until is not None:
        return max(0.0, (trouble.until - now).total_seconds())
    return trouble.retry_after_s


@dataclass(kw_only=True)
class AccountGate:
    """Stands before the calls of one request. It remembers which accounts kept it from being answered."""

    accounts: Accounts
    settings: Settings
    clock: Clock
    uniform: Uniform
    redact: Callable[[str], str]

    def __post_init__(self) -> None:
        self._seen: dict[str, AccountPause | None] = {}  # before the last call
        self._held: dict[str, AccountPause] = {}

    @property
    def wait(self) -> AccountWait | None:
        """Return the accounts that the job waits for, and for how long. None: none was paused."""
        if not self._held:
            return None
        left = [LONGEST_WAIT_S if pause.left_s is None else pause.left_s for pause in self._held.values()]
        return AccountWait(accounts=tuple(self._held), delay_s=min(left) + jitter_s(min(left), self.uniform))

    def refusal(self, provider: str) -> ProviderTrouble | None:
        """Return why the provider may not be called now; None if it may."""
        account = self.settings.account_of(provider)
        pause = self._seen[account] = self.accounts.find(account)
        if pause is None or not pause.holds:
            return None
        self._held[account] = pause
        message = f"provider {provider} was not called: {pause.words()}"
        return ProviderTrouble(message, kind=pause.kind, retryable=False, charged=False)

    def note_answer(self, provider: str) -> None:
        """Forget the pause that was over when the call began. A newer one of another process stays."""
        account = self.settings.account_of(provider)
        if (seen := self._seen.get(account)) is not None:
            self.accounts.resume(account, only=seen)

    def note_trouble(self, provider: str, trouble: ProviderTrouble) -> None:
        """Pause the account if the provider was given up because of it."""
        wait_s = reset_wait_s(trouble, self.clock.now())
        kind: PauseKind
        if trouble.kind == "refused":
            kind = "refused"
        elif trouble.kind == "limited" and not (trouble.retryable and is_momentary_limit(trouble, wait_s)):
            kind = "limited"
            wait_s = None if is_momentary_limit(trouble, wait_s) else wait_s  # it was over, and is not
        else:
            return
        account = self.settings.account_of(provider)
        reason = self.redact(str(trouble))[:_REASON]
        self._held[account] = self.accounts.pause(account, kind=kind, reason=reason, wait_s=wait_s)


def is_momentary_limit(trouble: ProviderTrouble, wait_s: float | None) -> bool:
    """Return whether this is a limit whose reset is so near that the call waits for it."""
    return trouble.kind == "limited" and wait_s is not None and wait_s <= MOMENT_S


def is_lasting_limit(trouble: ProviderTrouble, wait_s: float | None) -> bool:
    """Return whether this is a limit whose reset is too far away to wait for it in the call."""
    return trouble.kind == "limited" and wait_s is not None and wait_s > MOMENT_S
