"""The Ledger port: what agents' calls cost. Guarantees in words; tests/contracts/test_ledger.py shows them.

The adapter lives in stores/files/ledger.py; what a model costs lives in providers.prices; who calls lives in
execution.agents.

- `reserve` returns after the call is on the disk with the most that it may cost: from then on it counts, whatever
  becomes of this process. A call whose price nobody knows counts as unknown, never as nothing.
- `settle` replaces that by what it did cost, once, whoever comes and however late; it counts for the day on which the
  call was reserved. A call that was never settled, or of which nobody could say what it did cost, counts as the most
  that it might have cost, and is shown as estimated.
- Many processes may reserve at once: a budget is never exceeded by two that looked at the same time.
- The cost of a reserve does not grow with the history, only with the calls of the day.
- What cannot be read counts as unknown. Where a budget is set that unknown calls belong to, a call is refused.
- Forgetting a job (prune) takes nothing from its days.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Literal, Protocol

from farro.lazy_dataclass import dataclass

CallEnd = Literal["answered", "failed", "not_charged"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Tokens of one call, as the provider counts them. `input_tokens` includes those read from or put into a cache."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def to_json(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class Charge:
    """A call that is about to be made."""

    job_id: str
    attempt: int
    role: str
    step: str
    number: int  # of the call within its step's attempt, from 1
    provider: str
    model: str | None
    request_sha256: str
    most_usd: Decimal | None  # None: nobody knows
    lower: str = "lower max_output_tokens"  # what makes it less, for who is refused; not kept


@dataclass(frozen=True, kw_only=True, slots=True)
class CallRecord:
    """One call, as the ledger has it."""

    id: str
    at: str
    charge: Charge
    end: CallEnd | None  # None: not settled
    usage: Usage | None
    cost_usd: Decimal | None  # None while unsettled, and where nobody knows

    @property
    def counts_usd(self) -> Decimal | None:
        """What it counts as against budgets; None: unknown. Where nobody said what it did cost, the most it might."""
        if self.end == "not_charged":
            return Decimal(0)
        return self.charge.most_usd if self.end is None or self.cost_usd is None else self.cost_usd

    @property
    def estimated(self) -> bool:
        """Whether it counts as the most that it might have cost: it was not settled, or nobody said its cost."""
        return self.end is None or (self.end != "not_charged" and self.cost_usd is None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Budgets:
    """The most that may be spent, in US dollars; None: any amount. `role` and `day` are per UTC day."""

    job_usd: Decimal | None = None
    role_usd: Decimal | None = None
    day_usd: Decimal | None = None


class Ledger(Protocol):
    def reserve(self, charge: Charge, budgets: Budgets) -> str:
        """The call's id. BudgetExceeded: it would exceed one of the budgets, or one is set and nobody knows what the
        call may cost; then nothing was written."""

    def settle(self, call_id: str, *, end: CallEnd, usage: Usage | None, cost_usd: Decimal | None) -> None:
        """What came of it. Settling again changes nothing. Damaged: no such call was reserved."""

    def of_job(self, job_id: str) -> Sequence[CallRecord]:
        """Every call of that job, in order."""

    def of_day(self, day: str) -> Sequence[CallRecord]:
        """Every call that was reserved on that UTC day, YYYY-MM-DD, in order."""

    def days(self) -> Sequence[str]:
        """The UTC days that have calls, the oldest first."""


class Prices(Protocol):
    def cost_usd(self, provider: str, model: str | None, usage: Usage) -> Decimal | None:
        """What these tokens cost; None: not known."""

    def most_usd(
        self, provider: str, model: str | None, *, prompt_bytes: int, max_output_tokens: int
    ) -> Decimal | None:
        """The most that such a call may cost; None: not known."""
