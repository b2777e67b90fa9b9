"""Inspecting jobs: history, explain, ls and abbreviated ids, with real jobs in every state."""

from __future__ import annotations

import json
import os
import re
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from flows.program import Program, endless, once_endless, shell, steps
from support import eventually

SPAN = re.compile(r"\b(?:[0-9]+[smhd])+\b")  # a duration: it may have grown at the second call


def explained(farro: Program, job: str) -> tuple[str, str | None]:
    told = farro.call("explain", job, "--json", code=0).json
    assert set(told) == {"job_id", "status", "reason", "message", "fix"}
    text = farro.call("explain", job, code=0).out
    expected = f"{told['job_id']} ({told['status']}): {told['message']}\n"
    assert SPAN.sub("…", text).startswith(SPAN.sub("…", expected))
    return told["reason"], told["fix"]


# --- history -----------------------------------------------------------------------------------------------------


def test_history_lists_attempts_steps_and_decisions_in_order(farro: Program) -> None:
    farro.enqueue(steps(["sh", "-c", "echo good"], ["sh", "-c", "exit 4"], ["true"]), "--id", "one")
    farro.worked()
    told = farro.call("history", "one", "--json", code=0).json
    (attempt,) = told["attempts"]
    assert (told["status"], attempt["number"], attempt["outcome"]) == ("failed", 1, "failed")
    assert [(step["id"], step["exit_code"]) for step in attempt["steps"]] == [("1", 0), ("2", 4)]
    assert attempt["steps_total"] == 3
    assert attempt["agent"] == told["hops"][-1]["by"]
    assert told["created_at"] <= attempt["started_at"] <= attempt["ended_at"] == told["finalized_at"]
    page = farro.call("history", "one", code=0).out
    places = [
        page.index(part) for part in ("created", "attempt 1 began by", "step 1", "exit 4", "1 more not", "committed")
    ]
    assert places == sorted(places)
    assert "failed after" in page


def test_history_shows_a_dead_agents_attempt_and_the_decision_on_it(farro: Program) -> None:
    farro.enqueue(once_endless(), "--id", "one")
    worker = farro.start("worker", "--workers", "1")
    eventually((farro.path / "started").exists, "the step did not start")
    worker.kill()
    farro.call("watchdog", "--once", code=0)
    farro.call("requeue", "one", "--note", "once more", code=0)
    farro.worked()
    told = farro.call("history", "one", "--json", code=0).json
    assert [attempt["outcome"] for attempt in told["attempts"]] == ["agent_died", "succeeded"]
    page = farro.call("history", "one", code=0).out
    places = [
        page.index(part) for part in ("attempt 1 began", "agent_died", "once more", "attempt 2 began", "committed")
    ]
    assert places == sorted(places)


def test_history_shows_the_steps_of_an_attempt_without_a_result(farro: Program) -> None:
    farro.enqueue(steps(["echo", "good"], ["sh", "-c", "touch started; exec sleep 600"], ["true"]), "--id", "one")
    worker = farro.start("worker", "--workers", "1")
    eventually((farro.path / "started").exists, "the step did not start")
    (running,) = farro.call("history", "one", "--json", code=0).json["attempts"]
    assert [(step["id"], step["exit_code"], step["error"]) for step in running["steps"]] == [
        ("1", 0, None),
        ("2", None, "runs"),
    ]
    worker.kill()
    farro.call("watchdog", "--once", code=0)
    page = farro.call("history", "one", code=0).out
    assert re.search(r"step 1 +exit 0 .*\n +step 2 +- .*how it ended is not recorded\n", page)
    assert re.search(r"^  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z  created$", page, re.MULTILINE)


def test_history_reads_the_audit_log(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "one")
    line = {"ts": "2026-11-15T12:00:00.000Z", "event": "looked_at", "actor": "auditor", "job_id": "one", "code": 7}
    with open(farro.path / "logs/audit.log", "a") as log:
        log.write("torn {\n" + json.dumps(line) + "\n" + json.dumps({**line, "job_id": "two"}) + "\n")
    told = farro.call("history", "one", "--json", code=0).json
    assert [item for item in told["audit"] if item["event"] == "looked_at"] == [line]
    assert "looked_at auditor code=7" in " ".join(farro.call("history", "one", code=0).out.split())


def test_history_of_a_job_with_wrong_times_prints_no_traceback(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "one")
    path = farro.folder("one") / "job.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "created_at": "yesterday"}))
    for command in ("history", "explain", "show"):
        farro.run(command, "one", code=0)
    farro.run("stats", code=0)


# --- names -------------------------------------------------------------------------------------------------------


def test_every_command_accepts_a_unique_beginning_of_an_id(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "alpha-one-1")
    farro.enqueue(steps(["true"]), "--id", "alpha-two-2")
    for command in ("show", "history", "explain", "logs"):
        told = farro.call(command, "alpha-o", "--json", code=0).json
        assert told["job_id"] == "alpha-one-1"
        several = farro.call(command, "alpha", code=2)
        assert "2 jobs begin with alpha" in several.err
        assert "alpha-one-1" in several.err
        assert "alpha-two-2" in several.err
    farro.worked()
    assert farro.call("wait", "alpha-o", "alpha-t", code=0).out.count("succeeded") == 2


def test_whole_id_wins_over_longer_ids_with_the_same_beginning(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "one")
    farro.enqueue(steps(["true"]), "--id", "one-more")
    assert farro.job("one")["job_id"] == "one"


def test_kill_refuses_a_short_beginning_of_an_id(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "precious-work")
    told = farro.call("kill", "p", code=2)
    assert "precious-work begins like that" in told.err
    assert farro.status("precious-work") == "queued"
    assert farro.call("kill", "precious", code=0).out == "precious-work is killed\n"


def test_misspelt_id_gets_a_suggestion(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "nightly-build")
    for command in ("show", "requeue", "kill", "force-complete", "history", "logs", "wait", "explain", "watch"):
        told = farro.call(command, "nigthly-build", code=2)
        assert "did you mean nightly-build?" in told.err
        assert "farro ls" in told.err
        assert told.out == ""


# --- ls ----------------------------------------------------------------------------------------------------------


def test_ls_filters_by_tag_and_lists_the_newest_first(farro: Program) -> None:
    for name, tags in (("a", ["gpu"]), ("b", []), ("c", ["gpu", "big"])):
        farro.enqueue(steps(["true"], metadata={"tags": tags}), "--id", name)
    listed = farro.call("ls", "--tag", "gpu", "--json", code=0).json["jobs"]
    assert [job["job_id"] for job in listed] == ["a", "c"]
    assert [job["job_id"] for job in farro.call("ls", "--tag", "gpu", "--tag", "big", "--json").json["jobs"]] == ["c"]
    for second, name in enumerate(("c", "a", "b")):
        os.utime(farro.folder(name), (1000 + second, 1000 + second))
    newest = farro.call("ls", "--last", "2", "--json", code=0).json["jobs"]
    assert [job["job_id"] for job in newest] == ["b", "a"]
    assert farro.call("ls", "--last", "1", "--limit", "1").code == 2


# --- explain -----------------------------------------------------------------------------------------------------


def test_command_that_explain_names_helps(farro: Program) -> None:
    farro.enqueue(steps(["true"], metadata={"tags": ["gpu"]}), "--id", "one")
    reason, fix = explained(farro, "one")
    assert (reason, fix) == ("no_worker", "farro worker --role Runner --tag gpu")
    worker = farro.start("worker", "--workers", "1").started()
    assert explained(farro, "one") == ("tags", "farro worker --role Runner --tag gpu")
    worker.end()
    assert fix is not None
    farro.run(*fix.split()[1:], "--drain", code=0)
    assert explained(farro, "one") == ("finished", "farro show one")


def test_explain_covers_a_running_job_the_next_one_and_a_dead_agent(farro: Program) -> None:
    farro.enqueue(endless(), "--id", "first")
    worker = farro.start("worker", "--workers", "1")
    eventually((farro.path / "started").exists, "the step did not start")
    farro.enqueue(steps(["true"]), "--id", "second")
    farro.enqueue(steps(["true"]), "--id", "third")
    assert explained(farro, "first") == ("running", "farro logs first --follow")
    assert "in step 1: attempt 1 by" in farro.call("explain", "first").out
    assert explained(farro, "third") == ("workers_busy", "farro worker --role Runner")
    assert "1 job is before it" in farro.call("explain", "third").out
    worker.kill()
    reason, fix = explained(farro, "first")
    assert (reason, fix) == ("agent_dead", "farro watchdog --once && farro manager --once")
    assert explained(farro, "second")[0] == "no_worker"
    farro.call("watchdog", "--once", code=0)
    assert explained(farro, "first") == ("stale", "farro manager --once")
    farro.call("manager", "--once", code=0)
    assert explained(farro, "first")[0] in ("no_worker", "delayed")


def test_explain_covers_a_delay_damage_and_another_version(farro: Program) -> None:
    for name in ("later", "foreign"):
        farro.enqueue(steps(["true"]), "--id", name)
    due = (datetime.now(UTC) + timedelta(hours=3)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    for name, change in (("later", {"not_before": due}), ("foreign", {"schema_version": "9.0.0"})):
        path = farro.folder(name) / "job.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert explained(farro, "later") == ("delayed", None)
    assert "it starts in 2h" in farro.call("explain", "later").out
    assert explained(farro, "foreign") == ("unknown_schema", "python3 -m pip install --upgrade farro")
    farro.enqueue(steps(["true"]), "--id", "contradictory")
    path = farro.folder("contradictory") / "job.json"
    path.write_text(path.read_text().replace('"status": "queued"', '"status": "succeeded"'))
    assert explained(farro, "contradictory") == ("contradictory", "farro kill contradictory")
    farro.call("kill", "contradictory", code=0)
    assert explained(farro, "contradictory")[0] == "finished"
    aside = farro.path / "jobs/quarantine/odd"
    aside.mkdir()
    (aside / "quarantine.txt").write_text("it contradicts itself\n")
    assert explained(farro, "odd") == ("quarantined", "farro show odd")
    assert "it contradicts itself" in farro.call("explain", "odd").out


def test_explain_names_the_unfinished_dependency(farro: Program) -> None:
    for name in ("first", "nobody"):
        farro.enqueue(steps(["true"]), "--id", name)
    farro.enqueue(steps(["true"], metadata={"after": ["first", "nobody"]}), "--id", "then")
    assert explained(farro, "then") == ("dependency", "farro explain first")
    shutil.rmtree(farro.folder("nobody"))
    reason, _ = explained(farro, "then")
    assert reason == "dependency"
    told = farro.call("explain", "then", code=0).out
    assert "first to succeed (queued)" in told
    assert "nobody to succeed (no such job" in told


def test_history_and_explain_print_no_escape_sequence_of_a_job(farro: Program) -> None:
    evil = "\x1b]0;owned\x07"
    farro.enqueue(steps([f"{evil}command"]), "--id", "evil")
    farro.worked()
    for command in ("history", "explain", "wait"):
        told = farro.call(command, "evil")
        assert "\x1b" not in told.out + told.err
        assert "\x07" not in told.out + told.err


@pytest.mark.parametrize("command", ["history", "logs", "explain", "wait", "watch"])
def test_invalid_id_is_refused_and_not_used_as_a_path(farro: Program, command: str) -> None:
    assert "is not a job id" in farro.call(command, "../../etc", code=2).err


def test_logs_print_the_output_of_a_simple_job(farro: Program) -> None:
    farro.enqueue(shell("echo hello"), "--id", "one")
    farro.worked()
    assert farro.call("logs", "one", code=0).out == "hello\n"


def test_history_is_in_the_order_of_causes_whatever_the_clocks_say(farro: Program) -> None:
    farro.enqueue(steps(["false"]), "--id", "one")
    farro.worked()
    path = farro.folder("one") / "job.json"
    life = json.loads(path.read_text())
    life["hops"][0]["at"] = "2001-01-01T00:00:00.000Z"  # the worker's clock is behind the submitter's
    path.write_text(json.dumps(life))
    told = farro.call("history", "one", code=0).out
    places = [told.index(what) for what in ("created", "attempt 1 began", "step 1", "committed →")]
    assert places == sorted(places)
