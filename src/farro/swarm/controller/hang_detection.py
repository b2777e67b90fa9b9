"""Whether a component that lives hangs: how long it had the chance to say something, and did not.

Decided in docs/decisions/silence-counts-only-while-observed.md.

Asking its health endpoint lives in watching, ending it in hands.
"""

from __future__ import annotations

import time

from farro.swarm.plan import Bee, Timeouts
from farro.swarm.status import TTL_S, Seen

LAPSE_S = 10.0  # between two turns at most, or nobody was there


class Attention:
    """Since when nothing kept its controller from hearing. A machine that stood still, a controller that was stopped, a
    bus that was away: then the silence of others is our own.
    [test_what_a_controller_slept_through_is_nobody_elses_silence]"""

    def __init__(self) -> None:
        self._turned_s = self.since_s = time.monotonic()

    def turn(self, now_s: float, limits: Timeouts) -> None:
        """To be called at every turn: a long time since the last one was a lapse."""
        if now_s - self._turned_s > min(LAPSE_S, limits.silent / 2):
            self.since_s = now_s
        self._turned_s = now_s

    def lapse(self) -> None:
        """The bus did not carry something."""
        self.since_s = time.monotonic()

    def asks(self, seen: Seen, limits: Timeouts, now_s: float) -> bool:
        """Whether its word is so old that it is asked for another."""
        return not seen.fresh(now_s, min(TTL_S, limits.silent / 2))

    def hangs(self, seen: Seen, bee: Bee, limits: Timeouts, now_s: float) -> bool:
        """One that was never heard of, and so cannot be asked, has the time to come up, too."""
        if bee.restart == "never" or seen.hung is not None:
            return False
        limit_s = limits.silent if seen.word_s is not None else max(limits.silent, limits.provision)
        return seen.silence_s(now_s, self.since_s) >= limit_s
