"""`farro run`: run a command as a job in the foreground, with its output and its exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows.program import FARRO, PATIENCE_S, Program, marked, shell, steps
from support import eventually


def only_job(farro: Program) -> dict[str, object]:
    (job,) = farro.call("ls", "--json", code=0).json["jobs"]
    return dict(job)


def run_bytes(farro: Program, *args: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [FARRO, "run", *args], cwd=farro.path, env=farro.env, capture_output=True, check=False, timeout=PATIENCE_S
    )


def test_a_command_runs_without_any_preparation(empty: Program) -> None:
    done = empty.run("run", "--", "echo", "hello", code=0)
    own = empty.path / ".state" / "farro"
    assert done.out == "hello\n"
    assert done.err == f"farro: jobs are kept in {own} (no root here; `farro init` makes one)\n"
    assert os.listdir(empty.path) == [".state"], "nothing else was created in the working folder"
    again = empty.run("run", "--", "echo", "hello", code=0)
    assert (again.out, again.err) == ("hello\n", ""), "the note is printed once"
    jobs = empty.run("ls", "--json", code=0).json["jobs"]
    assert [job["status"] for job in jobs] == ["succeeded", "succeeded"], "ls finds them too"


def test_run_uses_the_nearest_root_above(farro: Program) -> None:
    below = farro.path / "src"
    below.mkdir()
    assert farro.run("run", "--", "pwd", cwd=below, code=0).out == f"{below}\n"
    assert only_job(farro)["status"] == "succeeded"
    assert not (farro.path / ".state").exists()


def test_named_root_must_be_a_root(empty: Program) -> None:
    told = empty.run("run", "--root", "nowhere", "--", "true", code=2)
    assert "nowhere does not exist; make one with: farro init --root nowhere" in told.err
    told = empty.run("run", "--", "true", env={"FARRO_ROOT": "nowhere"}, code=2)
    assert "nowhere does not exist" in told.err
    assert os.listdir(empty.path) == []


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 1", 1), ("exit 42", 42), ("kill -9 $$", 137), ("kill -TERM $$", 143)],
)
def test_run_exits_with_the_commands_exit_code(farro: Program, script: str, code: int) -> None:
    assert farro.run("run", "--", "sh", "-c", script, code=code).err == ""


def test_exit_code_survives_an_ignored_sigchld(farro: Program) -> None:
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    for code in (0, 7):
        argv = [sys.executable, "-c", ignoring, FARRO, "run", "--", "sh", "-c", f"exit {code}"]
        done = subprocess.run(argv, cwd=farro.path, env=farro.env, check=False, timeout=PATIENCE_S)
        assert done.returncode == code


def test_command_that_cannot_start_has_the_exit_code_of_a_shell(farro: Program) -> None:
    told = farro.run("run", "--", "no-such-program", code=127)
    assert "no-such-program was not found on the PATH" in told.err
    (farro.path / "plain").write_text("text")
    assert "not executable" in farro.run("run", "--", "./plain", code=126).err
    for name, text, why in (
        ("no-shebang", "echo", "neither a program nor a script with a #! line"),
        ("lost", "#!/no/such/interpreter", "the interpreter in its #! line was not found"),
    ):
        (farro.path / name).write_text(text)
        (farro.path / name).chmod(0o755)
        assert farro.run("run", "--", f"./{name}", code=126).err.endswith(f": {why}\n")
    plan = farro.path / "plan.json"
    plan.write_text('{"steps": [{"id": "a", "command": "pwd", "cwd": "nowhere"}]}')
    told = farro.run("run", "--plan", str(plan), code=126)
    assert told.err.endswith(f": step a: cwd {farro.path}/nowhere: not a folder that can be entered\n")
    told = farro.run("run", "--timeout", "0.2s", "--", "sleep", "100", code=124)
    assert "timeout of 0.2 s" in told.err


def test_both_streams_are_passed_on_byte_for_byte(farro: Program) -> None:
    data = bytes(range(256)) * 2000
    (farro.path / "data").write_bytes(data)
    done = run_bytes(
        farro, "--", "sh", "-c", "cat data; tac -s '' data >/dev/null 2>&1; printf 'e\\0\\377' >&2; exit 5"
    )
    assert (done.stdout, done.stderr, done.returncode) == (data, b"e\0\xff", 5)
    job = only_job(farro)
    kept = farro.path / str(job["place"]) / str(job["job_id"]) / "attempts/0001/steps/1"
    assert (kept / "stdout").read_bytes() == data
    assert (kept / "stderr").read_bytes() == b"e\0\xff"


def test_output_is_printed_while_the_command_runs(farro: Program) -> None:
    script = "echo one; while [ ! -e go ]; do sleep 0.01; done; echo two"
    process = subprocess.Popen(
        [FARRO, "run", "--", "sh", "-c", script], cwd=farro.path, env=farro.env, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"one\n"
    (farro.path / "go").touch()
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert (out, process.returncode) == (b"two\n", 0)


def test_options_after_the_command_belong_to_the_command(farro: Program) -> None:
    assert farro.run("run", "--", "echo", "--json", "--", "-n", code=0).out == "--json -- -n\n"
    assert farro.run("run", "echo", "--json", "x", code=0).out == "--json x\n", "the -- may be left out"


def test_command_runs_with_the_callers_environment_and_folder(
    farro: Program, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    done = farro.run("run", "--env", "B=2=3", "--", "sh", "-c", "echo $A $B; pwd", env={"A": "1"}, code=0)
    assert done.out == f"1 2=3\n{farro.path}\n"
    assert farro.run("run", "--cwd", str(elsewhere), "--", "pwd", code=0).out == f"{elsewhere}\n"
    assert "--cwd: nowhere is not a folder" in farro.run("run", "--cwd", "nowhere", "--", "pwd", code=2).err
    assert "--env: '1x' is not the name of a variable" in farro.run("run", "--env", "1x=2", "--", "pwd", code=2).err


def test_run_uses_its_own_process_despite_idle_workers(farro: Program) -> None:
    """Ten runs beside an idle worker: each runs in its own process, with its own environment."""
    worker = farro.start("worker").started()
    for number in range(10):
        done = farro.run("run", "--", "sh", "-c", "echo $WHO", env={"WHO": str(number)}, code=0)
        assert done.out == f"{number}\n"
    assert worker.end().code == 0
    jobs = farro.call("ls", "--json", code=0).json["jobs"]
    assert {job["agent"].split(".")[0] for job in jobs} == {"run"}


def test_a_command_with_tags_needs_no_worker_that_offers_them(farro: Program) -> None:
    farro.run("run", "--tag", "gpu", "--priority", "P0", "--", "true", code=0)
    job = only_job(farro)
    prompt = json.loads((farro.path / str(job["place"]) / str(job["job_id"]) / "prompt.json").read_text())
    assert prompt["metadata"] == {"tags": ["gpu"], "priority": "P0"}
    assert prompt["name"] == "true"


def test_a_whole_plan_is_run_with_its_steps_output_in_order(farro: Program) -> None:
    plan = steps(("echo", "a"), ("sh", "-c", "echo b; echo c >&2; exit 3"), ("echo", "never"))
    (farro.path / "plan.json").write_text(json.dumps(plan))
    done = farro.run("run", "--plan", "plan.json", code=3)
    assert (done.out, done.err) == ("a\nb\n", f"c\nfarro: {only_job(farro)['job_id']}: step 2: exit code 3\n")
    done = farro.run("run", "--plan", "-", stdin=json.dumps(steps(("echo", "x"), ("echo", "y"))), code=0)
    assert done.out == "x\ny\n"


IN_TURN = """\
for n in 1 2 3; do
  echo %(own)s$n; touch %(own)s$n; while [ ! -e %(other)s$n ]; do sleep 0.01; done
done
%(end)s"""


def in_turn(**plan: object) -> dict[str, object]:
    """Build two steps that print in turn; the first fails before the second ends."""
    a = IN_TURN % {"own": "a", "other": "b", "end": "touch a-over; exit 7"}
    b = IN_TURN % {"own": "b", "other": "a", "end": "while [ ! -e a-over ]; do sleep 0.01; done; sleep 0.2; echo last"}
    return steps(("sh", "-c", a), ("sh", "-c", b), **plan)


def test_parallel_steps_lose_no_output_and_the_failed_one_sets_the_exit_code(farro: Program) -> None:
    (farro.path / "plan.json").write_text(json.dumps(in_turn(parallel=2)))
    done = farro.run("run", "--plan", "plan.json", "--cwd", ".", code=7)
    assert done.out == "a1\na2\na3\nb1\nb2\nb3\nlast\n", "in the order of the plan"
    assert done.err == f"farro: {only_job(farro)['job_id']}: step 1: exit code 7\n"


def test_run_prints_the_output_of_every_try_of_a_step(farro: Program) -> None:
    plan = steps(("sh", "-c", "echo try; mkdir first 2>/dev/null && exit 1; echo good"))
    plan["steps"][0]["retries"] = 2
    (farro.path / "plan.json").write_text(json.dumps(plan))
    assert farro.run("run", "--plan", "plan.json", "--cwd", ".", code=0).out == "try\ntry\ngood\n"


def test_json_has_the_answer_on_stdout_and_the_output_on_stderr(farro: Program) -> None:
    done = farro.run("run", "--json", "--", "sh", "-c", "echo out; exit 4", code=4)
    assert done.err == "out\n"
    assert done.json == {"job_id": only_job(farro)["job_id"], "status": "failed", "exit_code": 4}


def test_detached_run_is_queued(farro: Program) -> None:
    job_id = farro.run("run", "--detach", "--", "touch", "made", code=0).out.strip()
    assert farro.status(job_id) == "queued"
    farro.worked()
    assert (farro.path / "made").exists()


def test_run_with_a_known_id_repeats_the_answer_without_running(farro: Program) -> None:
    args = ("run", "--id", "once", "--", "sh", "-c", "echo said; echo x >> times; exit 6")
    for _ in range(2):
        assert farro.run(*args, code=6).out == "said\n"
    assert (farro.path / "times").read_text() == "x\n"
    assert "was submitted before with other content" in farro.run("run", "--id", "once", "--", "true", code=2).err


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_asks_the_command_to_end_and_kills_the_job(
    farro: Program, number: signal.Signals, code: int, word: str
) -> None:
    script = "trap 'echo bye; exit 0' TERM; touch started; while :; do sleep 0.05; done"
    run = farro.start("run", "--", "sh", "-c", script)
    eventually((farro.path / "started").exists, "it did not start")
    done = run.end(number)
    assert (done.code, done.out) == (code, "bye\n")
    assert done.err.endswith(f"farro: {word}; the job is killed\n")
    assert only_job(farro)["status"] == "killed"
    assert farro.call("worker", "--drain", code=0)
    assert only_job(farro)["status"] == "killed", "no worker starts it again"
    assert marked(farro.path) == []


def test_closed_pipe_ends_the_command(farro: Program) -> None:
    command = f"{FARRO} run -- yes | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=farro.path, env=farro.env, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.stdout == b"y\n141\n"
    assert only_job(farro)["status"] == "killed"
    assert "its output has no reader any more" in farro.call("show", str(only_job(farro)["job_id"]), code=0).out


def test_command_that_ended_before_its_reader_left_succeeds(farro: Program) -> None:
    """It prints more than a pipe holds; the reader waits for its end, and then closes the pipe."""
    reader = "while [ ! -s pid ] || kill -0 $(cat pid) 2>&-; do sleep 0.01; done"
    command = f"{FARRO} run --id one -- sh -c 'echo $$ > pid; seq 100000' | ({reader}); echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=farro.path, env=farro.env, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert (done.stdout, done.stderr) == (b"141\n", b"")
    assert only_job(farro)["status"] == "succeeded"
    assert farro.call("watchdog", "--once", "--json", code=0).json == {"recovered": []}


def test_full_stdout_is_reported_and_the_command_continues(farro: Program) -> None:
    for args, code in (("echo hi; echo ran >> ran.txt", 1), ("echo hi; exit 4", 4)):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [FARRO, "run", "--id", f"full{code}", "--", "sh", "-c", args],
                cwd=farro.path,
                env=farro.env,
                stdout=full,
                stderr=subprocess.PIPE,
                check=False,
                timeout=PATIENCE_S,
            )
        told = (
            f"farro: what it said could not be written to stdout: No space left on device; `farro logs full{code}` has"
        )
        assert (done.returncode, done.stderr.decode()) == (code, f"{told} all of it\n")
    assert (farro.path / "ran.txt").read_text() == "ran\n"
    assert (farro.status("full1"), farro.status("full4")) == ("succeeded", "failed")
    assert farro.call("logs", "full1", code=0).out == "hi\n"


def test_stdin_of_run_is_the_commands_input(farro: Program) -> None:
    assert farro.run("run", "--", "wc", "-l", stdin="a\nb\n", code=0).out.strip() == "2"
    assert farro.run("run", "--no-input", "--", "wc", "-l", stdin="a\nb\n", code=0).out.strip() == "0"
    job_id = farro.run("run", "--detach", "--", "cat", stdin=b"a\0\xff", code=0).out.strip()
    farro.worked()
    assert (farro.folder(job_id) / "attempts/0001/steps/1/stdout").read_bytes() == b"a\0\xff", "the job keeps its input"
    again = farro.call("retry", job_id, code=0).out.strip()
    farro.worked()
    assert (farro.folder(again) / "attempts/0001/steps/1/stdout").read_bytes() == b"a\0\xff"


def test_stdin_of_run_is_read_by_the_first_step_of_a_plan(farro: Program) -> None:
    plan = {"steps": [{"id": "a", "command": "cat"}, {"id": "b", "command": "wc", "args": ["-c"]}]}
    plan["steps"][1]["input_from_step"] = "a"
    (farro.path / "plan.json").write_text(json.dumps(plan))
    assert farro.run("run", "--plan", "plan.json", stdin="word\n", code=0).out.split() == ["word", "5"]


def test_input_beyond_the_limit_of_a_job_is_refused(farro: Program) -> None:
    config = json.loads((farro.path / "agents-config.json").read_text())
    config["security"]["max_job_bytes"] = 1000
    (farro.path / "agents-config.json").write_text(json.dumps(config))
    told = farro.run("run", "--", "wc", "-c", stdin=b"x" * 1001, code=2)
    assert "standard input is more than 1000 bytes" in told.err
    assert farro.call("ls", "--json", code=0).json["jobs"] == []


def test_the_manager_runs_no_commands(farro: Program) -> None:
    for way in (("run",), ("enqueue",)):
        told = farro.call(*way, "--role", "Manager", "--", "true", code=2).err
        assert "--role: Manager decides where agents' jobs go next, and runs no commands; leave it out" in told
    (farro.path / "plan.json").write_text(json.dumps(shell("true", role="Manager")))
    told = farro.call("enqueue", "plan.json", code=2).err
    assert "plan.json:1:" in told
    assert "role: is Manager, which decides" in told
    assert farro.call("ls", "--json", code=0).json["jobs"] == []


def test_job_of_a_killed_run_is_recovered_for_any_worker(farro: Program) -> None:
    run = farro.start("run", "--", "sh", "-c", "mkdir once && { touch started; exec sleep 100000; }; echo again")
    eventually((farro.path / "started").exists, "it did not start")
    run.kill()
    farro.call("watchdog", "--once", code=0)
    farro.call("manager", "--once", code=0)
    assert marked(farro.path) == [], "its processes were ended first"
    farro.worked()
    assert only_job(farro)["status"] == "succeeded"


def test_a_job_that_an_operator_kills_ends_its_run(farro: Program) -> None:
    run = farro.start("run", "--", "sh", "-c", "touch started; exec sleep 100000")
    eventually((farro.path / "started").exists, "it did not start")
    farro.call("kill", str(only_job(farro)["job_id"]), "--note", "enough", code=0)
    done = run.ended()
    assert done.code == 137
    assert "enough" in done.err


def test_argument_that_is_not_utf8_is_reported(farro: Program) -> None:
    done = run_bytes(farro, "--", "echo", "no\udcfftext")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"is not UTF-8 text" in done.stderr


def test_mistakes_are_reported(farro: Program, tmp_path: Path) -> None:
    assert "such as `farro run -- make test`" in farro.call("run", code=2).err
    assert "there is no command after --" in farro.call("run", "--", code=2).err
    assert "name one thing to run" in farro.call("run", "--plan", "x", "--", "true", code=2).err
    assert "--timeout: 'soon' is not a duration" in farro.call("run", "--timeout", "soon", "--", "true", code=2).err
    assert "--tag: " in farro.call("run", "--tag", "a b", "--", "true", code=2).err
    assert "must not be empty" in farro.call("run", "--", "", code=2).err
    plan = tmp_path / "after.json"
    plan.write_text(json.dumps(shell("true", metadata={"after": ["nobody"]})))
    assert "after.json:1:" in farro.call("run", "--plan", str(plan), code=2).err
    assert farro.call("ls", "--json", code=0).json["jobs"] == []
