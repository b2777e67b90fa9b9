"""Calls whose request or answer is lost: the store repeats them, and nothing is done twice or left out.

Each call of a whole job life is cut once before the server has it, and once after it ran.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farro.store.redis import RedisStore
from redis_rig import Proxy, Rig, life, proxied
from servers import RedisServer


def state(store: RedisStore) -> list[Any]:
    """Return what is left: each job's history, the names, and the common log."""
    jobs = [
        (
            "" if view.job_id.startswith("job-") else view.job_id,
            view.status,
            view.lifecycle.attempt,
            [hop.reason for hop in view.lifecycle.hops],
        )
        for view in store.list()
    ]
    log = sorted(line["event"] for line in store.audit_lines())
    return [sorted(jobs), dict(store.names()), log, store.agents(), store.count()]


def played(rig: Rig, proxy: Proxy) -> tuple[list[Any], list[Any]]:
    store = rig.store(url=proxy.url, beat_s=0.0)
    answers = life(store)
    proxy.cut = -1
    return answers, state(store)


@pytest.mark.parametrize("after", [False, True], ids=["before the server has it", "after it did it"])
def test_a_call_with_a_lost_answer_is_repeated_safely(
    redis_server: RedisServer, shm: Path, after: bool, figure: Callable[..., None]
) -> None:
    with proxied(redis_server.port) as proxy:
        rig = Rig(shm / "whole", redis_server.url)
        whole = played(rig, proxy)
        rig.close()
    requests = len(proxy.requests)
    cuts = 0
    for cut in range(1000):
        with proxied(redis_server.port) as proxy:
            proxy.cut, proxy.after = cut, after
            rig = Rig(shm / str(cut), redis_server.url)
            again = played(rig, proxy)
            rig.close()
        if not proxy.cuts:
            break
        cuts += 1
        assert again == whole, f"request {cut} ({proxy.requests[cut]!r})"
    assert cuts > 25
    figure("redis: requests lost before or after the server did them", 2 * cuts, "of each life's")
    assert requests > cuts - 5
