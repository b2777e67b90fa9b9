"""Every command, as redis-py sends it and reads its reply."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from agq.stage import Front, command, job, result
from farro.agq.handlers import TABLE
from support import eventually

# fmt: off
ASKED = (
    "HELLO", "AUTH", "CLIENT", "SELECT", "INFO", "COMMAND", "CONFIG", "PING", "MULTI", "EXEC", "DISCARD",
    "SUBSCRIBE", "PSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "DEL", "EXPIRE", "QUIT", "RESET", "LPUSH", "RPUSH",
    "BRPOP", "BLPOP", "RPOP", "LPOP", "BRPOPLPUSH", "BLMOVE", "RPOPLPUSH", "LMOVE", "LREM", "LLEN", "LRANGE", "SET",
    "GET", "EXISTS", "TTL", "HGETALL", "HSET", "PLAN.SUBMIT", "PLAN.LIST", "PLAN.GET", "ACTION.SUBMIT",
    "ACTION.LIST", "ACTION.GET", "JOB.GET", "JOB.LIST", "JOB.CANCEL", "JOB.RETRY", "JOBS.LIST", "WORKERS.LIST",
    "QUEUE.STATS", "KEYS", "SCAN", "TYPE",
)
# fmt: on


def test_every_command_of_the_design_is_there(front: Front) -> None:
    assert {name.encode() for name in ASKED} <= TABLE.keys()
    client = front.client()
    assert client.command_count() == len(TABLE)
    assert set(client.execute_command("COMMAND LIST")) == {name.decode().lower() for name in TABLE}
    raw = front.raw()
    raw.send(command("COMMAND", "INFO", "ping", "nope"))
    assert raw.rest_until(b"$-1\r\n").startswith(b"*2\r\n*6\r\n$4\r\nping\r\n:-1\r\n")
    assert len(client.command()) == len(TABLE)


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_commands_that_clients_send_by_themselves(front: Front, protocol: int) -> None:
    client = front.client(protocol=protocol)
    assert client.ping() is True
    assert client.execute_command("SELECT", 0) in (True, "OK")
    assert client.client_setname("worker-a") is True
    assert client.client_getname() == "worker-a"
    assert client.client_id() >= 1
    assert client.client_info()["name"] == "worker-a"
    assert [each["name"] for each in client.client_list()] == ["worker-a"]
    info = client.info()
    assert (info["redis_version"], info["loading"], info["farro_version"]) == ("7.4.0", 0, "test")
    assert "redis_version" not in client.info("clients")
    assert client.config_get("save") == {}
    for wrong in (("SELECT", "1"), ("CLIENT", "TRACKING", "ON"), ("CONFIG", "SET", "a", "b"), ("HELLO", "9")):
        with pytest.raises(redis.ResponseError):
            client.execute_command(*wrong)
    with pytest.raises(redis.ResponseError, match="unknown command 'FLUSHALL'"):
        client.flushall()
    with pytest.raises(redis.ResponseError, match="wrong number of arguments for 'get' command"):
        client.execute_command("GET")


def test_hello_sets_the_protocol_and_reset_restores_it(front: Front) -> None:
    raw = front.raw()
    raw.send(command("HELLO", "3", "SETNAME", "w"))
    assert raw.line() == b"%7\r\n"
    raw.send(command("RESET") + command("GET", "job:none:result"))
    assert raw.rest_until(b"$-1\r\n").endswith(b"+RESET\r\n$-1\r\n")


def test_jobs_are_pushed_seen_and_popped_in_their_order(front: Front) -> None:
    client = front.client()
    assert client.lpush("queue:ready", job("a")) == 1
    assert client.rpush("queue:ready", job("b"), job("c")) == 3
    client.lpush("queue:ready", job("a"))  # the same job again is one job
    assert client.llen("queue:ready") == 3
    assert client.type("queue:ready") == "list"
    assert [json.loads(text)["id"] for text in client.lrange("queue:ready", 0, -1)] == ["a", "b", "c"]
    assert [json.loads(text)["id"] for text in client.lrange("queue:ready", -2, -2)] == ["b"]
    popped = client.rpop("queue:ready")
    assert json.loads(popped) == json.loads(job("a"))
    assert [json.loads(text)["id"] for text in client.lpop("queue:ready", 5)] == ["b", "c"]
    assert client.rpop("queue:ready") is None
    assert client.rpop("queue:ready", 3) is None
    assert client.llen("queue:ready") == 0
    assert client.exists("queue:ready") == 0
    assert client.llen("queue:processing") == 3
    assert front.status("a") == "in_progress"


def test_a_result_is_posted_and_read_in_every_form(front: Front) -> None:
    client = front.client(protocol=3)
    client.lpush("queue:ready", job("a"))
    client.brpop("queue:ready", 1)
    assert client.get("job:a:status") == "in_progress"
    assert client.get("job:a:result") is None
    assert client.exists("job:a:result", "job:a:status", "job:a", "job:b") == 2
    assert client.set("job:a:result", result("a")) is True
    assert client.set("job:a:result", result("a")) is True, "an answer that was lost is asked for again"
    answer = json.loads(client.get("job:a:result"))
    assert {name: answer[name] for name in ("job_id", "plan_id", "success")} == {
        "job_id": "a",
        "plan_id": "plan-of-a",
        "success": True,
    }
    assert answer["step_results"][0]["stdout"] == "out\n"
    assert client.get("job:a:status") == "succeeded"
    assert client.get("job:a:stdout") == "out\n"
    assert client.get("job:a:stderr") == ""
    fields = client.hgetall("job:a")
    assert (fields["status"], fields["plan_id"], fields["steps"]) == ("succeeded", "plan-of-a", "1")
    assert client.hget("job:a", "status") == "succeeded"
    assert client.ttl("job:a:result") == -1
    assert client.ttl("job:b:result") == -2
    assert client.expire("job:a:result", 10) is False, "results go by `farro prune`, not by themselves"
    assert [client.type(f"job:a{part}") for part in ("", ":result", ":nothing")] == ["hash", "string", "none"]
    with pytest.raises(redis.ResponseError, match="is not a key to delete"):
        client.delete("job:a:result")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.get("job:a")
    assert client.get("anything") is None
    assert client.delete("anything") == 0


def test_a_failure_names_its_step(front: Front) -> None:
    client = front.client()
    client.lpush("queue:ready", job("a"))
    client.rpop("queue:ready")
    client.set("job:a:result", result("a", success=False))
    assert client.hget("job:a", "status") == "failed"
    assert client.hget("job:a", "error") == "step_failed: step 1: exit code 3"
    assert client.get("job:a:stderr") == "no\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "invalid result: line 1 column 2: "),
        ("[]", "invalid result: job: must be an object"),
        ('{"step_results": []}', "invalid result: success: is required"),
        (result("b", plan_id="plan-of-a"), "invalid result: job_id: is not a, the job that this key names"),
        ('{"success": 1}', "invalid result: success: must be true or false"),
        (
            '{"success": true, "plan_id": "plan-of-a", '
            '"step_results": [{"step_number": 1, "exit_code": 1, "success": false}]}',
            "invalid result: step_results[0].success: is false, but the job's own success is true",
        ),
        (
            '{"success": true, "step_results": [{"exit_code": 0, "success": true}]}',
            "step_results[0].step_number: is req",
        ),
    ],
)
def test_a_bad_result_is_refused_and_the_job_stays_with_its_worker(front: Front, text: str, why: str) -> None:
    client = front.client()
    client.lpush("queue:ready", job("a"))
    client.rpop("queue:ready")
    with pytest.raises(redis.ResponseError) as refused:
        client.set("job:a:result", text)
    assert why in str(refused.value)
    assert client.set("job:a:result", result("a")) is True


def test_agw_may_answer_in_three_keys(front: Front) -> None:
    client = front.client()
    client.lpush("queue:ready", job("a"), job("b"))
    client.rpop("queue:ready", 2)
    for job_id, word in (("a", "completed"), ("b", "failed")):
        client.set(f"job:{job_id}:status", "running")
        client.set(f"job:{job_id}:stdout", f"{job_id} said")
        client.set(f"job:{job_id}:stderr", "")
        client.set(f"job:{job_id}:status", word)
    eventually(lambda: client.get("job:a:status") == "succeeded", "a status alone ends a job")
    eventually(lambda: client.get("job:b:status") == "failed", "a status alone ends a job")
    assert client.get("job:a:stdout") == "a said"
    assert client.set("job:a:status", "completed") is True, "said again, it is not wrong"
    with pytest.raises(redis.ResponseError, match="claim lost"):
        client.set("job:zzz:status", "completed")


def test_a_result_may_come_after_its_status(front: Front) -> None:
    client = front.client()
    client.lpush("queue:ready", job("a"))
    client.rpop("queue:ready")
    with pytest.raises(redis.ResponseError, match="'sideways' is not a status"):
        client.set("job:a:status", "sideways")
    client.set("job:a:status", "completed", ex=3600)
    client.set("job:a:result", result("a", stdout="all of it"))
    client.set("job:a:status", "completed")
    assert client.get("job:a:stdout") == "all of it"


def test_processing_is_acknowledged_once_a_result_is_there(front: Front) -> None:
    client = front.client()
    client.lpush("queue:ready", *(job(name) for name in "abcd"))
    one = client.brpoplpush("queue:ready", "queue:processing", timeout=1)
    two = client.rpoplpush("queue:ready", "queue:processing")
    three = client.lmove("queue:ready", "queue:processing", "RIGHT", "LEFT")
    four = client.blmove("queue:ready", "queue:processing", 1, "RIGHT", "LEFT")
    assert [json.loads(text)["id"] for text in (one, two, three, four)] == ["a", "b", "c", "d"]
    assert client.lrange("queue:processing", 0, -1) == [one, two, three, four]
    with pytest.raises(redis.ResponseError, match="no result of a was posted"):
        client.lrem("queue:processing", 1, one)
    client.set("job:a:result", result("a"))
    assert client.lrem("queue:processing", 1, one) == 1
    assert client.lrem("queue:processing", 1, one) == 0
    client.set("job:b:status", "completed")
    assert client.lrem("queue:processing", 0, "b") == 1, "by its id alone, and with a status alone"
    assert front.status("b") == "succeeded"
    assert client.llen("queue:processing") == 2
    for wrong in (
        ("LMOVE", "queue:ready", "queue:other", "LEFT", "LEFT"),
        ("LMOVE", "queue:ready", "queue:processing", "UP", "LEFT"),
        ("LREM", "queue:ready", "0", "a"),
        ("LREM", "queue:processing", "x", "a"),
        ("LREM", "queue:processing", "0", "{}"),
        ("RPOP", "queue:nothing"),
        ("RPOP", "queue:Manager"),
        ("BRPOP", "queue:ready", "queue:Manager", "1"),
        ("RPOP", "queue:ready", "-1"),
        ("LPUSH", "mylist", "x"),
    ):
        with pytest.raises(redis.ResponseError):
            client.execute_command(*wrong)


def test_a_worker_may_hand_a_job_back(front: Front) -> None:
    client = front.client()
    client.lpush("queue:ready", job("a"))
    client.rpop("queue:ready")
    assert client.execute_command("JOB.RELEASE", "a", "not mine") == "OK"
    assert front.status("a") == "queued"
    with pytest.raises(redis.ResponseError, match="claim lost"):
        client.execute_command("JOB.RELEASE", "a")


def test_multi_and_exec(front: Front) -> None:
    client = front.client()
    with client.pipeline(transaction=True) as pipe:
        pipe.lpush("queue:ready", job("a"))
        pipe.llen("queue:ready")
        pipe.brpop("queue:ready", 0)
        pipe.brpop("queue:ready", 0)
        pipe.get("job:a:status")
        answers = pipe.execute()
    assert answers[:2] == [1, 1]
    assert json.loads(answers[2][1])["id"] == "a"
    assert answers[3:] == [None, "in_progress"], "what would block does not, between MULTI and EXEC"
    raw = front.raw()
    raw.send(command("MULTI") + command("NOPE") + command("PING") + command("EXEC"))
    said = [raw.line() for _ in range(4)]
    assert said[0] == b"+OK\r\n"
    assert said[1].startswith(b"-ERR unknown command 'NOPE'")
    assert said[3].startswith(b"-EXECABORT")
    raw.send(command("MULTI") + command("PING") + command("DISCARD") + command("EXEC") + command("MULTI") * 2)
    assert [raw.line()[:4] for _ in range(6)] == [b"+OK\r", b"+QUE", b"+OK\r", b"-ERR", b"+OK\r", b"-ERR"]


def test_a_pipeline_is_answered_in_its_order(front: Front) -> None:
    client = front.client()
    with client.pipeline(transaction=False) as pipe:
        for number in range(50):
            pipe.lpush("queue:ready", job(f"j{number}"))
            pipe.ping()
            pipe.get(f"job:j{number}:status")
        answers = pipe.execute()
    assert answers == [answer for number in range(50) for answer in (number + 1, True, "queued")]


def test_workers_announce_their_facts(front: Front) -> None:
    client = front.client()
    client.set("worker:w1:alive", "1", ex=60)
    client.set("worker:w1:tools", "unix,agx-ocr")
    assert client.hset("worker:w2", mapping={"tools": "unix", "tags": "gpu", "version": "3"}) == 3
    client.execute_command("PING", "w3")
    assert 55 <= client.ttl("worker:w1:alive") <= 60
    assert client.exists("worker:w1:alive", "worker:w3:alive", "worker:w9:alive") == 2
    assert client.get("worker:w1:alive") == "1"
    assert client.get("worker:w1:tools") == "unix,agx-ocr"
    assert client.hgetall("worker:w2")["version"] == "3"
    lines = [json.loads(line) for line in client.execute_command("WORKERS.LIST")]
    answer = {line["worker_id"]: line for line in lines}
    assert answer["w1"]["tools"] == "unix,agx-ocr"
    assert answer["w2"]["tags"] == ["gpu"]
    assert answer["w3"]["connections"] == 1
    assert client.expire("worker:w1:alive", 1000) is True
    assert client.ttl("worker:w1:alive") > 100
    assert client.pttl("worker:w1:alive") > 100_000
    assert client.delete("worker:w1:tools", "worker:w1:alive") == 2
    eventually(lambda: not client.exists("worker:w1:alive"), "a worker that was deleted is gone")
    for wrong in (("SET", "worker:a b:alive", "1"), ("HSET", "job:a", "x", "y"), ("HSET", "worker:w2", "x")):
        with pytest.raises(redis.ResponseError):
            client.execute_command(*wrong)


def test_a_job_with_a_tag_waits_for_a_worker_that_offers_it(front: Front) -> None:
    plain, tagged = front.client(), front.client()
    tagged.hset("worker:big", mapping={"tags": "gpu"})
    tagged.execute_command("PING", "big")
    plain.lpush("queue:ready", job("a", metadata={"tags": ["gpu"]}))
    assert plain.rpop("queue:ready") is None
    assert json.loads(tagged.brpop("queue:ready", 5)[1])["id"] == "a"


def test_key_commands_show_what_exists(front: Front) -> None:
    client = front.client()
    assert client.keys("*") == []
    client.lpush("queue:ready", job("a"), job("b"))
    client.rpop("queue:ready")
    client.execute_command("PING", "w1")
    assert set(client.keys("queue:*")) == {"queue:ready", "queue:processing"}
    assert client.keys("worker:*:alive") == ["worker:w1:alive"]
    assert set(client.keys("job:?")) == {"job:a", "job:b"}
    assert set(client.scan_iter(match="job:[a-b]")) == {"job:a", "job:b"}
    assert set(client.scan_iter(match="*", _type="list")) == {"queue:ready", "queue:processing"}
    assert client.keys("job:b*") == ["job:b", "job:b:status"]
    for wrong in (("SCAN", "x"), ("SCAN", "0", "MATCH"), ("SCAN", "0", "WHY", "1")):
        with pytest.raises(redis.ResponseError):
            client.execute_command(*wrong)


def test_jobs_are_read_and_managed(front: Front) -> None:
    client = front.client()
    client.lpush("queue:ready", job("a"), job("b"))
    answer = json.loads(client.execute_command("JOB.GET", "a"))
    assert (answer["status"], answer["prompt"]["id"], answer["result"]) == ("queued", "a", None)
    assert client.execute_command("JOB.GET", "zzz") is None
    listed = [json.loads(line) for line in client.execute_command("JOBS.LIST", "STATUS", "queued", "LIMIT", "10")]
    assert {line["job_id"] for line in listed} == {"a", "b"}
    assert len(client.execute_command("JOB.LIST", "LIMIT", "1", "ROLE", "Runner")) == 1
    assert client.execute_command("JOB.CANCEL", "a", "no more") == "killed"
    made = client.execute_command("JOB.RETRY", "a")
    assert front.status(made) == "queued"
    stats = json.loads(client.execute_command("QUEUE.STATS", "queue:ready"))
    assert stats["queues"]["queue:ready"]["queued"] == 2
    assert stats["queues"]["queue:ready"]["killed"] == 1
    assert set(json.loads(client.execute_command("QUEUE.STATS"))["queues"]) > {"queue:ready", "queue:Architect"}
    for wrong in (
        ("JOB.RETRY", "b"),
        ("JOB.CANCEL", "zzz"),
        ("JOB.CANCEL", "../x"),
        ("JOB.LIST", "STATUS", "odd"),
        ("JOB.LIST", "STATUS"),
        ("JOB.LIST", "WHY", "x"),
    ):
        with pytest.raises(redis.ResponseError):
            client.execute_command(*wrong)


def test_plans_are_stored_and_actions_become_jobs(front: Front) -> None:
    client = front.client()
    step = {"step_number": 1, "tool": "unix", "command": "echo", "args": ["{{input.word}}"]}
    plan = json.dumps({"plan_id": "say", "name": "Say it", "steps": [step]})
    assert client.execute_command("PLAN.SUBMIT", plan) == "say"
    assert client.execute_command("PLAN.SUBMIT", plan) == "say"
    assert json.loads(client.execute_command("PLAN.GET", "say"))["steps"] == [step]
    assert client.execute_command("PLAN.GET", "nope") is None
    (line,) = map(json.loads, client.execute_command("PLAN.LIST"))
    assert (line["id"], line["steps"], line["wants"]) == ("say", 1, ["word"])
    action = {"action_id": "both", "plan_id": "say", "inputs": [{"word": "one"}, {"word": "two"}]}
    answer = json.loads(client.execute_command("ACTION.SUBMIT", json.dumps(action)))
    assert answer == {"action_id": "both", "plan_id": "say", "job_ids": ["both-001", "both-002"]}
    popped = json.loads(client.rpop("queue:ready"))
    assert (popped["id"], popped["steps"][0]["args"]) == ("both-001", ["one"])
    answer = json.loads(client.execute_command("ACTION.GET", "both"))
    assert answer["jobs"] == [
        {"job_id": "both-001", "status": "in_progress"},
        {"job_id": "both-002", "status": "queued"},
    ]
    assert client.execute_command("ACTION.GET", "nope") is None
    assert json.loads(client.execute_command("ACTION.LIST")[0])["inputs"] == 2
    with pytest.raises(redis.ResponseError, match="is used by the action both"):
        client.execute_command("PLAN.DELETE", "say")
    for wrong, why in (
        (("PLAN.SUBMIT", "{"), "invalid plan: "),
        (("PLAN.SUBMIT", '{"steps": []}'), "invalid plan: steps: "),
        (("PLAN.SUBMIT", plan, "OFTEN"), "syntax error"),
        (("ACTION.SUBMIT", '{"plan_id": "say", "inputs": []}'), "invalid action: inputs: "),
        (("ACTION.SUBMIT", '{"plan_id": "say", "inputs": [{}]}'), "invalid action: inputs[0]: has no word"),
        (("ACTION.SUBMIT", '{"plan_id": "nope", "inputs": [{}]}'), "no plan nope"),
    ):
        with pytest.raises(redis.ResponseError) as refused:
            client.execute_command(*wrong)
        assert why in str(refused.value)
    for name, asked, left in (("both", "ACTION.DELETE", "ACTION.LIST"), ("say", "PLAN.DELETE", "PLAN.LIST")):
        assert [client.execute_command(asked, name) for _ in range(2)] == [1, 0]
        assert client.execute_command(left) == []
    assert client.hget("job:both-002", "status") == "queued"


def test_updates_are_published_with_the_plan(front: Front) -> None:
    client = front.client()
    for protocol, subscribe in ((2, "subscribe"), (3, "psubscribe")):
        name = f"u{protocol}"
        listener = front.client(protocol=protocol)
        with listener.pubsub() as channel:
            getattr(channel, subscribe)("job:updates" if subscribe == "subscribe" else "job:*")
            assert channel.get_message(timeout=5)["type"] == subscribe
            eventually(lambda: None in front.server._feeds, "the feed has started")
            seen = []

            def received(update: str, channel: redis.client.PubSub = channel, seen: list[str] = seen) -> bool:
                message = channel.get_message(timeout=0.2)
                if message is not None and message["type"] in ("message", "pmessage"):
                    data = json.loads(message["data"])
                    assert data["plan_id"] in (None, f"plan-of-{data['job_id']}")
                    seen.append(f"{data['job_id']} {data['status']}")
                return update in seen

            client.lpush("queue:ready", job(name))
            eventually(partial(received, f"{name} queued"), "the entry is published")
            client.rpop("queue:ready")
            client.set(f"job:{name}:result", result(name))
            eventually(partial(received, f"{name} succeeded"), "the end is published")


def test_the_update_of_a_failure_has_the_failing_step_its_exit_code_and_its_last_lines(front: Front) -> None:
    client = front.client()
    with front.client().pubsub() as channel:
        channel.subscribe("job:updates")
        eventually(lambda: None in front.server._feeds, "the feed has started")
        client.lpush("queue:ready", job("a", "ls", "grep", "wc"))
        client.rpop("queue:ready")
        steps = [
            {"step_number": 1, "stdout": "f\n", "stderr": "", "exit_code": 0, "success": True},
            {"step_number": 2, "stdout": "", "stderr": "grep: bad\npattern\n", "exit_code": 2, "success": False},
        ]
        client.set("job:a:result", result("a", success=False, step_results=steps))
        failures: list[dict[str, Any]] = []

        def received() -> bool:
            message = channel.get_message(timeout=0.2)
            if message is not None and message["type"] == "message":
                data = json.loads(message["data"])
                if data["status"] == "failed":
                    failures.append(data)
            return bool(failures)

        eventually(received, "the failure is published")
    assert failures[0] == {
        "job_id": "a",
        "plan_id": "plan-of-a",
        "status": "failed",
        "role": "Runner",
        "error": {"category": "step_failed", "message": "step 2: exit code 2"},
        "step": 2,
        "exit_code": 2,
        "last_lines": ["grep: bad", "pattern"],
    }


def test_a_subscriber_of_resp2_does_nothing_else(front: Front) -> None:
    raw = front.raw()
    raw.send(command("SUBSCRIBE", "job:updates", "x") + command("GET", "job:a:status") + command("PING"))
    assert raw.read(len(b"*3\r\n$9\r\nsubscribe\r\n$11\r\njob:updates\r\n:1\r\n")).endswith(b":1\r\n")
    assert raw.read(len(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:2\r\n")).endswith(b":2\r\n")
    assert raw.line().startswith(b"-ERR Can't execute 'get'")
    assert raw.read(len(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n")) == b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"
    raw.send(command("UNSUBSCRIBE") + command("PUNSUBSCRIBE") + command("PING"))
    assert raw.rest_until(b"+PONG\r\n").count(b"unsubscribe") == 3


def test_the_key_is_required_if_there_is_one(make_front: Callable[..., Front]) -> None:
    front = make_front(key="open sesame")
    with pytest.raises(redis.AuthenticationError):
        front.client().ping()
    with pytest.raises((redis.AuthenticationError, redis.ResponseError)):
        front.client(password="wrong").ping()
    assert front.client(password="open sesame").ping() is True
    assert front.client(password="open sesame", username="default", protocol=3).ping() is True
    raw = front.raw()
    raw.send(command("AUTH", "wrong") + command("HELLO", "3") + command("AUTH", "default", "open sesame"))
    said = [raw.line() for _ in range(3)]
    assert said[0].startswith(b"-WRONGPASS")
    assert said[1].startswith(b"-NOAUTH")
    assert said[2] == b"+OK\r\n"
    raw.send(command("PING") + command("RESET") + command("PING"))
    assert [raw.line()[:7] for _ in range(3)] == [b"+PONG\r\n", b"+RESET\r", b"-NOAUTH"]


def test_a_key_that_is_not_needed_is_refused(front: Front) -> None:
    raw = front.raw()
    raw.send(command("AUTH", "anything"))
    assert raw.line().startswith(b"-ERR AUTH was sent, but this server has no key")


def test_quit_is_answered(front: Front) -> None:
    raw = front.raw()
    raw.send(command("QUIT") + command("PING"))
    assert raw.rest() == b"+OK\r\n"


def test_the_newest_jobs_are_listed_first(front: Front) -> None:
    client = front.client()
    for name in "cadeb":
        client.lpush("queue:ready", job(name))
        client.rpop("queue:ready")
        if name in "ae":
            client.set(f"job:{name}:result", result(name))
    answer = [json.loads(line)["job_id"] for line in client.execute_command("JOBS.LIST", "LIMIT", "3")]
    assert answer == ["b", "e", "d"]
    answer = [json.loads(line)["job_id"] for line in client.execute_command("JOBS.LIST", "STATUS", "succeeded")]
    assert answer == ["e", "a"]
