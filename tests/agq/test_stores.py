"""The server over a Redis store: it assumes no folders."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator

import pytest
import redis

from agq.stage import Front, job, result
from servers import RedisServer
from support import eventually


@pytest.fixture
def over_redis(make_front: Callable[..., Front], redis_server: RedisServer) -> Iterator[Front]:
    name = f"resp-{uuid.uuid4().hex[:8]}"
    return make_front(config_of={"store": redis_server.url, "redis": {"name": name, "lease_s": 5}})


def test_a_job_runs_over_a_redis_store(over_redis: Front) -> None:
    client = over_redis.client(protocol=3)
    assert client.lpush("queue:ready", job("a"), job("b")) == 2
    assert client.llen("queue:ready") == 2
    assert [json.loads(text)["id"] for text in client.lrange("queue:ready", 0, -1)] == ["a", "b"]
    with pytest.raises(redis.ResponseError, match="invalid job: steps: is required"):
        client.lpush("queue:ready", '{"id": "x", "plan_id": "y"}')
    assert json.loads(client.brpop("queue:ready", 5)[1])["id"] == "a"
    assert client.llen("queue:ready") == 1
    assert client.set("job:a:result", result("a", stdout="hello\n")) is True
    assert client.get("job:a:status") == "succeeded"
    assert client.get("job:a:stdout") == "hello\n"
    assert json.loads(client.get("job:a:result"))["step_results"][0]["stdout"] == "hello\n"
    assert client.hget("job:a", "plan_id") == "plan-of-a"
    assert json.loads(client.execute_command("JOB.GET", "a"))["prompt"]["id"] == "a"
    assert client.execute_command("JOB.CANCEL", "b") == "killed"


def test_waiting_and_dying_clients_work_over_a_redis_store(over_redis: Front) -> None:
    dying, other = over_redis.client(), over_redis.client()
    other.lpush("queue:ready", job("a"))
    assert dying.brpop("queue:ready", 20) is not None
    dying.close()
    assert json.loads(other.brpop("queue:ready", 20)[1])["id"] == "a"
    with pytest.raises(redis.ResponseError, match="claim lost"):
        over_redis.client().set("job:a:result", result("a"))
    assert other.set("job:a:result", result("a")) is True


def test_updates_come_over_a_redis_store(over_redis: Front) -> None:
    client, listener = over_redis.client(), over_redis.client()
    with listener.pubsub() as channel:
        channel.subscribe("job:updates")
        eventually(lambda: None in over_redis.server._feeds, "the feed has started")
        seen: list[str] = []

        def received(update: str) -> bool:
            message = channel.get_message(timeout=0.2)
            if message is not None and message["type"] == "message":
                data = json.loads(message["data"])
                seen.append(f"{data['job_id']} {data['plan_id']} {data['status']}")
            return update in seen

        client.lpush("queue:ready", job("a"))
        client.rpop("queue:ready")
        client.set("job:a:result", result("a"))
        eventually(lambda: received("a plan-of-a succeeded"), "the end is published")
