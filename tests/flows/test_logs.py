"""`farro logs`: raw bytes in a pipe, escaped text at a terminal, the last lines of long output, and `--follow`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

from flows.program import FARRO, PATIENCE_S, Program, once_endless, shell, steps
from support import eventually


def raw(farro: Program, *args: str) -> bytes:
    done = subprocess.run([FARRO, *args], cwd=farro.path, env=farro.env, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def at_terminal(farro: Program, *args: str) -> str:
    ours, theirs = pty.openpty()
    process = subprocess.Popen([FARRO, *args], cwd=farro.path, env=farro.env, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    try:
        while chunk := os.read(ours, 65536):
            said += chunk
    except OSError:  # EIO: the other side is closed
        pass
    os.close(ours)
    assert process.wait(PATIENCE_S) == 0
    return said.decode().replace("\r\n", "\n")


def test_logs_of_one_stream_say_that_a_failed_job_wrote_nothing_to_it(farro: Program) -> None:
    farro.enqueue(steps(["sh", "-c", "echo oops >&2; exit 3"]), "--id", "job")
    farro.worked()
    assert "job wrote nothing to stdout; it failed: " in farro.call("logs", "job", "--stdout", code=0).err
    assert farro.call("logs", "job", "--stderr", code=0).err == ""


def test_logs_print_both_streams_of_all_steps_in_order(farro: Program) -> None:
    farro.enqueue(steps(["sh", "-c", "echo one; echo oops >&2"], ["echo", "two"]), "--id", "job")
    farro.worked()
    assert farro.call("logs", "job", code=0).out == "one\noops\ntwo\n"
    assert farro.call("logs", "job", "--stdout", code=0).out == "one\ntwo\n"
    assert farro.call("logs", "job", "--stderr", code=0).out == "oops\n"
    assert farro.call("logs", "job", "--step", "2", code=0).out == "two\n"
    assert farro.call("logs", "job", "--stdout", "--stderr", code=2).out == ""
    assert "known: 1, 2" in farro.call("logs", "job", "--step", "3", code=2).err
    assert "known: 1" in farro.call("logs", "job", "--attempt", "2", code=2).err


def test_logs_pass_bytes_unchanged(farro: Program) -> None:
    data = bytes(range(256)) * 40
    (farro.path / "data").write_bytes(data)
    farro.enqueue(shell("cat data"), "--id", "job")
    farro.worked()
    assert raw(farro, "logs", "job") == data
    told = farro.call("logs", "job", "--stdout", "--json", code=0).json["output"]
    assert list(told[0]) == ["step", "stream", "base64", "truncated"]


def test_tail_counts_the_lines_of_all_steps_together(farro: Program) -> None:
    farro.enqueue(steps(["seq", "100000"], ["sh", "-c", "echo a; printf b"]), "--id", "job")
    farro.worked()
    for count, wanted in ((0, ""), (1, "b"), (2, "a\nb"), (4, "99999\n100000\na\nb"), (3, "100000\na\nb")):
        assert farro.call("logs", "job", "--tail", str(count), code=0).out == wanted
    whole = farro.call("logs", "job", code=0).out
    assert farro.call("logs", "job", "--tail", "999999", code=0).out == whole
    assert whole.count("\n") == 100_001


def test_tail_of_gigabytes_is_read_from_the_end(farro: Program) -> None:
    farro.enqueue(shell("echo begin"), "--id", "job")
    farro.worked()
    stdout = farro.folder("job") / "attempts/0001/steps/1/stdout"
    with open(stdout, "r+b") as file:
        file.truncate(8 << 30)  # sparse: it has no bytes on the disk
        file.seek(0, 2)
        file.write(b"\nalmost\nthe end\n")
    assert raw(farro, "logs", "job", "--tail", "2", "--stdout") == b"almost\nthe end\n"


def test_logs_at_a_terminal_have_headlines_and_escape_control_characters(farro: Program) -> None:
    farro.enqueue(
        steps(["printf", r"\033]0;owned\007\033[31mred\033[0m\n"], ["sh", "-c", "printf open; echo oops >&2"]),
        "--id",
        "job",
    )
    farro.worked()
    told = at_terminal(farro, "logs", "job")
    assert told == (
        "==> step 1: stdout <==\n"
        "\\x1b]0;owned\\x07\x1b[31mred\x1b[0m\n"
        "\x1b[0m==> step 2: stdout <==\nopen\n"
        "==> step 2: stderr <==\noops\n"
    )


def test_logs_into_a_closed_pipe_print_no_error(farro: Program) -> None:
    farro.enqueue(steps(["seq", "500000"]), "--id", "job")
    farro.worked()
    done = subprocess.run(
        ["sh", "-c", f"{FARRO} logs job | head -1"], cwd=farro.path, env=farro.env, capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (b"1\n", b"")


def test_logs_of_a_job_that_has_not_run_are_empty_with_a_note(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "job")
    told = farro.call("logs", "job", code=0)
    assert told.out == ""
    assert "has not run yet" in told.err
    assert "farro explain job" in told.err
    assert farro.call("logs", "job", "--json", code=0).json == {
        "job_id": "job",
        "status": "queued",
        "attempt": None,
        "output": [],
    }


def test_follow_waits_for_a_queued_job_and_follows_it_to_its_end(farro: Program) -> None:
    farro.enqueue(
        steps(["sh", "-c", "echo one; until test -e go; do sleep 0.05; done; echo two"], ["echo", "3"]), "--id", "j"
    )
    out = farro.path / "followed"
    with open(out, "wb") as sink:
        follower = subprocess.Popen(
            [FARRO, "logs", "j", "--follow"], cwd=farro.path, env=farro.env, stdout=sink, stderr=subprocess.PIPE
        )
    assert follower.stderr is not None
    assert b"j is queued; waiting" in follower.stderr.readline()
    worker = farro.start("worker")
    eventually(lambda: out.read_bytes() == b"one\n", "it did not follow into the run")
    (farro.path / "go").touch()
    _, err = follower.communicate(timeout=PATIENCE_S)
    worker.end()
    assert (follower.returncode, err) == (0, b"")
    assert out.read_bytes() == b"one\ntwo\n3\n"


def test_follow_continues_with_the_next_attempt(farro: Program) -> None:
    farro.enqueue(once_endless(), "--id", "j")
    worker = farro.start("worker", "--workers", "1")
    eventually((farro.path / "started").exists, "the step did not start")
    out = farro.path / "followed"
    with open(out, "wb") as sink:
        follower = subprocess.Popen(
            [FARRO, "logs", "j", "-f", "--json"], cwd=farro.path, env=farro.env, stdout=sink, stderr=subprocess.DEVNULL
        )
    worker.kill()
    farro.call("watchdog", "--once", code=0)
    farro.call("requeue", "j", code=0)
    farro.worked()
    assert follower.wait(PATIENCE_S) == 0
    told = [json.loads(line) for line in out.read_text().splitlines()]
    assert told == [{"attempt": 2, "step": "1", "stream": "stdout", "text": "again\n"}]


def test_follow_of_a_retried_step_loses_and_repeats_nothing(farro: Program) -> None:
    script = "if mkdir tried 2>/dev/null; then echo first; exit 1; fi; echo second"
    plan = steps(["sh", "-c", "until test -e go; do sleep 0.05; done"], ["sh", "-c", script])
    plan["steps"][1]["retries"] = 1
    farro.enqueue(plan, "--id", "j")
    worker = farro.start("worker")
    follower = subprocess.Popen(
        [FARRO, "logs", "j", "-f"], cwd=farro.path, env=farro.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    (farro.path / "go").touch()
    out, _ = follower.communicate(timeout=PATIENCE_S)
    worker.end()
    assert out in (b"first\nsecond\n", b"second\n")  # the output of the first try may come and go between two reads
    assert follower.returncode == 0


def test_follow_with_tail_begins_at_the_end(farro: Program) -> None:
    farro.enqueue(steps(["seq", "10"]), "--id", "j")
    farro.worked()
    assert farro.call("logs", "j", "-f", "-n", "2", code=0).out == "9\n10\n"
    assert Path(farro.folder("j") / "attempts/0001/steps/1/stdout").read_text().startswith("1\n")
