"""Kill a runner at every mutating call of its plan, with the installed program.

The worker reports it and continues, the next attempt resumes, and one commit counts.

The runner kills itself: a `sitecustomize` on the worker's PYTHONPATH, used by this suite only, places a seam in the
forks of the worker's template. crash/test_resumed_plans covers killed workers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crash.history import ENDS
from flows.program import FARRO, Program, marked

SEAM = """
import os, signal, sys

if sys.argv[2:3] == ["run-job"]:  # the template
    from farro.execution.runners import run_job
    from farro.host import fs

    class Killer:
        def __init__(self, job, folder):
            parts = job.split("-")  # kill-<number of the call>-<before or after>, or `count`
            self.at, self.after = (int(parts[1]), parts[2] == "after") if parts[0] == "kill" else (0, False)
            self.count = 0
            self.mark = f"{folder}/{job}"

        def perform(self, op, call, args):
            self.count += 1
            if self.count != self.at:
                done = call(*args)
                if not self.at:
                    with open(self.mark, "w") as file:
                        file.write(str(self.count))
                return done
            if self.after:
                try:
                    call(*args)
                except OSError:  # a look whether a folder is empty
                    pass
            os.mkdir(self.mark)
            os.kill(os.getpid(), signal.SIGKILL)

        def look(self, op, path):
            pass

    run = run_job.main

    def run_until_killed():
        folder = os.environ["TEST_KILLED"]
        if not os.path.exists(f"{folder}/{sys.argv[2]}"):  # the next attempt is left in peace
            fs.set_seam(Killer(sys.argv[2], folder))
        return run()

    run_job.main = run_until_killed
"""
NAMES = ["first", "reads", "child"]


def plan() -> dict[str, Any]:
    add = f"{FARRO} task add --id child --input-from first -- sh -c 'echo child >> runs/$FARRO_JOB; cat'"
    scripts = (
        ("first", f"echo first >> runs/$FARRO_JOB; echo said; {add} >&2", {}),
        ("reads", "echo reads >> runs/$FARRO_JOB; cat; echo read", {"input_from_step": "first"}),
    )
    steps = [{"id": name, "command": "sh", "args": ["-c", script], **more} for name, script, more in scripts]
    return {"plan_id": "p", "steps": steps}


def prepared(farro: Program) -> Path:
    settings = {
        "runners": {"kind": "process", "max_concurrent_runners": 3},
        "retry": {"base_s": 0.01, "max_delay_s": 0.02, "max_attempts": 3},
    }
    (farro.path / "agents-config.json").write_text(json.dumps(settings))
    for name in ("runs", "killed", "site"):
        (farro.path / name).mkdir()
    (farro.path / "site" / "sitecustomize.py").write_text(SEAM)
    farro.env["PYTHONPATH"] = str(farro.path / "site")
    farro.env["TEST_KILLED"] = str(farro.path / "killed")
    return farro.path


def judge(farro: Program, job_id: str) -> str:
    """Return how the killed attempt ended."""
    job, folder = farro.job(job_id), farro.folder(job_id)
    assert job["status"] == "succeeded", (job_id, job)
    reasons = [hop["reason"] for hop in job["hops"]]
    assert [reason for reason in reasons if reason in ENDS] == reasons[-1:], (job_id, reasons)
    attempts = sorted((folder / "attempts").iterdir())
    result = json.loads((attempts[-1] / "result.json").read_text())
    said = {one["id"]: one["stdout"] for one in result["step_results"]}
    assert said == {"first": "said\n", "reads": "said\nread\n", "child": "said\n"}, (job_id, said)
    ran = (farro.path / "runs" / job_id).read_text().split()
    if len(attempts) == 1:  # the runner had already written its outcome
        assert sorted(ran) == sorted(NAMES), (job_id, ran)
        return "went on"
    error = json.loads((attempts[0] / "result.json").read_text())["error"]
    assert error["category"] == "runner_died", (job_id, error)
    assert "SIGKILL" in error["message"]
    resumed = {one["id"] for one in result["step_results"] if one.get("resumed")}
    assert resumed == recorded(attempts[0]), job_id
    assert all(ran.count(name) == 1 for name in resumed), (job_id, resumed, ran)
    assert all(1 <= ran.count(name) <= 2 for name in NAMES), (job_id, ran)
    return "resumed" if resumed else "began again"


def recorded(attempt: Path) -> set[str]:
    if not (attempt / "steps.jsonl").exists():
        return set()
    lines = [json.loads(line) for line in (attempt / "steps.jsonl").read_text().splitlines()]
    return {line["id"] for line in lines if line.get("success")}


def test_a_runner_killed_at_every_call_of_its_plan_is_resumed_and_one_commit_counts(
    farro: Program, figure: Callable[..., None]
) -> None:
    root = prepared(farro)
    farro.enqueue(plan(), "--id", "count")
    farro.worked()
    calls = int((root / "killed" / "count").read_text())
    assert calls > 15
    kills = [(n, how) for n in range(1, calls + 1) for how in ("before", "after")]
    jobs = [farro.enqueue(plan(), "--id", f"kill-{n}-{how}") for n, how in kills]
    farro.worked("--workers", "3")
    assert sorted(os.listdir(root / "killed")) == sorted(["count", *jobs]), "a runner was not killed"
    ends = [judge(farro, job_id) for job_id in jobs]
    assert set(ends) >= {"resumed", "began again"}
    figure("runners killed at every call of a plan", len(jobs), "points")
    audit = [json.loads(line) for line in (root / "logs/audit.log").read_text().splitlines()]
    assert sorted(line["job_id"] for line in audit if line["event"] == "committed") == sorted(["count", *jobs])
    assert marked(root) == []
