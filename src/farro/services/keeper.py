"""What watchdog and manager share: a leased agent without a role, and a loop that can be stopped.

What a turn does lives in each of them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from farro.errors import AgentLost, FarroError
from farro.observe.log import Log
from farro.ports.store import Agent, Store


class Keeper:
    def __init__(self, *, store: Store, name: str, log: Log) -> None:
        self._store = store
        self._name = name
        self._log = log
        self._agent: Agent | None = None
        self._stopped = threading.Event()

    def agent(self) -> Agent:
        """This keeper's agent; a new one when the last was declared dead."""
        if self._agent is not None:
            try:
                self._store.heartbeat(self._agent)
            except AgentLost:
                self.leave()
        if self._agent is None:
            self._agent = self._store.join(self._name, role=None)
        return self._agent

    def run_once(self) -> Sequence[Any]:
        """One turn; answers what it did."""
        raise AssertionError("each keeper has its own turn")

    def run(self, every_s: float) -> None:
        """Turn until stopped. Trouble is logged and tried again: this loop is what everyone else relies on."""
        try:
            while not self._stopped.is_set():
                try:
                    self.run_once()
                except (FarroError, OSError) as error:
                    self._log("error", f"{type(error).__name__}: {error}", {"event": {"type": "keeper_trouble"}})
                self._stopped.wait(every_s)
        finally:
            self.leave()

    def stop(self) -> None:
        self._stopped.set()

    def leave(self) -> None:
        agent, self._agent = self._agent, None
        if agent is not None:
            self._store.leave(agent)
