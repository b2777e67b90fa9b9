"""Decide whether a component that ended is started again, and whether one that lives hangs.

- Restart policy `never`: no restart. `on-failure`: only after a failure; an end that no process observed counts as one.
  `always`: after every end.
- The first restart is immediate, the next after one second, two, four, … A component that ended more than `RESTARTS`
  times in a row, each time within a minute of its start, is reported as failed and left alone until the next command.
- Silence counts only while the controller observed (docs/decisions/silence-counts-only-while-observed.md).
"""

from __future__ import annotations

import time
from typing import Literal

from farro.lazy_dataclass import dataclass
from farro.swarm.plan import Bee, Timeouts
from farro.swarm.status import TTL_S, Observation

RESTARTS = 5  # in a row, before it counts as failed
FIRST_S = 1.0  # before the second restart
LONGEST_S = 30.0

Policy = Literal["always", "on-failure", "never"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RestartDecision:
    """`launch` now, `wait`, or leave it as `finished` (it ended well) or `failed`, with the reason."""

    what: Literal["launch", "wait", "finished", "failed"]
    why: str | None = None


def decide(policy: Policy, *, starts: int, exit_code: int | None, ended_s: float, now_s: float) -> RestartDecision:
    """Decide about a component that was started `starts` times in a row and ended at `ended_s`."""
    how = f"ended {describe_exit(exit_code)}"
    if policy == "on-failure" and exit_code == 0:
        return RestartDecision(what="finished", why=f"{how}, and restarts on failure only")
    if policy == "never":
        return RestartDecision(what="finished" if exit_code == 0 else "failed", why=f"{how}, and restarts never")
    if starts > RESTARTS:
        return RestartDecision(what="failed", why=f"{how}, and was started {starts} times in a row")
    return RestartDecision(what="launch" if now_s - ended_s >= pause_s(starts) else "wait")


def pause_s(starts: int) -> float:
    """Return the pause between the end of a component and its next start."""
    return 0.0 if starts <= 1 else min(FIRST_S * 2.0 ** min(starts - 2, 30), LONGEST_S)


def describe_exit(exit_code: int | None) -> str:
    if exit_code is None:
        return "unseen"
    return f"by signal {-exit_code}" if exit_code < 0 else f"with exit code {exit_code}"


# --- components that hang ---

LAPSE_S = 10.0  # a longer time between two turns means that the controller did not observe


class HangDetector:
    """Detect components that live but report nothing.

    `since_s` is the time since which the controller has observed without a gap. After a gap (a suspended machine, a
    stopped controller, an unreachable bus) the silence of components does not count.
    [test_time_without_an_observing_controller_is_no_silence]
    """

    def __init__(self) -> None:
        self._turned_s = self.since_s = time.monotonic()

    def turn(self, now_s: float, limits: Timeouts) -> None:
        """Note a turn of the controller; a long time since the last one was a gap."""
        if now_s - self._turned_s > min(LAPSE_S, limits.silent / 2):
            self.since_s = now_s
        self._turned_s = now_s

    def bus_failed(self) -> None:
        """Note that the bus did not carry a message: observation starts again."""
        self.since_s = time.monotonic()

    def needs_poll(self, seen: Observation, limits: Timeouts, now_s: float) -> bool:
        """Return whether the last report is so old that the component's health endpoint is asked."""
        return not seen.fresh(now_s, min(TTL_S, limits.silent / 2))

    def hangs(self, seen: Observation, bee: Bee, limits: Timeouts, now_s: float) -> bool:
        """Return whether a component hangs. One that never reported also has the time to come up."""
        if bee.restart == "never" or seen.hung is not None:
            return False
        limit_s = limits.silent if seen.reported_s is not None else max(limits.silent, limits.provision)
        return seen.silence_s(now_s, self.since_s) >= limit_s
