"""The commands of Air-Executor, end to end: named jobs, status, logs, reset, run-task; and the bugs of the original.

test_air_import.py covers the import of the original's files.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from flows.program import Daemon, Done, Program, listing, marked, unprivileged
from flows.test_doctor_disks import apart
from support import eventually

BIN = os.path.dirname(sys.executable)


def task(name: str, script: str, *needs: str, **more: Any) -> dict[str, Any]:
    """Build a task as Air-Executor writes it."""
    return {
        "id": name,
        "job_name": "nightly",
        "command": "sh",
        "args": ["-c", script],
        "dependencies": list(needs),
        "status": "pending",
        "created_at": "2025-10-02T10:00:00Z",
        "started_at": None,
        "completed_at": None,
        "error": None,
        **more,
    }


def air_executor(farro: Program, *words: str, stdin: str = "", code: int = 0) -> Done:
    """Run a command as the document spells it."""
    program = os.path.join(BIN, "air-executor")
    done = subprocess.run(
        [program, *words], cwd=farro.path, env=farro.env, input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return Done(code=code, out=done.stdout, err=done.stderr)


def create(farro: Program, name: str, *tasks: dict[str, Any]) -> str:
    told = farro.call("job", "create", name, "--tasks", "-", "--json", stdin=json.dumps(tasks), code=0)
    return str(told.json["job_id"])


def status(farro: Program, name: str) -> dict[str, Any]:
    told: dict[str, Any] = farro.call("status", "--job", name, "--json", code=0).json["job"]
    return told


def states(farro: Program, name: str) -> dict[str, str]:
    return {item["id"]: item["state"] for item in status(farro, name)["tasks"]}


def working(farro: Program, name: str, marker: str) -> Daemon:
    """Start a worker and wait until it runs the job."""
    worker = farro.start("worker", "--workers", "1")
    eventually(lambda: (farro.path / marker).exists(), f"{name} does not start")
    return worker


# --- named jobs --------------------------------------------------------------------------------------------------


def test_a_named_job_goes_from_waiting_to_completed(farro: Program) -> None:
    job_id = create(farro, "nightly", task("a", "echo one"), task("b", "echo two", "a"))
    before = status(farro, "nightly")
    assert (before["state"], before["done"], before["total"], before["job_id"]) == ("waiting", 0, 2, job_id)
    farro.worked()
    after = status(farro, "nightly")
    assert (after["state"], after["status"], after["done"]) == ("completed", "succeeded", 2)
    assert [(item["id"], item["state"], item["exit_code"], item["needs"]) for item in after["tasks"]] == [
        ("a", "completed", 0, []),
        ("b", "completed", 0, ["a"]),
    ]
    shown = farro.call("status", code=0).out.splitlines()
    assert "no worker is alive" in shown[0]
    assert shown[1].split() == ["JOB", "STATE", "PROGRESS", "STEP", "TIME"]
    assert "nightly  completed  [##########] 2/2" in shown[2]


def test_status_of_a_running_job_shows_its_step_and_the_live_processes(farro: Program) -> None:
    create(farro, "nightly", task("a", "true"), task("b", "touch begun; sleep 1000", "a"), task("c", "true", "b"))
    worker = working(farro, "nightly", "begun")
    told = farro.call("status", "--job", "nightly", "--json", code=0).json
    assert told["alive"] == {"workers": 1, "busy": 1, "manager": False, "watchdog": False}
    job = told["job"]
    assert (job["state"], job["done"], job["total"], job["running"]) == ("working", 1, 3, ["b"])
    assert states(farro, "nightly") == {"a": "completed", "b": "running", "c": "pending"}
    assert "1 worker slot alive, 1 busy; no manager and no watchdog" in farro.call("status", code=0).out
    worker.end()


def test_status_counts_the_live_processes(farro: Program) -> None:
    for daemon in (("worker", "--workers", "2"), ("manager",), ("watchdog",)):
        farro.start(*daemon).started()
    everybody = {"workers": 2, "busy": 0, "manager": True, "watchdog": True}
    eventually(
        lambda: farro.call("status", "--json", code=0).json["alive"] == everybody, "not all processes are listed"
    )
    assert farro.call("status", code=0).out.startswith("2 worker slots alive, 0 busy; manager and watchdog alive\n")


def test_taken_name_is_refused_with_advice(farro: Program) -> None:
    job_id = create(farro, "nightly", task("a", "true"))
    before = listing(farro.path)
    again = farro.call("job", "create", "nightly", "--tasks", "-", stdin=json.dumps([task("a", "true")]), code=2)
    for words in (job_id, "farro status --job nightly", "farro reset --job nightly"):
        assert words in again.err
    assert farro.call("job", "create", "a/b", "--tasks", "-", stdin="[]", code=2).err.startswith("farro: 'a/b' is not")
    assert "is the id of a job" in farro.call("job", "create", job_id, "--tasks", "-", stdin="[]", code=2).err
    bad = farro.call("job", "create", "other", "--tasks", "-", stdin='[{"id": "a"}]', code=2)
    assert "<stdin>:1:2: [0].command: is required" in bad.err
    known = {"id": job_id, "tasks": [task("a", "true")]}
    assert "a job has one name" in farro.call("job", "create", "b", "--tasks", "-", stdin=json.dumps(known), code=2).err
    assert listing(farro.path) == before


def test_one_of_two_concurrent_creates_wins(farro: Program) -> None:
    (farro.path / "tasks.json").write_text(json.dumps([task("a", "true")]))
    done: list[Done] = []

    def run() -> None:
        done.append(farro.run("job", "create", "nightly", "--tasks", "tasks.json"))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told.code for told in done) == [0, 2, 2]
    assert len(farro.call("ls", "--json", code=0).json["jobs"]) == 1


def test_every_command_accepts_a_job_name(farro: Program) -> None:
    job_id = create(farro, "nightly", task("a", "echo said"))
    farro.call("enqueue", "--after", "nightly", "--", "true", code=0)
    farro.worked()
    assert farro.call("show", "nightly", "--json", code=0).json["name"] == "nightly"
    assert farro.call("job", "show", "nightly", "--json", code=0).json["job_id"] == job_id
    for verb in ("explain", "history", "wait", "kill"):
        assert job_id in farro.call(verb, "nightly").out
    assert "did you mean nightly?" in farro.call("show", "nightl", code=2).err
    assert farro.call("job", "list", "--json", code=0).json == {"names": {"nightly": job_id}}


def test_pruned_job_frees_its_name(farro: Program) -> None:
    create(farro, "nightly", task("a", "true"))
    farro.worked()
    farro.run("prune", "--keep", "0", code=0)
    assert farro.call("job", "list", "--json", code=0).json == {"names": {}}
    assert "no job" in farro.call("status", "--job", "nightly", code=2).err
    create(farro, "nightly", task("a", "true"))


def test_status_all_lists_every_job(farro: Program) -> None:
    create(farro, "nightly", task("a", "true"))
    other = farro.call("enqueue", "--", "true", code=0).out.strip()
    assert [job["name"] for job in farro.call("status", "--json", code=0).json["jobs"]] == ["nightly"]
    assert [job["job_id"] for job in farro.call("status", "--all", "--json", code=0).json["jobs"]][1:] == [other]
    farro.call("status", "--all", "--job", "nightly", code=2)


# --- logs, run-task ----------------------------------------------------------------------------------------------


def test_logs_show_the_output_of_every_task(farro: Program) -> None:
    """Upstream: logs were empty. Here the output of every task is shown, the last 50 lines by default."""
    create(farro, "nightly", task("a", "seq 100"), task("b", "echo bad >&2; exit 1", "a"))
    waiting = farro.run("logs", "--job", "nightly", code=0)
    assert "has not run yet" in waiting.err
    farro.worked()
    lines = farro.run("logs", "--job", "nightly", code=0).out.splitlines()
    assert (len(lines), lines[-2:]) == (50, ["100", "bad"])
    assert farro.run("logs", "--job", "nightly", "--tail", "1", code=0).out == "bad\n"
    assert len(farro.run("logs", "nightly", code=0).out.splitlines()) == 101
    farro.run("logs", code=2)
    farro.run("logs", "nightly", "--job", "nightly", code=2)


def test_a_task_runs_here_with_its_output_and_exit_code(farro: Program) -> None:
    create(
        farro,
        "nightly",
        task("a", "printf 'from a'"),
        task("b", "cat; echo $FARRO_STEP >&2; exit 7", "a", input_from_step="a"),
    )
    early = farro.run("run-task", "--job", "nightly", "--task", "b", code=2)
    assert "reads what task a says, and that one has not run yet" in early.err
    farro.worked()
    before = listing(farro.path)
    told = farro.run("run-task", "--job", "nightly", "--task", "b", code=7)
    assert (told.out, told.err) == ("from a", "b\n")
    answered = farro.run("run-task", "--job", "nightly", "--task", "b", "--json", code=7)
    assert (answered.json["exit_code"], answered.err) == (7, "from ab\n")
    assert "known: a, b" in farro.run("run-task", "--job", "nightly", "--task", "c", code=2).err
    assert listing(farro.path) == before, "no state is changed"


def test_run_task_ends_every_process_that_the_task_started(farro: Program) -> None:
    create(farro, "nightly", task("a", "sleep 1000 & sleep 1001", timeout=0.2))
    farro.run("run-task", "--job", "nightly", "--task", "a", code=124)
    assert marked(farro.path) == []


def test_the_example_task_list_whose_task_runs_itself_succeeds(farro: Program) -> None:
    """The example task list of the document: the command of its task is `run-task` of that task."""
    run = ["run-task", "--job", "nightly", "--task", "task-001"]
    example = {**task("task-001", ""), "command": os.path.join(BIN, "air-executor"), "args": run}
    create(farro, "nightly", example)
    farro.worked()
    assert states(farro, "nightly") == {"task-001": "completed"}
    assert "`run-task` of itself" in farro.run("logs", "--job", "nightly", code=0).out
    assert "`run-task` of itself" in air_executor(farro, *run).err


# --- tasks that fail ---------------------------------------------------------------------------------------------


def test_a_program_that_cannot_be_started_fails_its_task_and_independent_tasks_run(farro: Program) -> None:
    (farro.path / "plain").write_text("no program")
    for name, program in (("missing", "no-such-program"), ("plain", "./plain")):
        wrong = {**task("a", ""), "command": program, "args": [], "job_name": name}
        others = (task("b", "echo independent", job_name=name), task("c", "echo after", "a", job_name=name))
        create(farro, name, wrong, *others)
        farro.worked()
        told = status(farro, name)
        assert (told["state"], states(farro, name)) == ("failed", {"a": "failed", "b": "completed", "c": "pending"})
        assert program in told["tasks"][0]["error"]
        assert program in air_executor(farro, "status", "--job", name).out
        logs = air_executor(farro, "logs", "--job", name).out.splitlines()
        assert program in logs[0]
        assert "executable" in logs[0]
        assert logs[1:] == ["independent"]


def test_the_logs_of_a_failed_job_that_wrote_nothing_give_the_reason(farro: Program) -> None:
    create(farro, "nightly", task("a", "exit 7"))
    farro.worked()
    assert "exit code 7" in air_executor(farro, "logs", "--job", "nightly").err


def test_a_full_disk_fails_the_task_and_the_worker_goes_on_when_there_is_room(tmp_path: Path) -> None:
    tasks = [task("fits", "echo one"), task("full", "head -c 8000000 /dev/zero"), task("after", "echo two", "full")]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    (tmp_path / "later.json").write_text(json.dumps([task("a", "echo there is room", job_name="later")]))
    script = """
        mkdir "$HERE/disk"; mount -t tmpfs -o size=4m tmpfs "$HERE/disk"; ROOT="$HERE/disk/queue"
        export FARRO_ROOT="$ROOT"; farro init --root "$ROOT" > "$HERE/init"
        air-executor job create nightly --tasks "$HERE/tasks.json" > "$HERE/created"
        farro worker --workers 1 > "$HERE/worker.log" & WORKER=$!
        until grep -q "No space left" "$HERE/worker.log"; do sleep 0.1; done
        mount -o remount,size=64m "$HERE/disk"
        air-executor job create later --tasks "$HERE/later.json" >> "$HERE/created"
        farro wait nightly > "$HERE/waited" || true; farro wait later >> "$HERE/waited"
        air-executor status --job nightly --json > "$HERE/status"; air-executor logs --job later > "$HERE/later"
        kill $WORKER; wait $WORKER
    """
    done = apart(script, tmp_path, {})
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "status").read_text())["job"]
    assert told["state"] == "failed"
    assert {item["id"]: item["state"] for item in told["tasks"]} == {
        "fits": "completed",
        "full": "failed",
        "after": "pending",
    }
    assert (tmp_path / "later").read_text() == "there is room\n"


# --- reset -------------------------------------------------------------------------------------------------------


def test_reset_leaves_no_failed_task(farro: Program) -> None:
    """Upstream: reset left failed tasks. Here a new job runs all of them, and the old one is kept."""
    first = create(farro, "nightly", task("a", "echo a >> ran"), task("b", "echo b >> ran; test -e fixed", "a"))
    farro.worked()
    assert states(farro, "nightly") == {"a": "completed", "b": "failed"}
    assert status(farro, "nightly")["state"] == "failed"
    (farro.path / "fixed").touch()
    told = farro.call("reset", "--job", "nightly", "--yes", "--json", code=0).json
    assert (told["before"], told["changed"]) == (first, True)
    assert states(farro, "nightly") == {"a": "pending", "b": "pending"}
    again = farro.call("reset", "--job", "nightly", "--yes", code=0)
    assert "is waiting already" in again.out
    farro.worked()
    assert status(farro, "nightly")["state"] == "completed"
    assert (farro.path / "ran").read_text() == "a\nb\na\nb\n"
    assert farro.job(told["job_id"])["retry_of"] == first
    assert farro.status(first) == "failed"


def test_reset_without_a_terminal_requires_yes_and_changes_nothing(farro: Program) -> None:
    create(farro, "nightly", task("a", "false"))
    farro.worked()
    before = listing(farro.path)
    assert "--yes" in farro.run("reset", "--job", "nightly", code=2).err
    assert "did you mean nightly?" in farro.run("reset", "--job", "nigtly", "--yes", code=2).err
    assert listing(farro.path) == before


def test_reset_obeys_an_answer_from_a_pipe(farro: Program) -> None:
    first = create(farro, "nightly", task("a", "false"))
    farro.worked()
    assert "nothing was changed" in air_executor(farro, "reset", "--job", "nightly", stdin="n\n", code=1).err
    assert status(farro, "nightly")["job_id"] == first
    assert "nightly is waiting" in air_executor(farro, "reset", "--job", "nightly", stdin="y\n").out
    assert status(farro, "nightly")["state"] == "waiting"


def test_reset_of_an_unnamed_job_names_the_retry_command(farro: Program) -> None:
    unnamed = farro.call("enqueue", "--", "true", code=0).out.strip()
    assert f"farro retry {unnamed}" in farro.run("reset", "--job", unnamed, "--yes", code=2).err


def test_reset_obeys_the_answer_at_the_terminal(farro: Program) -> None:
    first = create(farro, "nightly", task("a", "false"))
    farro.worked()
    for reply, code, words in ((b"n", 1, b"nothing was changed"), (b"y", 0, b"nightly is waiting")):
        screen, keys = os.openpty()
        with subprocess.Popen(
            [os.path.join(BIN, "farro"), "reset", "--job", "nightly"],
            cwd=farro.path,
            env=farro.env,
            stdin=keys,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            os.close(keys)
            os.write(screen, reply + b"\n")
            out, _ = process.communicate(timeout=60)
        os.close(screen)
        assert (process.returncode, words in out) == (code, True), out
        assert f"Reset nightly ({first})?".encode() in out
    assert status(farro, "nightly")["job_id"] != first


def test_running_job_is_reset_only_with_force(farro: Program) -> None:
    first = create(farro, "nightly", task("a", "touch begun; sleep 1000"))
    worker = working(farro, "nightly", "begun")
    refused = farro.call("reset", "--job", "nightly", "--yes", code=3)
    assert "farro kill nightly" in refused.err
    worker.send(signal.SIGSTOP)  # it must not claim the new job before the test has looked
    farro.call("reset", "--job", "nightly", "--yes", "--force", code=0)
    assert farro.status(first) == "killed"
    assert status(farro, "nightly")["state"] == "waiting"
    assert marked(farro.path) == []
    worker.kill()


def test_concurrent_resets_make_one_job(farro: Program) -> None:
    create(farro, "nightly", task("a", "false"))
    farro.worked()
    done: list[Done] = []

    def run() -> None:
        done.append(farro.run("reset", "--job", "nightly", "--yes"))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The other commands report that another reset came first, or that the job waits already.
    assert {told.code for told in done} <= {0, 1}
    assert sum("what it was before" in told.out for told in done) == 1
    assert len(farro.call("ls", "--json", code=0).json["jobs"]) == 2


def test_stale_job_and_job_of_a_dead_worker_can_be_reset(farro: Program) -> None:
    for recovered in (False, True):
        name = f"nightly-{recovered}"
        first = create(farro, name, task("a", f"touch {name}; sleep 1000"))
        working(farro, name, name).kill()
        told = status(farro, name)
        assert (told["state"], told["note"]) == ("waiting", "its worker died; a watchdog recovers it")
        if recovered:
            farro.call("watchdog", "--once", code=0)
            assert (status(farro, name)["state"], farro.status(first)) == ("waiting", "stale")
        farro.call("reset", "--job", name, "--yes", code=0)
        assert farro.status(first) == "killed"
        assert states(farro, name) == {"a": "pending"}
        farro.call("kill", name, code=0)


# --- bugs of the original ---------------------------------------------------------------------------------


def test_an_orphaned_running_task_does_not_complete_its_job(farro: Program) -> None:
    """Upstream: a task in state running, with no pending task beside it, completed the job."""
    create(farro, "nightly", task("a", "test -e begun && exit 0; touch begun; sleep 1000"))
    working(farro, "nightly", "begun").kill()
    assert (status(farro, "nightly")["state"], states(farro, "nightly")) == ("waiting", {"a": "pending"})
    farro.call("watchdog", "--once", code=0)
    assert (status(farro, "nightly")["state"], states(farro, "nightly")) == ("waiting", {"a": "pending"})
    farro.call("manager", "--once", code=0)
    farro.worked()
    assert (status(farro, "nightly")["state"], states(farro, "nightly")) == ("completed", {"a": "completed"})
    assert farro.job("nightly")["attempt"] == 2


def test_failed_dependency_fails_the_job_instead_of_running_for_ever(farro: Program) -> None:
    """Upstream: a job with a task that waited for a failed one stayed running for ever."""
    create(farro, "nightly", task("a", "exit 3"), task("b", "touch ran-b", "a"), task("c", "touch ran-c", "b"))
    farro.worked()
    told = status(farro, "nightly")
    assert (told["state"], told["error"]) == ("failed", "step_failed: step a: exit code 3")
    assert states(farro, "nightly") == {"a": "failed", "b": "pending", "c": "pending"}
    assert "not run" in farro.call("status", "--job", "nightly", code=0).out
    assert not list(farro.path.glob("ran-*"))


def test_status_includes_a_child_task_added_during_a_run(farro: Program) -> None:
    """Upstream: it was lost. test_tasks.py shows that it runs."""
    farro.env["PATH"] = f"{BIN}{os.pathsep}{farro.env['PATH']}"
    create(farro, "nightly", task("a", "farro task add --id child -- touch ran-child"))
    farro.worked()
    assert states(farro, "nightly") == {"a": "completed", "child": "completed"}
    told = status(farro, "nightly")
    assert (told["done"], told["total"]) == (2, 2)


def test_a_timeout_is_enforced_on_grandchildren_too(farro: Program) -> None:
    """Upstream: timeouts were never enforced, and grandchildren would have survived one."""
    create(farro, "nightly", task("a", "(setsid sleep 1000 &) ; sleep 1001", timeout=0.3))
    farro.worked()
    told = status(farro, "nightly")
    assert told["state"] == "failed"
    assert "timeout" in told["error"]
    assert marked(farro.path) == []


def test_output_that_is_not_utf8_fails_no_job(farro: Program) -> None:
    create(farro, "nightly", task("a", r"printf '\377\376\000\n'"))
    farro.worked()
    assert status(farro, "nightly")["state"] == "completed"
    done = subprocess.run(
        [os.path.join(BIN, "farro"), "logs", "--job", "nightly"], cwd=farro.path, env=farro.env, capture_output=True
    )
    assert done.stdout == b"\xff\xfe\x00\n"


def test_large_pipes_do_not_deadlock(farro: Program) -> None:
    """Upstream: stdin was written whole before stdout was read."""
    create(
        farro,
        "nightly",
        task("a", "head -c 8000000 /dev/zero"),
        task("b", "cat; head -c 1000000 /dev/zero >&2", "a", input_from_step="a"),
        task("c", "wc -c", "b", input_from_step="b"),
    )
    farro.worked()
    assert farro.run("logs", "--job", "nightly", "--step", "c", code=0).out.strip() == "8000000"


KINDS = ("garbage", "empty", "truncated", "folder", "link", "pipe", "unreadable", "missing")


def corrupt(path: Path, kind: str) -> None:
    text = path.read_bytes()
    if kind == "unreadable":
        path.chmod(0)
        return
    path.unlink()
    match kind:
        case "garbage":
            path.write_bytes(b"\x00\xff{{{")
        case "empty":
            path.write_bytes(b"")
        case "truncated":
            path.write_bytes(text[: len(text) // 2])
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to("../elsewhere")
        case "pipe":
            os.mkfifo(path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["job.json", "prompt.json"])
def test_a_corrupt_job_fails_alone(farro: Program, name: str, kind: str) -> None:
    """Upstream: a corrupt task file was an empty queue, which was a completed job; one bad job killed the worker."""
    prefix = unprivileged() if kind == "unreadable" else []
    for job in ("bad", "good", "later"):
        create(farro, job, task("a", f"touch ran-{job}"))
    corrupt(farro.folder(farro.job("bad")["job_id"]) / name, kind)
    assert farro.run("status", code=0, prefix=prefix).out.count("\n") == 5
    assert farro.run("explain", "bad", "--json", code=0, prefix=prefix).json["reason"] == "damaged"
    farro.run("worker", "--drain", code=0, prefix=prefix)
    assert [status(farro, job)["state"] for job in ("good", "later")] == ["completed", "completed"]
    told = status(farro, "bad")
    if name == "job.json" and kind in ("garbage", "empty", "truncated", "missing"):
        # The lifecycle is rebuilt from the submission: the job has run, and no value was guessed.
        assert (told["state"], (farro.path / "ran-bad").exists()) == ("completed", True)
        return
    assert (told["state"], told["done"]) == ("failed", 0)
    assert name in told["error"]
    assert not (farro.path / "ran-bad").exists()
    assert farro.call("explain", "bad", "--json", code=0).json["reason"] == "quarantined"
    assert name in farro.call("show", "bad", code=0).out
    assert "after it was created" not in farro.call("history", "bad", code=0).out
    hint = farro.run("status", "--job", "bad", code=0, prefix=prefix).out
    assert ("farro reset --job bad --tasks FILE" in hint) == (name == "prompt.json")
    if name == "job.json":
        farro.call("reset", "--job", "bad", "--yes", code=0)
    else:
        refused = farro.run("reset", "--job", "bad", "--yes", prefix=prefix)
        assert refused.code == 1
        assert "farro reset --job bad --tasks FILE" in refused.err
        again = json.dumps([task("a", "touch ran-bad")])
        farro.call("reset", "--job", "bad", "--yes", "--tasks", "-", stdin=again, code=0)
    farro.worked()
    assert (status(farro, "bad")["state"], (farro.path / "ran-bad").exists()) == ("completed", True)


# --- the alias ---------------------------------------------------------------------------------------------------


def air(farro: Program, *args: str, code: int) -> Done:
    script = "from farro.cli.aliases import air_executor; air_executor()"
    done = subprocess.run(
        [sys.executable, "-c", script, *args], cwd=farro.path, env=farro.env, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    return Done(code=code, out=done.stdout, err=done.stderr)


def test_air_executor_offers_these_commands_under_its_own_name(farro: Program) -> None:
    told = air(farro, "--help", code=0).out
    assert told.startswith("Usage: air-executor ")
    for verb in ("status", "logs", "reset", "run-task", "job", "import-air"):
        assert f"\n  {verb} " in told
    assert "enqueue" not in told
    assert air(farro, "--version", code=0).out.startswith("air-executor ")
    (farro.path / "tasks.json").write_text(json.dumps([task("a", "echo said; exit 4")]))
    air(farro, "job", "create", "nightly", "--tasks", "tasks.json", code=0)
    assert "waiting" in air(farro, "status", "--job", "nightly", code=0).out
    assert air(farro, "run-task", "--job", "nightly", "--task", "a", code=4).out == "said\n"
    farro.worked()
    assert air(farro, "logs", "--job", "nightly", "--tail", "5", code=0).out == "said\n"
    air(farro, "reset", "--job", "nightly", "--yes", code=0)
    wrong = air(farro, "enqueue", code=2)
    assert "air-executor --help" in wrong.err
    assert air(farro, "status", "--job", "none", code=2).err.startswith("air-executor: no job none")


def test_air_executor_start_and_stop_are_those_of_farro() -> None:
    """What they do is tested under the name of farro: tests/flows/test_background.py."""
    import click

    from farro.cli.aliases import air_command
    from farro.cli.main import farro as all_commands

    command = air_command()
    assert isinstance(command, click.Group)
    offered = command.list_commands(click.Context(command))
    assert offered == ["start", "stop", "status", "logs", "reset", "job", "run-task", "import-air"]
    for name in ("start", "stop"):
        found = command.get_command(click.Context(command), name)
        assert found is not None
        assert found is all_commands.get_command(click.Context(all_commands), name)
