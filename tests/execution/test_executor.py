"""Run plans with real processes in a real folder."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading

import pytest

from execution.bench import ESCAPE, Bench, lives, shell, step
from farro.errors import ClaimLost
from farro.execution import Interrupted, find_program

pytestmark = pytest.mark.linux

# --- pipes and results -------------------------------------------------------------------------------------------


def test_output_flows_from_step_to_step_and_a_reader_may_stop_early(bench: Bench) -> None:
    result = bench.run(step(1, "seq", "100000"), step(2, "head", "-1", input_from_step=1))
    assert result.success
    assert [one.success for one in result.step_results] == [True, True]
    assert result.step_results[1].stdout == "1\n"
    assert result.error is None


def test_the_result_has_exactly_the_keys_of_the_memo_and_the_extras(bench: Bench) -> None:
    result = bench.run(step(1, "echo", "hi"))
    data = json.loads(json.dumps(result.to_json("job-1", "p1")))
    assert data | {"step_results": None, "duration_s": None} == {
        "job_id": "job-1",
        "plan_id": "p1",
        "success": True,
        "step_results": None,
        "steps_total": 1,
        "duration_s": None,
        "error": None,
        "left_processes": [],
    }
    [one] = data["step_results"]
    measured = {"duration_s", "user_s", "system_s", "max_rss_kb"}
    assert all(one[name] >= 0 for name in measured)
    assert {name: value for name, value in one.items() if name not in measured} == {
        "step_number": 1,
        "id": "1",
        "stdout": "hi\n",
        "stderr": "",
        "exit_code": 0,
        "success": True,
        "timed_out": False,
        "stdout_truncated": False,
        "stderr_truncated": False,
        "stdout_path": "steps/1/stdout",
        "stderr_path": "steps/1/stderr",
        "attempts": 1,
        "error": None,
    }
    assert result.files == ("steps/1/stdout", "steps/1/stderr")


def test_invalid_utf8_is_kept_in_the_file_and_replaced_in_the_result(bench: Bench) -> None:
    result = bench.run(shell(1, "printf '\\377\\000ok\\n'"), step(2, "cat", input_from_step=1))
    assert bench.bytes_of(2) == b"\xff\x00ok\n"
    assert result.step_results[1].stdout == "\ufffd\x00ok\n"
    json.dumps(result.to_json("j", None)).encode()


def test_long_output_is_cut_between_characters_and_whole_in_the_file(bench: Bench) -> None:
    result = bench.run(step(1, sys.executable, "-c", "print('x' + 'ä' * 40_000, end='')"))
    [one] = result.step_results
    assert one.stdout_truncated
    assert not one.stderr_truncated
    assert one.stdout == "x" + "ä" * 32_767  # byte 65,536 is inside a character
    assert len(bench.bytes_of(1)) == 80_001


def test_64_mib_flow_through_with_bounded_memory(bench: Bench) -> None:
    size = 64 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = bench.run(
        step(1, "head", "-c", str(size), "/dev/urandom"),
        step(2, "cat", input_from_step=1),
        step(3, "wc", "-c", input_from_step=2),
    )
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024
    assert result.step_results[2].stdout.strip() == str(size)


def test_steps_of_a_task_graph_run_after_their_needs(bench: Bench) -> None:
    result = bench.run(
        {"id": "last", "command": "cat", "input_from_step": "first"},
        {"id": "first", "command": "echo", "args": ["in time"]},
    )
    assert [one.id for one in result.step_results] == ["first", "last"]
    assert bench.bytes_of("last") == b"in time\n"


# --- environment and place ---------------------------------------------------------------------------------------


def test_a_step_sees_its_environment_and_cannot_shed_the_marker(bench: Bench) -> None:
    bench.run(step(1, "env", env={"MINE": "1", "FARRO_CLAIM": "stolen", "FARRO_JOB": "other"}))
    seen = dict(line.split("=", 1) for line in bench.bytes_of(1).decode().splitlines())
    assert seen["MINE"] == "1"
    assert seen["FARRO_ROOT"] == "/the/root"
    assert (seen["FARRO_JOB"], seen["FARRO_STEP"]) == ("job-1", "1")
    assert seen["FARRO_CLAIM"] == f"marker-{bench.folder}"
    assert "HOME" not in seen


def test_a_steps_cwd_is_below_the_plans(bench: Bench) -> None:
    (bench.work / "sub").mkdir()
    result = bench.run(step(1, "pwd"), step(2, "pwd", cwd="sub"), step(3, "pwd", cwd="/"))
    assert [one.stdout.strip() for one in result.step_results] == [str(bench.work), str(bench.work / "sub"), "/"]


# --- failures ----------------------------------------------------------------------------------------------------


def test_the_first_failure_halts_the_plan_and_finished_steps_are_kept(bench: Bench) -> None:
    result = bench.run(step(1, "echo", "one"), shell(2, "echo out; echo oops >&2; exit 3"), step(3, "echo", "never"))
    assert not result.success
    assert [one.exit_code for one in result.step_results] == [0, 3]
    assert result.error is not None
    assert (result.error.category, result.error.message) == ("step_failed", "step 2: exit code 3")
    assert not (bench.attempt / "steps" / "3").exists()
    summary = result.summary_md()
    assert "1 of 3 steps succeeded" in summary
    assert "    oops" in summary


def test_escapes_of_a_step_do_not_reach_the_readers_terminal(bench: Bench) -> None:
    result = bench.run(shell(1, "printf '\\033[2Jgone\\n' >&2; exit 1"))
    assert "\x1b" not in result.summary_md()


def test_other_exit_codes_can_be_success(bench: Bench) -> None:
    result = bench.run(step(1, "grep", "x", "/dev/null", ok_exit_codes=[0, 1]), step(2, "true"))
    assert result.success
    assert result.step_results[0].exit_code == 1


def test_a_step_killed_by_a_signal_reports_it(bench: Bench) -> None:
    result = bench.run(shell(1, "kill -SEGV $$"))
    assert (result.step_results[0].exit_code, result.step_results[0].error) == (139, "signal 11")


def test_a_step_is_tried_again_and_the_last_try_is_the_one_that_counts(bench: Bench) -> None:
    result = bench.run(shell(1, "echo x >> tries; wc -l < tries; test $(wc -l < tries) = 3", retries=5))
    [one] = result.step_results
    assert (one.success, one.attempts, one.stdout.strip()) == (True, 3, "3")
    assert bench.bytes_of(1, "stdout.1").strip() == b"1"
    assert bench.bytes_of(1, "stdout.2").strip() == b"2"


def test_tries_are_bounded(bench: Bench) -> None:
    result = bench.run(step(1, "false", retries=2))
    assert (result.success, result.step_results[0].attempts) == (False, 3)


# --- what is missing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (step(2, "no-such-command"), "step 2: no-such-command"),
        (step(2, "x", tool="no-such-tool"), "step 2: tool no-such-tool"),
        (step(2, "x", tool="agent"), "step 2: agent"),
    ],
)
def test_a_missing_program_fails_its_own_step_and_earlier_results_stay(
    bench: Bench, missing: dict[str, object], message: str
) -> None:
    result = bench.run(shell(1, "touch ran"), missing, shell(3, "touch never"))
    assert result.error is not None
    assert result.error.category == "missing_tool"
    assert result.error.message.startswith(message)
    assert [(one.success, one.exit_code) for one in result.step_results] == [(True, 0), (False, 127)]
    assert (bench.work / "ran").exists()
    assert not (bench.work / "never").exists()


def test_a_program_made_by_an_earlier_step_is_not_missing(bench: Bench) -> None:
    result = bench.run(
        shell(1, "mkdir bin; printf '#!/bin/sh\\necho made $0' > bin/tool; chmod +x bin/tool"),
        step(2, "./bin/tool"),
        step(3, "tool", env={"PATH": "bin:" + os.environ["PATH"]}),
    )
    assert result.success
    made = [one.stdout for one in result.step_results[1:]]
    assert made == [f"made {bench.work}/./bin/tool\n", f"made {bench.work}/bin/tool\n"]


def test_a_program_that_no_step_made_fails_its_own_step(bench: Bench) -> None:
    result = bench.run(step(1, "true"), step(2, "./not-made", retries=3))
    assert result.error is not None
    assert result.error.category == "missing_tool"
    assert (result.step_results[1].exit_code, result.step_results[1].attempts) == (127, 1)
    assert result.files[2:] == ("steps/2/stderr",)
    assert bench.bytes_of(2, "stderr") == b"farro: ./not-made was not found, or is not executable\n"


def test_a_bad_cwd_fails_that_step(bench: Bench) -> None:
    result = bench.run(step(1, "true", cwd="nowhere"))
    assert result.step_results[0].exit_code == 126
    assert "nowhere" in str(result.step_results[0].error)


def test_another_tool_is_a_program_on_the_path_with_the_command_as_its_first_argument(bench: Bench) -> None:
    result = bench.run(step(1, "-n", "hi", tool="echo"))
    assert result.step_results[0].stdout == "hi"


# --- timeouts ----------------------------------------------------------------------------------------------------


def test_a_timeout_ends_the_whole_tree_with_escaped_processes(bench: Bench) -> None:
    escaped: list[int] = []
    reader = bench.in_background(lambda: escaped.append(bench.told_pid()))
    result = bench.run(shell(1, ESCAPE + "echo begun; sleep 1000", timeout=0.5), step(2, "true"))
    reader.join()
    [one] = result.step_results
    assert (one.timed_out, one.success, one.stdout) == (True, False, "begun\n")
    assert one.exit_code == 128 + signal.SIGTERM
    assert result.error is not None
    assert result.error.category == "timeout"
    assert not lives(escaped[0])


def test_a_step_that_ignores_sigterm_is_killed(bench: Bench) -> None:
    result = bench.run(shell(1, 'trap "" TERM; while :; do sleep 1000; done', timeout=0.3))
    assert result.step_results[0].exit_code == 128 + signal.SIGKILL


def test_a_step_that_answers_sigterm_with_success_has_timed_out_all_the_same(bench: Bench) -> None:
    script = 'trap "exit 0" TERM; sleep 1000 & wait'
    result = bench.run(shell(1, script, timeout=0.5), term_grace_s=30.0)
    assert (result.step_results[0].exit_code, result.success) == (0, False)


def test_the_plans_own_timeout_ends_the_running_step(bench: Bench) -> None:
    result = bench.run(step(1, "true"), step(2, "sleep", "1000"), timeout=0.5)
    assert result.step_results[1].timed_out
    assert "plan's timeout of 0.5 s" in str(result.step_results[1].error)


def test_the_caller_is_ticked_during_the_grace_of_a_tree(bench: Bench) -> None:
    during_grace = threading.Event()

    def tick() -> None:
        if (bench.work / "asked").exists():
            during_grace.set()

    bench.on_tick = tick
    script = 'trap "touch asked" TERM; while :; do sleep 0.02; done'
    bench.run(shell(1, script, timeout=0.2), tick_every_s=0.05, term_grace_s=1.0)
    assert during_grace.is_set()


# --- ticks, claims and stops -------------------------------------------------------------------------------------


def test_the_caller_is_ticked_while_a_step_runs(bench: Bench) -> None:
    released = threading.Event()

    def release() -> None:
        if bench.ticks >= 3 and not released.is_set():
            released.set()
            bench.fifo.write_text("go\n")

    bench.on_tick = release
    result = bench.run(shell(1, 'read go < "$FIFO"; echo $go'), tick_every_s=0.02)
    assert result.step_results[0].stdout == "go\n"
    assert bench.ticks >= 3


def test_a_lost_claim_ends_the_tree_at_once_and_goes_on(bench: Bench) -> None:
    pids: list[int] = []

    def lose() -> None:
        pids.append(bench.told_pid())
        raise ClaimLost("taken away")

    bench.on_tick = lose
    with pytest.raises(ClaimLost):
        bench.run(shell(1, ESCAPE + "sleep 1000"), tick_every_s=0.02, term_grace_s=3600.0)
    assert not lives(pids[0])


def test_a_stop_lets_the_running_step_end_by_itself_and_starts_no_other(bench: Bench) -> None:
    def ask() -> None:
        bench.told_pid()
        bench.stop.request(3600)
        bench.fifo.write_text("go\n")

    asker = bench.in_background(ask)
    with pytest.raises(Interrupted) as caught:
        bench.run(shell(1, 'echo $$ > "$FIFO"; read go < "$FIFO"; echo done'), shell(2, "touch ran"))
    asker.join()
    assert [one.stdout for one in caught.value.partial.step_results] == ["done\n"]
    assert not (bench.work / "ran").exists()


def test_a_stop_during_the_last_step_is_no_interruption(bench: Bench) -> None:
    def ask() -> None:
        bench.told_pid()
        bench.stop.request(3600)
        bench.fifo.write_text("go\n")

    asker = bench.in_background(ask)
    assert bench.run(shell(1, 'echo $$ > "$FIFO"; read go < "$FIFO"')).success
    asker.join()


def test_a_step_that_outlasts_the_grace_of_a_stop_is_ended(bench: Bench) -> None:
    pids: list[int] = []

    def ask() -> None:
        pids.append(bench.told_pid())
        bench.stop.request(3600)
        bench.stop.request(0.02)  # the operator is in a hurry

    asker = bench.in_background(ask)
    with pytest.raises(Interrupted) as caught:
        bench.run(shell(1, 'echo $$ > "$FIFO"; sleep 1000'))
    asker.join()
    assert caught.value.partial.step_results == ()
    assert not lives(pids[0])


def test_a_stop_before_the_first_step_starts_nothing(bench: Bench) -> None:
    bench.stop.request()
    with pytest.raises(Interrupted):
        bench.run(shell(1, "touch ran"))
    assert not (bench.work / "ran").exists()


# --- what steps leave behind -------------------------------------------------------------------------------------


def test_a_server_of_one_step_serves_the_next_and_ends_with_the_plan(bench: Bench) -> None:
    server = "setsid sh -c 'echo $$ > pid; while :; do echo served > \"$FIFO\"; done' > /dev/null 2>&1 &"
    result = bench.run(shell(1, server), step(2, "cat", str(bench.fifo)))
    assert result.step_results[1].stdout.startswith("served\n")
    assert not lives(int((bench.work / "pid").read_text()))
    assert result.left_processes == ()


def test_steps_that_start_the_same_program_look_for_it_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    which = find_program.which
    monkeypatch.setattr(find_program, "which", lambda name, *where: looked.append(name) or which(name, *where))
    result = bench.run(*(step(number, "true") for number in range(1, 6)), step(6, "false", ok_exit_codes=[1]))
    assert result.success
    assert looked == ["true", "false"]
