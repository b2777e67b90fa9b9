"""Output of commands: closed pipes, full disks, narrow encodings, and escape sequences."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess

import click
import pytest

from farro.cli.main import run
from flows.program import FARRO, Program, listing, steps


def test_closed_pipe_ends_a_command_without_an_error(farro: Program) -> None:
    plan = json.dumps(steps(["true"]))
    farro.run("enqueue", "--many", "-", stdin="\n".join([plan] * 1500), code=0)
    for args in (["ls"], ["ls", "--json"]):
        process = subprocess.Popen(
            [FARRO, *args], cwd=farro.path, env=farro.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait(60) == 141  # as a shell reports a command that SIGPIPE ended


def test_unwritable_stdout_is_a_failure(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "one")
    for args in (["ls"], ["ls", "--json"], ["show", "one"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [FARRO, *args],
                cwd=farro.path,
                env=farro.env,
                stdout=full,
                stderr=subprocess.PIPE,
                check=False,
                timeout=60,
            )
        assert done.returncode == 1
        assert done.stderr.decode() == "farro: the answer could not be written: No space left on device\n"


def test_closed_standard_streams_cause_no_traceback(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "one")
    for command, code in (("ls", 0), ("ls --json", 0), ("show nope", 2), ("worker --drain", 0), ("enqueue -", 2)):
        done = subprocess.run(
            ["sh", "-c", f'exec "$0" {command} <&- >&-', FARRO],
            cwd=farro.path,
            env=farro.env,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        assert done.returncode == code, (command, done.stderr.decode())
    assert farro.status("one") == "succeeded"


def test_characters_outside_the_encoding_are_escaped(farro: Program) -> None:
    farro.enqueue(steps(["no-such-command-→"]), "--id", "odd")
    farro.worked()
    told = farro.run("show", "odd", env={"PYTHONIOENCODING": "latin-1"}, code=0).out
    assert "\\u2192" in told


def test_a_name_that_is_not_text_is_shown_escaped(farro: Program) -> None:
    done = subprocess.run(
        [os.fsencode(FARRO), b"enqueue", b"no\xffsuch"], cwd=farro.path, env=farro.env, capture_output=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"farro: no\\udcffsuch: no such file. To queue a command write: farro enqueue -- ")


def test_no_escape_sequence_of_a_job_reaches_the_terminal(farro: Program) -> None:
    evil = "\x1b]0;owned\x07\x1b[31m"
    farro.enqueue(steps([f"{evil}command"], name=evil), "--id", "evil")
    log = farro.worked().out
    told = [farro.run(*args, code=0).out for args in (["ls"], ["show", "evil"], ["ls", "--json"])]
    assert "\\x1b]0;owned\\x07" in told[0]
    for text in (log, *told):
        assert "\x1b" not in text
        assert "\x07" not in text


def test_errors_stay_text_on_stderr_and_stdout_stays_empty(farro: Program) -> None:
    for args, code in (
        (["show", "nope", "--json"], 2),
        (["ls", "--role", "Nobody", "--json"], 2),
        (["lss", "--json"], 2),
    ):
        told = farro.run(*args, code=code)
        assert told.out == ""
        assert told.err


def test_worker_at_a_terminal_prints_short_lines(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "good")
    farro.enqueue(steps(["false"]), "--id", "bad")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [FARRO, "worker", "--drain", "--workers", "1"], cwd=farro.path, env=farro.env, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said = b""
    try:
        while chunk := os.read(ours, 65536):
            said += chunk
    except OSError:  # EIO: the other side is closed
        pass
    os.close(ours)
    assert process.wait(60) == 0
    lines = [re.sub(r"^[\d:.]+  ", "", line) for line in said.decode().splitlines()]
    lines.remove("worker started")  # in any position: a slot may claim before the worker logs its start
    assert lines == [
        "good: queued → in_progress",
        "good: in_progress → succeeded",
        "bad: queued → in_progress",
        "bad: in_progress → failed (step_failed)",
        "worker stopped",
    ]


def test_read_commands_change_nothing(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "one")
    before = listing(farro.path)
    for args in (["ls"], ["ls", "--json"], ["show", "one"], ["show", "one", "--json"], ["--help"], ["--version"]):
        farro.run(*args, code=0)
    assert listing(farro.path) == before


def test_error_caused_by_ctrl_c_is_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """A descriptor is closed before the signal, and closed again by the cleanup."""

    @click.command()
    def interrupted() -> None:
        reading, writing = os.pipe()
        os.close(writing)
        try:
            os.close(reading)
            raise KeyboardInterrupt
        finally:
            os.close(reading)

    assert run([], command=interrupted) == 130
    assert capsys.readouterr().err == "farro: stopped\n"


@pytest.mark.parametrize("command", ["ls", "run -- true", "init", "agx preview"])
def test_deleted_working_folder_is_reported(empty: Program, command: str) -> None:
    script = f'mkdir gone && cd gone && rmdir "$PWD" && exec "{FARRO}" {command}'
    done = subprocess.run(["sh", "-c", script], cwd=empty.path, env=empty.env, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("the working folder was removed; change to another one (cd) and try again\n")
