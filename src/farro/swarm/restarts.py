"""Whether a component that ended is started again, and when: its plan's policy, and more and more patience.

Starting it lives in the services; a limit on what it uses lives in the runtime.

- `never`: not at all. `on-failure`: when it failed; an end that nobody saw counts as a failure. `always`: in any case.
- The first time at once; then after one second, two, four, … One that ended more than `RESTARTS` times in a row, each
  within a minute of its start, is told as failed and left alone until somebody asks again.
"""

from __future__ import annotations

from typing import Literal

from farro.lazy_dataclass import dataclass

RESTARTS = 5  # in a row, before it counts as failed
FIRST_S = 1.0  # before the second time
LONGEST_S = 30.0

Policy = Literal["always", "on-failure", "never"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """`launch` it now, `wait`, or it has `finished` (well) or `failed`; then `why`."""

    what: Literal["launch", "wait", "finished", "failed"]
    why: str | None = None


def judge(policy: Policy, *, starts: int, exit_code: int | None, ended_s: float, now_s: float) -> Judgement:
    """Of one that was started `starts` times in a row and ended at `ended_s`."""
    how = f"ended {told(exit_code)}"
    if policy == "on-failure" and exit_code == 0:
        return Judgement(what="finished", why=f"{how}, and restarts on failure only")
    if policy == "never":
        return Judgement(what="finished" if exit_code == 0 else "failed", why=f"{how}, and restarts never")
    if starts > RESTARTS:
        return Judgement(what="failed", why=f"{how}, and was started {starts} times in a row")
    return Judgement(what="launch" if now_s - ended_s >= pause_s(starts) else "wait")


def pause_s(starts: int) -> float:
    """How long it is left alone after it ended."""
    return 0.0 if starts <= 1 else min(FIRST_S * 2.0 ** min(starts - 2, 30), LONGEST_S)


def told(exit_code: int | None) -> str:
    """How it ended, for people."""
    if exit_code is None:
        return "unseen"
    return f"by signal {-exit_code}" if exit_code < 0 else f"with exit code {exit_code}"
