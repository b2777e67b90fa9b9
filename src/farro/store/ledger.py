"""The Ledger port: the cost of agents' calls to models. tests/contracts/test_ledger.py tests the guarantees.

- `reserve` returns after the call is on the disk with its highest possible cost: from then on it counts, whatever
  becomes of this process. A call with an unknown price counts as unknown, never as free.
- `settle` replaces that by the actual cost, once, from any process and however late; it counts for the day on which the
  call was reserved. A call that was never settled, or whose actual cost is unknown, counts with its highest possible
  cost and is shown as estimated.
- Many processes may reserve at once: two that check a budget at the same time never exceed it together.
- The time that a reserve takes does not grow with the history, only with the calls of the day.
- A call that cannot be read counts as unknown. While a budget includes unknown calls, further calls are refused.
- Pruning a job removes nothing from its days.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Literal, Protocol

from farro.documents.constraints import Bounds
from farro.lazy_dataclass import dataclass

Tokens = Annotated[int, Bounds(at_least=0)]
CallEnd = Literal["answered", "failed", "not_charged"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Tokens of one call, as the provider counts them. `input_tokens` includes tokens read from or put into a cache."""

    input_tokens: Tokens
    output_tokens: Tokens
    cache_read_tokens: Tokens = 0
    cache_write_tokens: Tokens = 0

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
    most_usd: Decimal | None  # highest possible cost; None: unknown
    lower: str = "lower max_output_tokens"  # advice for reducing the cost, for the refusal; not stored


@dataclass(frozen=True, kw_only=True, slots=True)
class CallRecord:
    """One call in the ledger."""

    id: str
    at: str
    charge: Charge
    end: CallEnd | None  # None: not settled
    usage: Usage | None
    cost_usd: Decimal | None  # None while unsettled, or unknown

    @property
    def counts_usd(self) -> Decimal | None:
        """Return the amount that counts against budgets: the actual cost, else the highest possible. None: unknown."""
        if self.end == "not_charged":
            return Decimal(0)
        return self.charge.most_usd if self.end is None or self.cost_usd is None else self.cost_usd

    @property
    def estimated(self) -> bool:
        """Return whether it counts with its highest possible cost: it was not settled, or its actual cost is
        unknown."""
        return self.end is None or (self.end != "not_charged" and self.cost_usd is None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Budgets:
    """Spending limits in US dollars; None: no limit. `role_usd` and `day_usd` are per UTC day."""

    job_usd: Decimal | None = None
    role_usd: Decimal | None = None
    day_usd: Decimal | None = None


class Ledger(Protocol):
    def reserve(self, charge: Charge, budgets: Budgets) -> str:
        """Record a call before it is made, and return its id. BudgetExceeded: it might exceed a budget, or a budget is
        set and the call's cost is unknown; then nothing was written."""

    def settle(self, call_id: str, *, end: CallEnd, usage: Usage | None, cost_usd: Decimal | None) -> None:
        """Record how the call ended and what it cost. Settling again changes nothing. Damaged: no such call was
        reserved."""

    def of_job(self, job_id: str) -> Sequence[CallRecord]:
        """Return every call of that job, in order."""

    def of_day(self, day: str) -> Sequence[CallRecord]:
        """Return every call that was reserved on that UTC day, YYYY-MM-DD, in order."""

    def days(self) -> Sequence[str]:
        """Return the UTC days that have calls, the oldest first."""


class Prices(Protocol):
    def cost_usd(self, provider: str, model: str | None, usage: Usage) -> Decimal | None:
        """Return the cost of these tokens; None: unknown."""

    def most_usd(
        self, provider: str, model: str | None, *, prompt_bytes: int, max_output_tokens: int
    ) -> Decimal | None:
        """Return the highest possible cost of such a call; None: unknown."""
