"""Jobs over HTTP, on both stores: lists and pages, one job with its files and output, and commands."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farro.jobs.moves import Move
from farro.jobs.outcomes import Succeeded
from farro.jobs.states import Reason, Status
from farro.queue.logs import LogFollower
from farro.roles.workflow import RouteCode
from farro.store.port import Submission
from farro.web import job_queries, output, request_handling
from http_stage import REPORT, TOKEN, ManualWorker, WebStage, submission
from one_job import claim_one, commit_one
from support import eventually

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202egnp.exe\u2066 \"'`${x}\x00\U0001f600"


def test_job_is_enqueued_run_and_shown(any_front: WebStage) -> None:
    made = any_front.post("/api/jobs", {"command": ["echo", "hello"], "priority": "P1"})
    assert made.status == 201
    (job_id,) = made.json["jobs"]
    eventually(lambda: [row["job_id"] for row in any_front.listed()] == [job_id])
    (row,) = any_front.listed("?status=queued")
    assert (row["title"], row["role"], row["priority"], row["steps"]) == ("echo hello", "Runner", "P1", 1)
    hands = ManualWorker(any_front.store)
    assert hands.one() == job_id
    hands.leave()
    eventually(lambda: any_front.listed("?status=succeeded"))
    whole = any_front.get(f"/api/jobs/{job_id}").json
    assert (whole["status"], whole["attempt"], whole["terminal"]) == ("succeeded", 1, True)
    assert whole["prompt"]["steps"][0]["args"] == ["hello"]
    assert {"result.md", "prompt.json"} <= {file["path"] for file in whole["files"]}
    assert any_front.get(f"/api/jobs/{job_id}/files/result.md").body == b"done\n"
    counts = {line["role"]: line for line in any_front.get("/api/queues").json["queues"]}
    assert (counts["Runner"]["queued"], counts["Runner"]["succeeded"]) == (0, 1)


def test_job_commands_return_the_changed_job(any_front: WebStage) -> None:
    (first,) = any_front.post("/api/jobs", {"command": ["true"], "id": "first-of-all"}).json["jobs"]
    killed = any_front.post(f"/api/jobs/{first}/kill", {"note": "not needed"})
    assert (killed.status, killed.json["status"], killed.json["hops"][-1]["note"]) == (200, "killed", "not needed")
    assert any_front.post(f"/api/jobs/{first}/requeue").code == "illegal_transition"
    again = any_front.post(f"/api/jobs/{first}/retry")
    assert (again.status, again.json["retry_of"]) == (201, first)
    made = again.json["job_id"]
    assert any_front.post(f"/api/jobs/{made}/route", {"role": "Nobody"}).status == 422
    assert any_front.post(f"/api/jobs/{made}/route", {"role": "Architect"}).json["role"] == "Architect"
    assert any_front.post(f"/api/jobs/{made}/force-complete").code == "illegal_transition"
    assert any_front.post("/api/jobs/no-such-job/kill").code == "unknown_job"
    assert any_front.post("/api/jobs/fi/kill").code == "unknown_job"  # too short an abbreviation to kill a job by


def test_bulk_action_reports_each_job_separately(front: WebStage) -> None:
    jobs = [job.id for job in front.store.enqueue_many([submission() for _ in range(5)])]
    told = front.post("/api/jobs/actions", {"action": "kill", "jobs": [*jobs, "nobody", jobs[0]]}).json["results"]
    assert [one["ok"] for one in told] == [True] * 5 + [False]
    assert told[-1]["error"]["code"] == "unknown_job"
    again = front.post("/api/jobs/actions", {"action": "retry", "jobs": jobs[:2]}).json["results"]
    assert all(one["ok"] and one["made"] for one in again)
    assert front.post("/api/jobs/actions", {"action": "dance", "jobs": jobs}).code == "bad_document"


def test_bulk_kill_of_an_ended_job_says_why_nothing_changed(any_front: WebStage) -> None:
    job_id = any_front.store.enqueue(submission())
    hands = ManualWorker(any_front.store)
    eventually(lambda: hands.one() == job_id)
    hands.leave()
    (told,) = any_front.post("/api/jobs/actions", {"action": "kill", "jobs": [job_id]}).json["results"]
    assert (told["ok"], told["status"], told["error"]["code"]) == (False, "succeeded", "already_ended")
    assert told["error"]["message"] == f"{job_id} is succeeded already; nothing was changed"


def test_pages_list_every_job_once_while_jobs_come_and_move(any_front: WebStage) -> None:
    """A job that exists from the first page to the last is on exactly one page."""
    there = {job.id for job in any_front.store.enqueue_many([submission() for _ in range(240)])}
    eventually(lambda: any_front.get("/api").json["jobs"] == 240)
    stop = threading.Event()

    def disturb() -> None:
        hands = ManualWorker(any_front.store)
        while not stop.is_set():
            any_front.store.enqueue(submission())
            hands.one()
        hands.leave()

    busy = threading.Thread(target=disturb)
    busy.start()
    try:
        for order in ("newest", "oldest"):
            seen: list[str] = []
            cursor, pages = "", 0
            while cursor is not None and pages < 2000:
                query = f"?order={order}&limit=7" + (f"&cursor={cursor}" if cursor else "")
                told = any_front.get(f"/api/jobs{query}").json
                seen += [row["job_id"] for row in told["jobs"]]
                cursor, pages = told["next"], pages + 1
                if order == "oldest" and there <= set(seen):
                    break  # the newest pages never end: jobs keep coming
            assert len(seen) == len(set(seen)), order
            assert there <= set(seen), order
    finally:
        stop.set()
        busy.join()


def test_job_list_filters_searches_and_orders(front: WebStage) -> None:
    store = front.store
    store.enqueue(submission("make", prompt={"name": "Build the thing", "metadata": {"tags": ["gpu", "big"]}}))
    store.enqueue(submission("ls", prompt={"metadata": {"tags": ["gpu"]}}))
    store.enqueue(Submission(role="Architect", prompt={"rubric": "Plan it\nwell", "inputs": {"task_id": "T-1"}}))
    store.enqueue(submission())
    hands = ManualWorker(store)
    failed = hands.one(fail="the compiler said NO")
    hands.leave()
    eventually(lambda: len(front.listed()) == 4 and front.listed("?status=failed"))
    titles = {row["title"] for row in front.listed("?text=BUILD+thing")}
    assert titles == {"Build the thing"}
    assert {row["job_id"] for row in front.listed("?text=compiler")} == {failed}
    assert len(front.listed("?tag=gpu")) == 2
    assert len(front.listed("?tag=gpu&tag=big")) == 1
    assert [row["title"] for row in front.listed("?task=T-1")] == ["Plan it"]
    assert len(front.listed("?role=Runner")) == 3
    assert len(front.listed("?role=Runner&role=Architect&status=queued")) == 3
    assert front.listed("?order=changed")[0]["job_id"] == failed
    assert front.get("/api/jobs?limit=2").json["total"] == 4
    for wrong in (
        "?role=Nobody",
        "?status=done",
        "?limit=0",
        "?limit=9999",
        "?limit=x",
        "?nothing=1",
        "?order=up",
        "?limit=1&limit=2",
    ):
        assert front.get(f"/api/jobs{wrong}").status == 422, wrong


def test_pruned_job_leaves_the_list(front: WebStage, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id, other = front.store.enqueue(submission()), front.store.enqueue(submission())
    eventually(lambda: len(front.listed()) == 2)
    shutil.rmtree(front.root / "agents/Runner/incoming" / job_id)
    told = front.web._state.catalog.compare()
    assert [(one.job_id, one.status) for one in told] == [(job_id, None)]
    assert [row["job_id"] for row in front.listed()] == [other]


def test_hostile_fields_are_never_served_as_html(front: WebStage) -> None:
    prompt = {"name": HOSTILE.replace("\x00", ""), "metadata": {"x": HOSTILE.replace("\x00", "")}}
    job_id = front.store.enqueue(submission(prompt=prompt))
    hands = ManualWorker(front.store)
    hands.one(fail=HOSTILE)
    hands.leave()
    eventually(lambda: front.listed("?status=failed"))
    for path in ("/api/jobs", f"/api/jobs/{job_id}", f"/api/jobs/{job_id}/history", f"/api/jobs/{job_id}/explain"):
        answer = front.get(path)
        assert answer.status == 200, path
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert b"<script>" not in answer.body or b"<script>" in json.dumps(HOSTILE).encode()
        answer.json  # noqa: B018 - it is JSON
        assert not any(byte < 32 or byte > 126 for byte in answer.body)
    assert front.get(f"/api/jobs/{job_id}").json["error"]["message"] == HOSTILE
    drawn = front.get(f"/api/jobs/{job_id}/plan.svg")
    assert drawn.status == 200
    assert b"<script" not in drawn.body
    assert "sandbox" in drawn.headers["content-security-policy"]


def test_job_files_are_text_or_downloads_and_stay_inside_the_job(front: WebStage) -> None:
    job_id = front.store.enqueue(
        submission(payload={"page.html": b"<script>1</script>", "picture.png": b"\x89PNG\0\1"})
    )
    home = front.root / "agents/Runner/incoming" / job_id
    (home / "payload" / "out").symlink_to("/etc")
    (home / "secret").symlink_to("/etc/passwd")
    base = f"/api/jobs/{job_id}/files"
    page = front.get(f"{base}/payload/page.html")
    assert page.headers["content-type"] == "text/plain; charset=utf-8"
    assert "sandbox" in page.headers["content-security-policy"]
    picture = front.get(f"{base}/payload/picture.png")
    assert picture.headers["content-type"] == "application/octet-stream"
    assert picture.headers["content-disposition"].startswith("attachment")
    assert front.get(f"{base}/payload/page.html?download=true").headers["content-disposition"].startswith("attachment")
    outside = (
        "../job.json",
        "..%2f..%2fx",
        "%2e%2e/x",
        "secret",
        "payload/out/passwd",
        "/etc/passwd",
        "payload",
        "",
        "a%00b",
    )
    for name in outside:
        assert front.get(f"{base}/{name}").status in (404, 405, 422), name


def test_step_output_is_returned_whole_or_from_its_end(front: WebStage) -> None:
    job_id = front.store.enqueue(submission())
    agent = front.store.join("hands", role="Runner")
    claim = claim_one(front.store, agent)
    assert claim is not None
    assert front.get(f"/api/jobs/{job_id}/logs").json["output"] == []
    step = Path(claim.folder) / "steps" / "1"
    step.mkdir(parents=True)
    (step / "stdout").write_bytes(b"".join(b"line %d\n" % number for number in range(1000)))
    (step / "stderr").write_bytes(b"\xff\xfe")
    told = front.get(f"/api/jobs/{job_id}/logs?tail=2").json
    assert told["attempt"] == 1
    by_stream = {one["stream"]: one for one in told["output"]}
    assert by_stream["stderr"]["base64"] == "//4="
    assert by_stream["stdout"]["text"].endswith("line 999\n")
    assert front.get(f"/api/jobs/{job_id}/logs?attempt=7").status == 400
    assert front.get(f"/api/jobs/{job_id}/logs?step=9").status == 400
    with_stream = front.events(f"/api/jobs/{job_id}/logs/stream?stream=stdout&tail=1")
    stream = iter(with_stream)
    kind, begin = next(stream)
    assert (kind, begin["attempt"], begin["earlier"]["lines"], begin["earlier"]["bytes"]) == ("begin", 1, 999, 8881)
    assert next(stream) == ("state", {"job_id": job_id, "status": "in_progress", "attempt": 1, "terminal": False})
    assert next(stream)[1]["text"] == "line 999\n"
    with (step / "stdout").open("ab") as file:
        file.write("half an \u00fc".encode()[:-1])
        file.flush()
        assert next(stream)[1]["text"] == "half an "
        file.write("\u00fc".encode()[1:])
    assert next(stream)[1]["text"] == "\u00fc"
    commit_one(front.store, claim, Succeeded(report=REPORT))
    rest = dict(stream)
    assert rest["end"]["status"] == "succeeded"
    with_stream.close()
    front.store.leave(agent)


def test_invalid_new_job_is_refused_with_the_position_of_each_problem(front: WebStage) -> None:
    wrong: tuple[tuple[dict[str, Any], int], ...] = (
        ({}, 400),
        ({"command": ["x"], "plan": {"steps": []}}, 400),
        ({"command": []}, 422),
        ({"command": [""]}, 400),
        ({"command": ["x"], "role": "Nobody"}, 422),
        ({"command": ["x"], "timeout": "soon"}, 422),
        ({"command": ["x"], "delay": "1h", "at": "09:00"}, 400),
        ({"command": ["x"], "after": ["nobody"]}, 404),
        ({"command": ["x"], "env": {"1A": "x"}}, 400),
        ({"command": ["x"], "cwd": "/nowhere/at/all"}, 400),
        ({"command": ["x"], "colour": "red"}, 422),
        ({"plan": {"steps": [{"step_number": 1}]}}, 422),
        ({"plan": 7}, 422),
        ({"prompt": {"role": "Architect"}}, 422),
    )
    for body, status in wrong:
        answer = front.post("/api/jobs", body)
        assert answer.status == status, (body, answer.body)
    told = front.post("/api/jobs", {"plan": {"steps": [{"step_number": 1, "comand": "x"}]}}).json["error"]
    assert any(problem["path"].endswith("comand") for problem in told["problems"])
    assert front.store.list() == []


def test_job_waits_for_a_time_or_for_other_jobs(front: WebStage) -> None:
    (first,) = front.post("/api/jobs", {"command": ["true"], "delay": "1h"}).json["jobs"]
    (second,) = front.post("/api/jobs", {"plan": {"steps": [{"id": "a", "command": "true"}]}, "after": [first]}).json[
        "jobs"
    ]
    eventually(lambda: len(front.listed()) == 2)
    rows = {row["job_id"]: row for row in front.listed()}
    assert rows[second]["waits_for"] == [first]
    assert rows[first]["not_before"] is not None
    front.get("/api/jobs")
    counts = {line["role"]: line for line in front.get("/api/queues").json["queues"]}["Runner"]
    assert (counts["queued"], counts["delayed"], counts["waiting"]) == (0, 1, 1)


def test_full_queue_returns_429_and_a_repeated_id_returns_the_same_job(make_front: Callable[..., WebStage]) -> None:
    front = make_front(config_of={"capacity": {"roles": {"Runner": 1}}})
    assert front.post("/api/jobs", {"command": ["true"], "id": "one"}).json["jobs"] == ["one"]
    assert front.post("/api/jobs", {"command": ["true"]}).status == 429
    assert front.post("/api/jobs", {"command": ["false"], "id": "one"}).status in (409, 429)


def test_search_is_limited_and_an_invalid_cursor_is_a_client_error(front: WebStage) -> None:
    for query in ("order=changed", "order=changed&text=x", "order=newest", "order=oldest&text=x"):
        assert front.get(f"/api/jobs?{query}&cursor={'9' * 5000}").status == 200, query
    assert front.get(f"/api/jobs?text={'a+' * 101}").status == 422
    assert front.get("/api/jobs?" + "&".join(f"tag=t{number}" for number in range(21))).status == 422


def routed_by_the_manager(front: WebStage) -> str:
    """Make a job that a role ran and that waits for a person; the manager's attempt has no output."""
    job_id = front.store.enqueue(submission(role="SeniorEngineer"))
    for role, to, said in (("SeniorEngineer", "Manager", "the answer\n"), ("Manager", "Manager", None)):
        agent = front.store.join("hands", role=role)
        claim = claim_one(front.store, agent)
        assert claim is not None
        if said is not None:
            step = Path(claim.folder) / "steps" / "1"
            step.mkdir(parents=True)
            (step / "stdout").write_text(said)
        asked = {} if said else {"waits": True, "route": {"code": str(RouteCode.HUMAN)}}
        move = Move(reason=Reason.ROUTED, status=Status.QUEUED, role=to, note=None, **asked)
        commit_one(front.store, claim, Succeeded(report=REPORT), move)
        front.store.leave(agent)
    return job_id


def test_logs_show_the_last_attempt_with_output(front: WebStage) -> None:
    job_id = routed_by_the_manager(front)
    told = front.get(f"/api/jobs/{job_id}/logs").json
    assert (told["attempt"], [one["text"] for one in told["output"]]) == (1, ["the answer\n"])
    assert front.get(f"/api/jobs/{job_id}/logs?attempt=2").json["output"] == []
    story = front.get(f"/api/jobs/{job_id}/history").json["attempts"]
    assert [(one["number"], one["output"]) for one in story] == [(1, True), (2, False)]
    stream = front.events(f"/api/jobs/{job_id}/logs/stream?tail=10")
    assert next(iter(stream)) == ("begin", {"attempt": 1, "earlier": None})
    assert stream.until(lambda kind, data: kind == "output")[1]["text"] == "the answer\n"
    stream.close()


def test_earlier_output_is_paged_and_the_download_is_complete(front: WebStage) -> None:
    job_id, home = running(front)
    lines = {
        step: [f"{step} {number}\n" for number in range(count)] for step, count in (("a", 25), ("b", 0), ("c", 40))
    }
    for step, own in lines.items():
        (home / step).mkdir(parents=True)
        (home / step / "stdout").write_text("".join(own))
    whole = "".join("".join(own) for own in lines.values())
    seen, mark, counts = "", "", []
    while mark is not None:
        told = front.get(f"/api/jobs/{job_id}/logs?tail=10{mark}").json
        seen = "".join(one["text"] for one in told["output"]) + seen
        mark = told["earlier"] and f"&before={told['earlier']['before']}"
        counts.append(told["earlier"] and told["earlier"]["lines"])
    assert seen == whole
    assert counts == [55, 45, 35, 25, 15, 5, None]
    alone = front.get(f"/api/jobs/{job_id}/logs?tail=10&step=a").json
    assert (alone["output"][0]["text"], alone["earlier"]["lines"]) == ("".join(lines["a"][-10:]), 15)
    for wrong in ("nonsense", "c3Rkb3V0", "%21"):
        assert front.get(f"/api/jobs/{job_id}/logs?before={wrong}").status == 400, wrong
    saved = front.get(f"/api/jobs/{job_id}/logs/whole")
    assert saved.body.decode() == whole
    assert saved.headers["content-type"] == "application/octet-stream"
    assert saved.headers["content-disposition"] == f'attachment; filename="{job_id}.log"'
    assert front.get(f"/api/jobs/{job_id}/logs/whole?step=c").body.decode() == "".join(lines["c"])
    assert front.get("/api/jobs/nobody/logs/whole").code == "unknown_job"
    assert front.get(f"/api/jobs/{job_id}/logs/whole?tail=3").status == 422


def test_symlink_in_place_of_output_is_not_followed(front: WebStage) -> None:
    job_id, home = running(front)
    for step in ("1", "2", "3"):
        (home / step).mkdir(parents=True)
    (home / "1/stdout").write_text("said\n")
    (home / "2/stdout").symlink_to("/etc/passwd")
    os.mkfifo(home / "3/stdout")
    for query in ("", "?tail=5"):
        told = front.get(f"/api/jobs/{job_id}/logs{query}").json["output"]
        assert [(one["step"], one["text"]) for one in told] == [("1", "said\n")]


def test_output_of_one_response_is_limited_to_the_newest(front: WebStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "LOG_BYTES", 1000)
    monkeypatch.setattr(output, "LOGS_BYTES", 2500)
    job_id, home = running(front)
    for step in range(5):
        (home / str(step)).mkdir(parents=True)
        (home / f"{step}/stdout").write_text("x" * 5000)
    for query in ("", "?tail=100"):
        told = front.get(f"/api/jobs/{job_id}/logs{query}").json["output"]
        assert [len(one["text"]) for one in told] == [0, 0, 500, 1000, 1000]
        assert all(one["truncated"] for one in told)


def test_output_of_a_busy_step_is_read_at_intervals(front: WebStage, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id, home = running(front)
    (home / "1").mkdir(parents=True)
    over = threading.Event()
    looks: list[float] = []
    look = output._read_new_output

    def counted(follower: LogFollower) -> Any:
        looks.append(time.monotonic())
        return look(follower)

    monkeypatch.setattr(output, "_read_new_output", counted)

    def talk() -> None:
        with open(home / "1/stdout", "w", buffering=1) as said:
            while not over.is_set():
                said.write("word\n")
                time.sleep(0.001)

    thread = threading.Thread(target=talk)
    thread.start()
    stream = front.events(f"/api/jobs/{job_id}/logs/stream")
    try:
        for _ in stream:
            if len(looks) >= 5:
                break
        # Otherwise it would poll without a pause and use a whole core. One read may return several pieces.
        assert all(after - before >= 0.9 * output.POLL_S for before, after in itertools.pairwise(looks))
    finally:
        over.set()
        thread.join()
        stream.close()


def test_file_list_of_a_job_is_limited(front: WebStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_queries, "FILES", 5)
    job_id, home = running(front)
    home.mkdir(parents=True)
    for number in range(20):
        (home / f"{number:02}").touch()
    told = front.get(f"/api/jobs/{job_id}").json
    assert len(told["files"]) == 5
    assert told["files_more"] >= 15


def test_large_file_arrives_complete_and_a_client_that_does_not_read_is_disconnected(
    front: WebStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, home = running(front)
    home.mkdir(parents=True)
    data = os.urandom(32 << 20)
    (home / "large").write_bytes(data)
    path = f"/api/jobs/{job_id}/files/attempts/0001/steps/large"
    assert front.get(path).body == data
    monkeypatch.setattr(request_handling, "SEND_TIMEOUT_S", 0.2)
    with socket.create_connection(("127.0.0.1", front.port)) as lazy:
        lazy.settimeout(30)
        lazy.sendall(f"GET {path} HTTP/1.1\r\nHost: {front.host}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        time.sleep(1)
        taken = 0
        while some := _received(lazy):
            taken += some
    assert taken < len(data)


def _received(connection: socket.socket) -> int:
    try:
        return len(connection.recv(1 << 20))
    except ConnectionResetError:
        return 0


def running(front: WebStage) -> tuple[str, Path]:
    """Return a claimed job and the folder of its steps."""
    front.store.enqueue(submission())
    claim = claim_one(front.store, front.store.join("hands", role="Runner"))
    assert claim is not None
    return claim.job_id, Path(claim.folder) / "steps"


def test_named_job_is_found_and_reset(any_front: WebStage) -> None:
    first = any_front.store.enqueue_named("nightly", submission())
    eventually(lambda: any_front.get("/api/names").json == {"names": [{"name": "nightly", "job_id": first}]})
    assert any_front.get("/api/names/nightly").json == {"name": "nightly", "job_id": first}
    told = any_front.post("/api/names/nightly/reset", {}).json
    assert (told["job_id"], told["changed"]) == (first, False)  # it waits already
    hands = ManualWorker(any_front.store)
    hands.one()
    hands.leave()
    told = any_front.post("/api/names/nightly/reset", {}).json
    assert (told["before"], told["changed"]) == (first, True)
    assert any_front.get("/api/names/nightly").json["job_id"] == told["job_id"] != first
    assert any_front.get("/api/names/nightl").status == 404
    assert "nightly" in any_front.get("/api/names/nightl").json["error"]["message"]


def test_prune_removes_finished_jobs_and_a_dry_run_none(any_front: WebStage) -> None:
    made = [job.id for job in any_front.store.enqueue_many([submission() for _ in range(4)])]
    hands = ManualWorker(any_front.store)
    ended = [hands.one() for _ in range(3)]
    hands.leave()
    assert any_front.post("/api/prune", {}).status == 400
    told = any_front.post("/api/prune", {"keep": 1, "dry_run": True}).json
    assert (told["jobs"], told["left"], told["dry_run"]) == (ended[:2], 0, True)
    assert any_front.post("/api/prune", {"older_than": "7d"}).json["jobs"] == []
    assert any_front.post("/api/prune", {"keep": 0, "limit": 2}).json == {
        "jobs": ended[:2],
        "left": 1,
        "dry_run": False,
    }
    there = {view.job_id for view in any_front.store.list()}
    assert there == set(made) - set(ended[:2])


def test_unknown_job_is_reported_from_memory(front: WebStage, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = front.store.enqueue(submission())
    eventually(lambda: front.listed())
    monkeypatch.setattr(front.store, "entries", lambda *args, **options: pytest.fail("all jobs were looked at"))
    for unknown in ("nope", "job-2025", f"{job_id[:-4]}zzzz"):
        answer = front.get(f"/api/jobs/{unknown}")
        assert (answer.status, answer.code) == (404, "unknown_job")
    assert front.get(f"/api/jobs/{job_id[:-1]}").json["job_id"] == job_id
