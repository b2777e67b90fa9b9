"""The base of watchdog, manager and scheduler: a leased agent without a role, and a loop that can be stopped."""

from __future__ import annotations

import contextlib
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from farro.errors import AgentLost, FarroError, SyncFailed, TryAgain
from farro.host import waiting
from farro.log.structured import Log
from farro.store.port import Agent, Store

_TROUBLE_S = 1.0


class Daemon(ABC):
    """A service loop. `run_once` does one turn; `run` repeats it."""

    def __init__(self, *, store: Store, name: str, log: Log) -> None:
        self._store = store
        self._name = name
        self._log = log
        self._agent: Agent | None = None
        self._stopped = False
        # Not a threading.Event: its `set` takes a lock that the interrupted `wait` may hold, and a signal handler that
        # waits for its own thread waits for ever.
        self._flag = waiting.Flag()

    @abstractmethod
    def run_once(self) -> Sequence[Any]:
        """Do one turn and return what it did."""

    def agent(self) -> Agent:
        """Return this daemon's agent; a new one if the last was declared dead."""
        if self._agent is not None:
            try:
                self._store.heartbeat(self._agent)
            except AgentLost:
                self.leave()
        if self._agent is None:
            self._agent = self._store.join(self._name, role=None)
        return self._agent

    def run(self, every_s: float) -> None:
        """Repeat turns until stopped. Errors are logged and tried again: all other services rely on this loop."""
        try:
            while not self._stopped:
                self._safe_turn()
                self._safe_rest(every_s)
        finally:
            self.leave()

    def _safe_rest(self, every_s: float) -> None:
        try:
            self.rest(self.patience_s(every_s))
        except (FarroError, OSError) as error:  # a server that is away: what waits there comes back with it
            self._log("error", f"{type(error).__name__}: {error}", {"event": {"type": "keeper_trouble"}})
            Daemon.rest(self, min(every_s, _TROUBLE_S))

    def rest(self, seconds: float) -> None:
        """Sleep between two turns, or until stopped."""
        waiting.readable([self._flag.fd], seconds)

    def patience_s(self, every_s: float) -> float:
        """Return how long to sleep after a turn, at most `every_s`."""
        return every_s

    def _safe_turn(self) -> None:
        try:
            self.run_once()
        except SyncFailed:
            raise  # a sync failed: recovery starts anew after a restart (R7)
        except (FarroError, OSError) as error:
            self._log("error", f"{type(error).__name__}: {error}", {"event": {"type": "keeper_trouble"}})
            self.leave()
        except Exception as error:  # noqa: BLE001 - the edge of the loop: a bug in one turn must not end recovery
            fields = {"event": {"type": "keeper_trouble"}, "traceback": traceback.format_exc()}
            self._log("error", f"{type(error).__name__}: {error}", fields)
            self.leave()

    def stop(self) -> None:
        """End the loop after its present turn. From any thread or signal handler."""
        self._stopped = True
        self._flag.set()

    def leave(self) -> None:
        agent, self._agent = self._agent, None
        if agent is not None:
            with contextlib.suppress(TryAgain):  # the store is unreachable: the lease ends by itself
                self._store.leave(agent)
