"""Decide whether a process that ended is started again: one rule for the services of `farro up` and the components of
swarms.

- Restart policy `never`: no restart. `on-failure`: only after a failure; an end that no process observed counts as one.
  `always`: after every end.
- The first restart is immediate, the next after one second, two, four, … A process that ended more than `RESTARTS`
  times in a row, each time within `STEADY_S` of its start, is reported as failed and left alone until the next command.
"""

from __future__ import annotations

from typing import Literal

from farro.lazy_dataclass import dataclass

RESTARTS = 5  # in a row, before it counts as failed
FIRST_S = 1.0  # before the second restart
LONGEST_S = 30.0
STEADY_S = 60.0  # a process that lived this long does not keep dying

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
