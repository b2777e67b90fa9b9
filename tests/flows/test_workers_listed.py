"""`farro workers`: the live workers with their tags, tools and jobs, and the traces of a killed one."""

from __future__ import annotations

import json
import os
from typing import Any

from flows.program import Program, endless, steps
from support import eventually


def workers(farro: Program, *more: str) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(farro.run("workers", *more, "--json", code=0).out)["workers"]
    return told


def test_workers_lists_tags_tools_and_job_of_a_worker(farro: Program) -> None:
    tool = farro.path / "agx-shout"
    tool.write_text("#!/bin/sh\nexit 0\n")
    tool.chmod(0o755)
    farro.env["PATH"] = f"{farro.path}{os.pathsep}{farro.env['PATH']}"
    assert farro.run("workers", code=0).out.startswith("no workers")
    job_id = farro.enqueue(endless("started"))
    worker = farro.start("worker", "--workers", "1", "--tag", "gpu", "--name", "box")
    eventually(lambda: [line["job"] for line in workers(farro)] == [job_id], "no worker runs the job")
    (line,) = workers(farro)
    assert (line["role"], line["pid"], line["tags"], line["alive"]) == ("Runner", worker.pid, ["gpu"], True)
    assert line["id"].startswith("box.0.")
    assert {"unix", "agx-shout"} <= set(line["tools"])
    assert line["since"].endswith("Z")
    table = farro.run("workers", code=0).out
    assert "WORKER" in table
    assert job_id in table
    worker.kill()
    eventually(lambda: not workers(farro)[0]["alive"], "the killed worker is shown as alive")
    assert "`farro watchdog` recovers its job" in farro.run("workers", code=0).out
    farro.run("watchdog", "--once", code=0)
    assert workers(farro) == []


def test_only_a_worker_with_the_needed_tools_takes_a_plan(farro: Program) -> None:
    plan = steps(("true",), ("true",))
    plan["steps"][1]["tags"] = ["gpu"]
    job_id, other = farro.enqueue(plan), farro.enqueue(steps(("true",)))
    farro.start("worker")
    eventually(lambda: farro.status(other) == "succeeded", "the worker does nothing")
    assert farro.status(job_id) == "queued"
    assert "gpu" in farro.run("explain", job_id, code=0).out
    farro.run("worker", "--drain", "--tag", "gpu", code=0)
    assert farro.status(job_id) == "succeeded"


def test_workers_all_lists_support_processes(farro: Program) -> None:
    farro.start("watchdog")
    eventually(lambda: [line["role"] for line in workers(farro, "--all")] == [None], "no watchdog")
    assert workers(farro) == []
