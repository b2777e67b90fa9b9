"""`farro retry` on the command line, and attempts that resume after a killed worker."""

from __future__ import annotations

import json

import pytest

from flows.program import Program, once_endless, steps
from support import eventually

PLAN = {
    "steps": [
        {"id": "fetch", "command": "sh", "args": ["-c", "echo data; echo fetch >> log"]},
        {"id": "build", "command": "sh", "args": ["-c", "cat; echo build >> log"], "input_from_step": "fetch"},
        {
            "id": "test",
            "command": "sh",
            "args": ["-c", "cat; echo test >> log; test -e ok"],
            "input_from_step": "build",
        },
    ]
}


@pytest.fixture
def failed(farro: Program) -> str:
    job_id = farro.enqueue(PLAN)
    farro.worked()
    assert ran(farro) == ["fetch", "build", "test"]
    (farro.path / "log").unlink()
    (farro.path / "ok").touch()
    return job_id


def ran(farro: Program) -> list[str]:
    return (farro.path / "log").read_text().split()


def test_retry_continues_at_the_failed_step(farro: Program, failed: str) -> None:
    told = farro.call("retry", failed, code=0)
    assert "fetch, build" in told.err
    farro.worked()
    again = farro.job(told.out.strip())
    assert (again["status"], again["retry_of"]) == ("succeeded", failed)
    assert ran(farro) == ["test"]
    assert farro.status(failed) == "failed"
    assert farro.call("logs", again["job_id"], code=0).out == "data\n" * 3


def test_retry_from_a_step_repeats_it_and_the_later_ones(farro: Program, failed: str) -> None:
    told = farro.call("retry", failed, "--from", "build", "--json", code=0).json
    assert told["kept_steps"] == ["fetch"]
    farro.worked()
    assert ran(farro) == ["build", "test"]


def test_retry_from_the_start_repeats_every_step(farro: Program, failed: str) -> None:
    farro.call("retry", failed, "--from-start", code=0)
    farro.worked()
    assert ran(farro) == ["fetch", "build", "test"]


def test_a_retried_job_can_be_retried(farro: Program, failed: str) -> None:
    (farro.path / "ok").unlink()
    second = farro.call("retry", failed, code=0).out.strip()
    farro.worked()
    (farro.path / "ok").touch()
    third = farro.call("retry", second, code=0).out.strip()
    farro.worked()
    assert farro.status(third) == "succeeded"
    assert ran(farro) == ["test", "test"]


def test_a_succeeded_job_can_be_forked(farro: Program, failed: str) -> None:
    good = farro.call("retry", failed, code=0).out.strip()
    farro.worked()
    fork = farro.call("retry", good, "--from", "test", code=0).out.strip()
    farro.worked()
    assert farro.status(fork) == "succeeded"
    assert ran(farro) == ["test", "test"]


def test_retry_of_a_succeeded_job_runs_every_step(farro: Program, failed: str) -> None:
    good = farro.call("retry", failed, code=0).out.strip()
    farro.worked()
    (farro.path / "log").unlink()
    assert farro.call("retry", good, "--json", code=0).json["kept_steps"] == []
    farro.worked()
    assert ran(farro) == ["fetch", "build", "test"]


def test_steps_kept_by_a_retry_count_as_done_and_are_marked(farro: Program, failed: str) -> None:
    again = farro.call("retry", failed, code=0).out.strip()
    drawn = farro.call("plan", "show", again, "--json", code=0).json
    assert [step["state"] for step in drawn["steps"]] == ["succeeded", "succeeded", "waiting"]
    assert "2/3" in farro.call("status", "--job", again, code=0).out
    farro.worked()
    told = farro.call("history", again, code=0).out.splitlines()
    (build,) = [line for line in told if "step build" in line]
    (test,) = [line for line in told if "step test" in line]
    assert build.endswith("done earlier, not run again")
    assert "earlier" not in test


def test_requeue_of_a_final_job_suggests_retry(farro: Program, failed: str) -> None:
    assert f"farro retry {failed}" in farro.call("requeue", failed, code=3).err


def test_retry_of_a_parallel_plan_repeats_only_dependents_of_the_step(farro: Program) -> None:
    plan = {
        "parallel": 2,
        "steps": [
            {"id": name, "command": "sh", "args": ["-c", f"echo {name} >> log"], "needs": needs}
            for name, needs in (("a", []), ("b", []), ("after-a", ["a"]), ("after-b", ["b"]))
        ],
    }
    job_id = farro.enqueue(plan)
    farro.worked()
    (farro.path / "log").unlink()
    farro.call("retry", job_id, "--from", "a", code=0)
    farro.worked()
    assert ran(farro) == ["a", "after-a"]


def test_unfinished_job_is_not_retried_and_gets_advice(farro: Program) -> None:
    queued = farro.enqueue(PLAN)
    told = farro.call("retry", queued, code=3)
    assert f"farro explain {queued}" in told.err


def test_unknown_step_is_reported_with_the_known_ones(farro: Program, failed: str) -> None:
    told = farro.call("retry", failed, "--from", "tset", code=2)
    assert "its steps are fetch, build, test" in told.err


def test_retry_from_and_from_start_exclude_each_other(farro: Program, failed: str) -> None:
    farro.call("retry", failed, "--from", "test", "--from-start", code=2)


def test_retry_does_not_wait_for_the_dependencies_again(farro: Program) -> None:
    first = farro.enqueue(steps(["true"]))
    second = farro.enqueue(steps(["sh", "-c", "test -e ok"]), "--after", first)
    farro.worked()
    assert farro.status(second) == "failed"
    (farro.path / "ok").touch()
    third = farro.call("retry", second, code=0).out.strip()
    farro.worked()
    assert farro.status(third) == "succeeded"
    assert "metadata" not in json.loads((farro.folder(third) / "prompt.json").read_text())


def test_job_of_a_killed_worker_resumes_after_the_steps_that_succeeded(farro: Program) -> None:
    endless = once_endless()["steps"][0]
    plan = {
        "steps": [
            {"id": "first", "command": "sh", "args": ["-c", "echo first >> log"]},
            {"id": "second", "command": endless["command"], "args": endless["args"]},
        ]
    }
    job_id = farro.enqueue(plan)
    worker = farro.start("worker", "--workers", "1")
    eventually((farro.path / "started").exists, "the second step did not start")
    worker.kill()
    farro.call("watchdog", "--once", code=0)
    farro.call("requeue", job_id, code=0)
    farro.worked()
    assert farro.job(job_id)["attempt"] == 2
    assert ran(farro) == ["first"]
    result = json.loads((farro.folder(job_id) / "attempts/0002/result.json").read_text())
    assert [one.get("resumed") for one in result["step_results"]] == [True, None]


# --- jobs that ran after one that failed ---------------------------------------------------------------------------


@pytest.fixture
def chain(farro: Program) -> Program:
    """Queue u, which fails until `ok` exists, d after u, e after d, and f after any end of u."""
    farro.call("enqueue", "--id", "u", "--", "sh", "-c", "echo u >> log; test -e ok", code=0)
    farro.call("enqueue", "--id", "d", "--after", "u", "--priority", "P1", "--", "sh", "-c", "echo d >> log", code=0)
    farro.call("enqueue", "--id", "e", "--after", "d", "--after-any", "u", "--", "sh", "-c", "echo e >> log", code=0)
    farro.call("enqueue", "--id", "f", "--after-any", "u", "--", "true", code=0)
    farro.worked()
    assert [farro.status(job) for job in "udef"] == ["failed", "killed", "killed", "succeeded"]
    (farro.path / "log").unlink()
    (farro.path / "ok").touch()
    return farro


def test_job_killed_for_a_failed_dependency_names_the_next_command(chain: Program) -> None:
    told = chain.call("retry", "d", code=3).err
    assert "d runs after u, which did not succeed" in told
    for way in ("`farro retry u --with-dependents`", "`farro retry d --after JOB`", "--no-after"):
        assert way in told


def test_retry_with_dependents_includes_jobs_killed_for_the_failure(chain: Program) -> None:
    told = chain.call("retry", "u", "--with-dependents", "--json", code=0).json
    assert (told["retry_of"], [one["retry_of"] for one in told["dependents"]]) == ("u", ["d", "e"])
    new = {"u": told["job_id"], **{one["retry_of"]: one["job_id"] for one in told["dependents"]}}
    assert chain.job(new["d"])["waits_for"] == [new["u"]]
    assert chain.job(new["e"])["waits_for"] == [new["d"], new["u"]]
    prompt = json.loads((chain.folder(new["d"]) / "prompt.json").read_text())
    assert prompt["metadata"] == {"after": [new["u"]], "priority": "P1"}, "the rest is unchanged"
    chain.worked()
    assert ran(chain) == ["u", "d", "e"]
    assert [chain.status(new[job]) for job in "ude"] == ["succeeded"] * 3
    assert chain.call("retry", "f", "--with-dependents", "--json", code=0).json["dependents"] == []


def test_retry_may_replace_or_drop_the_dependencies(chain: Program) -> None:
    first = chain.call("retry", "d", "--no-after", code=0).out.strip()
    assert chain.job(first)["waits_for"] == []
    second = chain.call("retry", "e", "--after", first, code=0).out.strip()
    assert chain.job(second)["waits_for"] == [first]
    chain.worked()
    assert ran(chain) == ["d", "e"]
    assert "no job nobody" in chain.call("retry", "e", "--after", "nobody", code=2).err
    assert "give one of them" in chain.call("retry", "e", "--after", "f", "--no-after", code=2).err


def test_refused_retry_does_not_stop_the_others(chain: Program) -> None:
    told = chain.call("retry", "u", "d", "f", code=3)
    assert len(told.out.split()) == 2
    assert "d runs after u" in told.err
    told = chain.call("retry", "u", "d", "--json", code=3)
    assert [job["retry_of"] for job in told.json["jobs"]] == ["u"]
    assert [job["job_id"] for job in told.json["refused"]] == ["d"]
    before = len(chain.call("ls", "--json", code=0).json["jobs"])
    assert "no job nobody" in chain.call("retry", "u", "nobody", code=2).err
    assert len(chain.call("ls", "--json", code=0).json["jobs"]) == before, "a misspelt id changes nothing"


def test_a_dead_workers_job_is_requeued_and_a_retry_says_so(farro: Program) -> None:
    farro.enqueue(once_endless(), "--id", "held")
    worker = farro.start("worker").started()
    eventually((farro.path / "started").exists)
    assert "works on it; `farro wait held`" in farro.call("requeue", "held", code=3).err
    worker.kill()
    assert "is dead: `farro requeue held` puts it back into its queue" in farro.call("retry", "held", code=3).err
    assert farro.call("requeue", "held", code=0).out == "held is queued\n"
    assert "held is queued already; `farro explain held`" in farro.call("requeue", "held", code=3).err


def test_dependents_created_at_one_moment_are_retried_in_dependency_order(farro: Program) -> None:
    """A batch is created in one millisecond, and ids give no order: here the first job has the last id."""
    farro.call("enqueue", "--id", "u", "--", "false", code=0)
    for job, after in (("z", ("u",)), ("y", ("u", "z")), ("a", ("z", "y"))):
        named = [word for name in after for word in ("--after", name)]
        farro.call("enqueue", "--id", job, *named, "--", "true", code=0)
    farro.worked()
    moment = farro.job("u")["created_at"]
    for job in "zya":
        path = farro.folder(job) / "job.json"
        path.write_text(path.read_text().replace(farro.job(job)["created_at"], moment))
    told = farro.call("retry", "u", "--with-dependents", "--json", code=0).json
    assert [one["retry_of"] for one in told["dependents"]] == ["z", "y", "a"]


def test_damaged_unrelated_job_does_not_stop_a_retry(chain: Program) -> None:
    chain.call("enqueue", "--id", "v", "--", "false", code=0)
    chain.call("enqueue", "--id", "w", "--after", "v", "--", "true", code=0)
    chain.worked()
    (chain.folder("w") / "prompt.json").write_text("{")
    told = chain.call("retry", "u", "--with-dependents", "--json", code=0).json
    assert [one["retry_of"] for one in told["dependents"]] == ["d", "e"]
