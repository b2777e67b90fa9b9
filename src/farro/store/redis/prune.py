"""Removing finished jobs from the Redis store: each with its id, its names and its result, in one step.

Which jobs, and how slowly, is decided in operations.prune.
"""

from __future__ import annotations

from collections.abc import Sequence

from farro.jobs import ids
from farro.store.port import Agent
from farro.store.redis.context import Ground, agent_lost


def remove(ground: Ground, agent: Agent, job_ids: Sequence[str]) -> list[str]:
    """Those that were removed; what is not final, or gone already, is left out. A crash leaves each whole or gone."""
    removed = []
    for job_id in job_ids:
        answer = ground.server.run(ground.scripts.remove, ground.time(), agent.id, ids.check_job_id(job_id))
        if answer == b"lost":
            raise agent_lost(agent)
        if answer == b"ok":
            removed.append(job_id)
            ground.workspace.forget(job_id)
    return removed
