"""Commands on several jobs: each job is handled separately, and an unknown id stops the command before any change."""

from __future__ import annotations

from flows.program import Program, steps


def test_several_jobs_are_ended_at_once(farro: Program) -> None:
    jobs = [farro.enqueue(steps(("true",)), "--id", name) for name in ("one", "two", "three")]
    assert farro.call("kill", *jobs, "one", code=0).out == "one is killed\ntwo is killed\nthree is killed\n"
    farro.enqueue(steps(("true",)), "--id", "four")
    farro.worked()
    told = farro.call("kill", "one", "four", "--json", code=3).json
    assert [(job["job_id"], job["status"]) for job in told["jobs"]] == [("one", "killed"), ("four", "succeeded")]
    farro.enqueue(steps(("true",)), "--id", "five")
    assert "no job nobody" in farro.call("kill", "five", "nobody", code=2).err
    assert farro.status("five") == "queued"


def test_kill_by_status_and_role_ends_all_matching_jobs(farro: Program) -> None:
    for name in ("one", "two"):
        farro.enqueue(steps(("true",)), "--id", name)
    farro.enqueue(steps(("true",)), "--id", "other", "--role", "DocWriter")
    asked = ("kill", "--status", "queued", "--role", "Runner")
    assert "would kill 2 jobs, and there is no terminal" in farro.call(*asked, code=2).err
    assert farro.status("one") == "queued"
    farro.call(*asked, "--yes", "--note", "not needed", code=0)
    assert [farro.status(name) for name in ("one", "two", "other")] == ["killed", "killed", "queued"]
    assert farro.job("one")["hops"][-1]["note"] == "not needed"
    assert farro.call(*asked, code=0).out == "no jobs like that\n"
    assert "name the jobs to kill, or choose them" in farro.call("kill", code=2).err
    assert "name the jobs to kill, or choose them" in farro.call("kill", "one", "--role", "Runner", code=2).err


def test_several_jobs_are_requeued(farro: Program) -> None:
    farro.enqueue(steps(("true",)), "--id", "one")
    farro.enqueue(steps(("true",)), "--id", "two")
    told = farro.call("requeue", "one", "two", code=3)
    assert told.err.count("is queued already") == 2
