"""The memo's rules for a job, each kept and each broken: a bad job is refused with its position, and not queued."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis

from agq.stage import Front, command, job
from farro.store.port import Submission

STEP = {"step_number": 1, "tool": "unix", "command": "true"}


def plan(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "a", "plan_id": "p", "steps": list(steps or (STEP,)), **more}


def without(data: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != name}


def second(**more: Any) -> dict[str, Any]:
    return plan(STEP, {**STEP, "step_number": 2, **more})


# rule → (what keeps it, what breaks it, the message)
RULES: dict[str, tuple[Any, Any, str]] = {
    "a job has an id": (plan(), without(plan(), "id"), "id: is required"),
    "a job has a plan_id": (plan(), without(plan(), "plan_id"), "plan_id: is required"),
    "a job has steps": (plan(), without(plan(), "steps"), "steps: is required"),
    "steps is an array": (plan(), plan() | {"steps": "true"}, "steps: must be a list, not text"),
    "steps is not empty": (
        plan(),
        plan() | {"steps": []},
        "steps: must have at least 1; it has 0; a plan has at least one step",
    ),
    "a step has a step_number": (
        plan(),
        plan(without(STEP, "step_number")),
        "steps[0].step_number: is required",
    ),
    "a step has a tool": (plan(), plan(without(STEP, "tool")), "steps[0].tool: is required"),
    "a step has a command": (plan(), plan(without(STEP, "command")), "steps[0].command: is required"),
    "input_from_step is an earlier step": (
        second(input_from_step=1),
        second(input_from_step=7),
        "steps[1].input_from_step: 7 is not an earlier step, and no step of this plan has that number",
    ),
    "no step reads itself": (
        second(input_from_step=1),
        second(input_from_step=2),
        "steps[1].input_from_step: 2 is not an earlier step: it is this step itself",
    ),
    "no circle": (
        second(input_from_step=1),
        plan({**STEP, "input_from_step": 2}, {**STEP, "step_number": 2, "input_from_step": 1}),
        "steps[0].input_from_step: 2 is not an earlier step; move it up in the list, or give the steps ids instead of "
        "numbers, which may stand in any order",
    ),
    "at most 100 steps": (
        plan(*({**STEP, "step_number": number} for number in range(1, 101))),
        plan(*({**STEP, "step_number": number} for number in range(1, 102))),
        "steps: may have at most 100; it has 101",
    ),
    "numbers are unique": (second(), plan(STEP, STEP), "steps[1].step_number: 1 is also steps[0]; ids are unique"),
    "the role is the queue's": (
        plan(role="Runner"),
        plan(role="Architect"),
        "role: is Architect, but the queue says Runner; keep one of them",
    ),
    "an id is an id": (plan(), plan() | {"id": "../../etc"}, "id: "),
    "nothing unknown": (plan(name="x"), plan(nmae="x"), "nmae: "),
    "a job holds its whole plan": (
        plan(),
        {"id": "a", "plan_id": "p", **STEP},
        "job: this is the old single-step job; a job holds its whole plan",
    ),
    "a job is an object": (plan(), ["true"], "job: must be an object"),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_of_the_memo_is_enforced(front: Front, rule: str) -> None:
    good, bad, why = RULES[rule]
    client = front.client()
    with pytest.raises(redis.ResponseError) as refused:
        client.lpush("queue:ready", json.dumps(bad))
    assert str(refused.value).startswith(f"invalid job: {why}"), str(refused.value)
    assert client.llen("queue:ready") == 0
    assert front.store.list() == []
    assert client.rpush("queue:ready", json.dumps(good)) == 1


@pytest.mark.parametrize("text", ["", "{", "nonsense", '{"id": "a", "id": "b"}', "\x00", '{"a": NaN}', "[" * 5000])
def test_invalid_json_is_refused_with_its_position(front: Front, text: str) -> None:
    with pytest.raises(redis.ResponseError, match=r"^invalid job: "):
        front.client().lpush("queue:ready", text)


def test_several_jobs_are_queued_together_or_not_at_all(front: Front) -> None:
    client = front.client()
    with pytest.raises(redis.ResponseError, match=r"^invalid job: value 2: steps: is required"):
        client.lpush("queue:ready", job("a"), '{"id": "b", "plan_id": "p"}', job("c"))
    assert front.store.list() == []
    client.lpush("queue:ready", job("c"))
    with pytest.raises(redis.ResponseError, match=r"^invalid job: id: c was submitted before with other content"):
        client.lpush("queue:ready", job("a"), job("b"), job("c", "false"))
    with pytest.raises(redis.ResponseError, match=r"^invalid job: value 2: id: .* has another plan of this id"):
        client.lpush("queue:ready", job("d"), job("d", "false"))
    assert [view.job_id for view in front.store.list()] == ["c"]


def test_an_id_is_one_job_however_often_it_is_pushed(front: Front) -> None:
    client = front.client()
    for _ in range(3):
        client.lpush("queue:ready", job("a"))
    assert client.llen("queue:ready") == 1
    with pytest.raises(redis.ResponseError, match=r"^invalid job: id: a was submitted before with other content"):
        client.lpush("queue:ready", job("a", "false"))


def test_a_job_of_more_than_a_mebibyte_is_refused_and_the_connection_goes_on(front: Front) -> None:
    client = front.client()
    big = job("a", metadata={"x": "y" * (1 << 20)})
    with pytest.raises(redis.ResponseError, match=r"^invalid job: job: [0-9]+ bytes; at most 1048576"):
        client.lpush("queue:ready", big)
    assert client.ping() is True
    assert client.lpush("queue:ready", job("a", metadata={"x": "y" * (1 << 19)})) == 1


def test_pushes_of_many_clients_are_answered_separately(make_front: Callable[..., Front]) -> None:
    """They reach the store together; bad ones among them affect no other."""
    front = make_front(config_of={"capacity": {"roles": {"Runner": 30}}})
    front.client().lpush("queue:ready", job("taken"))
    raws = [front.raw() for _ in range(60)]
    texts = [(job("taken", "false"), "{}", job(f"good-{number}"))[number % 3] for number in range(60)]
    for raw, text in zip(raws, texts, strict=True):
        raw.send(command("LPUSH", "queue:ready", text))
    said = [raw.line() for raw in raws]
    assert all(line.startswith(b"-ERR invalid job: id: taken was submitted before") for line in said[0::3])
    assert all(line.startswith(b"-ERR invalid job: id: is required") for line in said[1::3])
    assert all(line.startswith(b":") for line in said[2::3])
    assert len(front.store.list()) == 21
    more = [front.raw() for _ in range(20)]
    for number, raw in enumerate(more):
        raw.send(command("LPUSH", "queue:ready", job(f"more-{number}")))
    busy = [raw.line()[:9] for raw in more].count(b"-ERR BUSY")
    assert busy >= 1  # the cap is approximate: two batches may check it at the same moment and both pass
    assert len(front.store.list()) == 21 + 20 - busy


def test_a_full_queue_replies_busy(make_front: Callable[..., Front]) -> None:
    front = make_front(config_of={"capacity": {"roles": {"Runner": 2}}})
    client = front.client()
    assert client.lpush("queue:ready", job("a"), job("b")) == 2
    with pytest.raises(redis.ResponseError, match=r"^BUSY no room for 1 more job: Runner has 2 of at most 2"):
        client.lpush("queue:ready", job("c"))
    assert front.status("c") is None
    assert client.lpush("queue:ready", job("a")) >= 2, "what is there already is not added"


def test_a_job_of_another_form_is_popped_in_the_memos_form(front: Front) -> None:
    """A job that was queued by other means: names become numbers, in the order in which they run."""
    steps = [
        {"id": "count", "command": "wc", "args": ["-l"], "input_from_step": "list", "timeout": 5},
        {"id": "list", "command": "ls", "env": {"A": "1"}},
    ]
    front.store.enqueue(Submission(role="Runner", prompt={"steps": steps, "name": "both"}, job_id="x"))
    client = front.client()
    popped = json.loads(client.rpop("queue:ready"))
    assert popped == {
        "id": "x",
        "plan_id": "x",
        "name": "both",
        "steps": [
            {"step_number": 1, "tool": "unix", "command": "ls", "args": [], "env": {"A": "1"}},
            {
                "step_number": 2,
                "tool": "unix",
                "command": "wc",
                "args": ["-l"],
                "input_from_step": 1,
                "timeout": 5.0,
            },
        ],
    }
    ended = [
        {"step_number": 1, "stdout": "f\n", "stderr": "", "exit_code": 0, "success": True},
        {"step_number": 2, "stdout": "1\n", "stderr": "", "exit_code": 0, "success": True, "duration_s": 0.5},
    ]
    client.set("job:x:result", json.dumps({"job_id": "x", "plan_id": "x", "success": True, "step_results": ended}))
    result = json.loads(client.get("job:x:result"))
    assert [step["id"] for step in result["step_results"]] == ["list", "count"]
    assert result["step_results"][1]["duration_s"] == 0.5
    assert client.get("job:x:stdout") == "f\n1\n"


def test_a_job_that_is_no_plan_fails_and_the_next_is_popped(front: Front) -> None:
    front.store.enqueue(Submission(role="Runner", prompt={"steps": []}, job_id="bad"))
    client = front.client()
    client.lpush("queue:ready", job("good"))
    assert json.loads(client.rpop("queue:ready"))["id"] == "good"
    assert front.status("bad") == "failed"


def test_a_job_of_the_later_form_is_popped_in_the_memos_form(front: Front) -> None:
    task = {"task_number": 1, "command": "sort", "args": ["-r"], "timeout_secs": 300}
    pushed = {"job_id": "j", "plan_id": "p", "plan_description": "", "tasks": [task]}
    client = front.client()
    client.lpush("queue:ready", json.dumps(pushed))
    step = {"step_number": 1, "tool": "unix", "command": "sort", "args": ["-r"], "timeout": 300}
    assert json.loads(client.rpop("queue:ready")) == {"id": "j", "plan_id": "p", "steps": [step]}
    for name in ("job_id", "plan_id"):
        with pytest.raises(redis.ResponseError, match=f"invalid job: {name}: is required"):
            client.lpush("queue:ready", json.dumps(without(pushed, name)))


# --- results ---

# As in "New Structure" and "Result Structure" of seed 004.
MEMO_JOB = {
    "id": "job-123",
    "plan_id": "plan-456",
    "steps": [
        {"step_number": 1, "tool": "unix", "command": "ls", "args": ["-la", "/tmp"], "timeout": 30},
        {
            "step_number": 2,
            "tool": "unix",
            "command": "grep",
            "args": ["pattern"],
            "input_from_step": 1,
            "timeout": 30,
        },
        {
            "step_number": 3,
            "tool": "agx-ocr",
            "command": "process-image",
            "args": ["--format", "json"],
            "input_from_step": 2,
            "timeout": 120,
        },
    ],
}
GOOD = [
    {"step_number": 1, "stdout": "file1.txt\nfile2.txt\n", "stderr": "", "exit_code": 0, "success": True},
    {"step_number": 2, "stdout": "2\n", "stderr": "", "exit_code": 0, "success": True},
    {"step_number": 3, "stdout": "{}\n", "stderr": "", "exit_code": 0, "success": True},
]
BAD = [{**step, "exit_code": 1, "success": False} for step in GOOD]
MEMO_RESULT = {"job_id": "job-123", "plan_id": "plan-456", "success": True, "step_results": GOOD}


@pytest.mark.parametrize(
    "result",
    [
        MEMO_RESULT,
        {**MEMO_RESULT, "success": False, "step_results": [GOOD[0], BAD[1]]},
        {**MEMO_RESULT, "success": False, "step_results": [GOOD[0], GOOD[1]], "error": "agx-ocr is not installed"},
        {**MEMO_RESULT, "success": False, "step_results": [], "error": {"category": "sandbox", "message": "no"}},
        # step 2 read while step 1 ran, and ended before it failed
        {**MEMO_RESULT, "success": False, "step_results": [BAD[0], GOOD[1]]},
    ],
)
def test_a_result_with_every_executed_step_is_accepted(front: Front, result: Any) -> None:
    client = front.client()
    client.lpush("queue:ready", json.dumps(MEMO_JOB))
    client.rpop("queue:ready")
    assert client.set("job:job-123:result", json.dumps(result)) is True
    assert front.status("job-123") == ("succeeded" if result["success"] else "failed")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"plan_id": "plan-1"}, "plan_id: must be plan-456, the plan_id of job-123"),
        ({"plan_id": None}, "plan_id: must be plan-456, the plan_id of job-123"),
        ({"step_results": GOOD[:2]}, "step_results: step 3 has no result; a success has one for each of the 3 steps"),
        ({"step_results": []}, "step_results: step 1 has no result; a success has one for each of the 3 steps"),
        (
            {"step_results": [*GOOD, {**GOOD[0], "step_number": 4}]},
            "step_results[3].step_number: 4 is no step of this plan; it has 3",
        ),
        (
            {"success": False},
            "step_results: no step failed; the results of a failure end with the failing step",
        ),
        ({"success": False, "step_results": []}, "step_results: no step failed; the results of a failure end with"),
        (
            {"success": False, "step_results": [BAD[1]]},
            "step_results: step 1 has no result, but step 2, which runs after it, has one",
        ),
    ],
)
def test_a_result_without_an_executed_step_is_refused_with_its_position(front: Front, change: Any, why: str) -> None:
    client = front.client()
    client.lpush("queue:ready", json.dumps(MEMO_JOB))
    client.rpop("queue:ready")
    with pytest.raises(redis.ResponseError) as refused:
        client.set("job:job-123:result", json.dumps({**MEMO_RESULT, **change}))
    assert f"invalid result: {why}" in str(refused.value)
    assert client.set("job:job-123:result", json.dumps(MEMO_RESULT)) is True, "the job stays with its worker"


def test_a_failure_has_no_result_after_the_failing_step(front: Front) -> None:
    client = front.client()
    client.lpush("queue:ready", job("a", "ls", "wc").replace(', "input_from_step": 1', ""))
    client.rpop("queue:ready")
    result = {"job_id": "a", "plan_id": "plan-of-a", "success": False, "step_results": [BAD[0], GOOD[1]]}
    with pytest.raises(redis.ResponseError) as refused:
        client.set("job:a:result", json.dumps(result))
    assert "step_results[1]: the results of a failure end with the failing step, which is step 1" in str(refused.value)
    assert client.set("job:a:result", json.dumps({**result, "step_results": [BAD[0]]})) is True


def steps_of(*reads: int | None) -> str:
    """Return job `a`, in which each step reads the step of that number."""
    steps = [{**STEP, "step_number": at, "input_from_step": source} for at, source in enumerate(reads, start=1)]
    return json.dumps(plan(*steps))


@pytest.mark.parametrize(
    ("reads", "posted"),
    [
        # 3 was started early, while 1 ran, and is over before 2 fails
        ((None, None, 1), [GOOD[0], GOOD[2], BAD[1]]),
        # … or still runs when 2 fails
        ((None, None, 1), [GOOD[0], BAD[1], GOOD[2]]),
        # … or fails while 2 runs
        ((None, None, 1), [GOOD[0], BAD[2], GOOD[1]]),
        # 2 was started early and ended 1
        ((None, 1), [BAD[1], GOOD[0]]),
    ],
)
def test_results_of_a_failure_come_in_the_order_in_which_its_steps_ended(
    front: Front, reads: tuple[int | None, ...], posted: Any
) -> None:
    client = front.client()
    client.lpush("queue:ready", steps_of(*reads))
    client.rpop("queue:ready")
    result = {"job_id": "a", "plan_id": "p", "success": False, "step_results": posted}
    assert client.set("job:a:result", json.dumps(result)) is True
    assert front.status("a") == "failed"


def test_steps_after_a_failed_one_have_results_if_the_plan_keeps_going(front: Front) -> None:
    client = front.client()
    client.lpush("queue:ready", json.dumps(second() | {"keep_going": True}))
    client.rpop("queue:ready")
    result = {"job_id": "a", "plan_id": "p", "success": False, "step_results": [BAD[0], GOOD[1]]}
    assert client.set("job:a:result", json.dumps(result)) is True
    assert front.status("a") == "failed"


def test_a_task_list_keeps_going_when_it_is_popped(front: Front) -> None:
    tasks = [{"id": "first", "command": "false"}, {"id": "second", "command": "true"}]
    front.store.enqueue(Submission(role="Runner", prompt={"tasks": tasks}, job_id="a"))
    client = front.client()
    assert [json.loads(text).get("keep_going") for text in client.lrange("queue:ready", 0, -1)] == [True]
    assert json.loads(client.rpop("queue:ready"))["keep_going"] is True
    result = {"job_id": "a", "plan_id": "a", "success": False, "step_results": [BAD[0], GOOD[1]]}
    assert client.set("job:a:result", json.dumps(result)) is True


AGENT_PROMPT = {"role": "Reviewer", "rubric": "Is it good?"}


@pytest.mark.parametrize(
    ("prompt", "result"),
    [
        (AGENT_PROMPT, {"success": True, "step_results": [GOOD[0]]}),
        (plan(), {"success": False, "step_results": [], "error": {"category": "storage", "message": "no room"}}),
    ],
)
def test_a_result_without_a_plan_id_is_accepted_from_older_workers(front: Front, prompt: Any, result: Any) -> None:
    front.store.enqueue(Submission(role="Runner", prompt=prompt, job_id="a"))
    client = front.client()
    client.rpop("queue:ready")
    with pytest.raises(redis.ResponseError, match="invalid result: plan_id: must be"):
        client.set("job:a:result", json.dumps({**result, "plan_id": "another"}))
    assert client.set("job:a:result", json.dumps({**result, "plan_id": None})) is True
    assert front.status("a") == ("succeeded" if result["success"] else "failed")
