"""What a store can besides, to which each trip takes time: a claim rides with what goes there anyway.

The Store port itself, and what is done for several jobs at once (Bulk), live in store.
Why: docs/decisions/small-jobs-go-in-batches.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from farro.errors import Lost
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Outcome
from farro.store.port import Agent, Bulk, Claim


@runtime_checkable
class OneTrip(Bulk, Protocol):
    """Each job is as safe as with the calls that do one thing."""

    def claim_next(self, agent: Agent, limit: int, timeout_s: float) -> list[Claim]:
        """As `claim_some`, but where there is nothing it waits up to `timeout_s`, or until `wake`. Claims once more at
        its end, whatever ended it. A job that falls due is no later for it."""

    def commit_and_claim(
        self, agent: Agent, ended: Sequence[tuple[Claim, Outcome]], limit: int
    ) -> tuple[list[Lifecycle | Lost], list[Claim]]:
        """As `commit_some` of this agent's own, then `claim_some`. What was committed is told in any case."""
