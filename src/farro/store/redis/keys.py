"""The names of the keys that Python itself asks for. What lies in each is said at the head of scripts/prelude.lua.

Scripts build their own names from the same prefix.
"""

from __future__ import annotations

from farro.jobs.states import Status


class Keys:
    """All of one name share a hash tag: one slot, so that a script may touch any of them."""

    def __init__(self, name: str) -> None:
        self.prefix = f"farro:{{{name}}}:"
        self.log = f"{self.prefix}log"
        self.names = f"{self.prefix}names"
        self.stale = f"{self.prefix}stale"
        self.open = f"{self.prefix}open"
        self.marked = f"{self.prefix}marked"
        self.paused = f"{self.prefix}paused"

    def job(self, job_id: str) -> str:
        return f"{self.prefix}job:{job_id}"

    def files(self, job_id: str) -> str:
        return f"{self.prefix}files:{job_id}"

    def feed(self, role: str) -> str:
        return f"{self.prefix}feed:{role}"

    def bell(self, role: str) -> str:
        return f"{self.prefix}bell:{role}"

    def due(self, role: str) -> str:
        return f"{self.prefix}due:{role}"

    def waits(self, role: str) -> str:
        return f"{self.prefix}waits:{role}"

    def held(self, agent_id: str) -> str:
        return f"{self.prefix}held:{agent_id}"

    def index(self, role: str, status: Status) -> str:
        return f"{self.prefix}at:{role}:{status}"
