"""The commands of the planner: the draft, saved plans, jobs and actions."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from agx.conftest import Agx
from flows.program import Daemon, Program, listing
from support import eventually


def commands(agx: Agx) -> list[Any]:
    return [
        (one["step_number"], one["command"], one.get("input_from_step")) for one in agx("preview").json["plan"]["steps"]
    ]


def test_a_draft_from_its_first_step_to_its_result(farro: Program, agx: Agx) -> None:
    (farro.path / "names.txt").write_text("b\na\nb\n")
    agx("new", "count", code=0)
    agx("add", "--", "sort names.txt | uniq -c", code=0)
    agx("add", "--input-from", "2", "--timeout", "1m", "--", "sort", "-rn", code=0)
    assert commands(agx) == [(1, "sort", None), (2, "uniq", 1), (3, "sort", 2)]
    assert agx("preview").json["plan"]["steps"][2]["timeout"] == 60
    assert agx("validate", code=0).json["ok"]
    made = agx("submit", code=0).json
    assert made["plan_id"] == "count"
    farro.worked()
    assert agx("job", "status", made["job_id"], code=0).json["status"] == "succeeded"
    assert agx("job", "stdout", made["job_id"], code=0).out.split() == ["2", "b", "1", "a"]
    assert agx("job", "stdout", made["job_id"], "--step", "1", code=0).out == "a\nb\nb\n"
    result = agx("job", "result", made["job_id"], code=0).json
    assert [one["exit_code"] for one in result["step_results"]] == [0, 0, 0]
    assert [one["job_id"] for one in agx("jobs").json["jobs"]] == [made["job_id"]]
    assert agx("queue", "stats").json["queues"] == [{"role": "Runner", "counts": {"succeeded": 1}, "workers": 0}]


def test_plan_subcommands_equal_the_short_forms(agx: Agx) -> None:
    agx("plan", "new", code=0)
    agx("plan", "add", "--", "true", code=0)
    agx("plan", "preview", code=0)
    assert "plan" in agx("plan", "frobnicate", code=2).err


def test_terminal_gets_text_and_pipe_gets_json(farro: Program, agx: Agx) -> None:
    agx("add", "--", "sort", "a b.txt", "--reverse", code=0)
    shown = agx("preview", "--text", code=0).out
    assert "sort 'a b.txt' --reverse" in shown
    assert farro.call("agx", "--text", "preview", code=0).out == shown
    assert json.loads(agx("preview", code=0).out) == json.loads(agx("preview", "--json", code=0).out)


def test_control_characters_of_a_step_are_escaped(agx: Agx) -> None:
    agx("add", "--", "printf", "\x1b[2J\u202e", code=0)
    for verb in (("preview",), ("submit", "--dry-run"), ("validate",)):
        shown = agx(*verb, "--text", code=0).out
        assert "\x1b" not in shown
        assert "\u202e" not in shown


def test_command_without_double_dash_gets_the_right_command(agx: Agx) -> None:
    assert "agx add -- grep -c x" in agx("add", "grep", "-c", "x", code=2).err


def test_removed_steps_can_be_restored(agx: Agx) -> None:
    agx("add", "--", "a | b | c", code=0)
    agx("remove", "2", code=0)
    assert commands(agx) == [(1, "a", None), (2, "c", 1)]
    agx("undo", code=0)
    assert len(commands(agx)) == 3
    assert "no step 'x'" in agx("remove", "x", code=2).err


def test_plan_is_saved_shown_and_loaded_as_the_draft(agx: Agx) -> None:
    agx("add", "--", "true", code=0)
    assert agx("save", "mine", code=0).json == {"plan_id": "mine"}
    agx("new", code=0)
    agx("add", "--", "false", code=0)
    done = agx("save", "mine", code=2)
    assert "mine" in done.err
    agx("save", "mine", "--replace", code=0)
    assert [one["plan_id"] for one in agx("list").json["plans"]] == ["mine"]
    assert agx("get", "mine").json["steps"][0]["command"] == "false"
    agx("new", code=0)
    agx("get", "mine", "--draft", code=0)
    assert commands(agx) == [(1, "false", None)]
    assert "no plan nothing" in agx("get", "nothing", code=2).err


def test_empty_or_wrong_draft_is_not_submitted(farro: Program, agx: Agx) -> None:
    assert "no steps yet" in agx("submit", code=2).err
    assert "no steps yet" in agx("save", "x", code=2).err
    plan = {"steps": [{"step_number": 1, "command": "a", "input_from_step": 9}]}
    agx("edit", "-", stdin=json.dumps(plan), code=0)
    assert "input_from_step" in agx("submit", code=2).err
    assert agx("validate", code=2).json["problems"][0]["path"] == "steps[0].input_from_step"
    assert agx("submit", "--dry-run", code=2).json["ok"] is False
    assert agx("jobs").json == {"jobs": []}


def test_draft_is_read_from_a_file(farro: Program, agx: Agx) -> None:
    (farro.path / "plan.yaml").write_text("steps:\n- {id: a, command: echo, args: [hello]}\n")
    agx("edit", "plan.yaml", code=0)
    agx("add", "--", "| tr a-z A-Z", code=0)
    made = agx("submit", code=0).json["job_id"]
    farro.worked()
    assert agx("job", "stdout", made).out == "HELLO\n"
    assert "steps" in agx("edit", "-", stdin="{", code=2).err or "JSON" in agx("edit", "-", stdin="{", code=2).err
    assert len(agx("preview").json["plan"]["steps"]) == 2


def test_file_or_saved_plan_is_submitted_without_a_draft(farro: Program, agx: Agx) -> None:
    plan = {"plan_id": "p", "steps": [{"step_number": 1, "command": "true"}]}
    (farro.path / "plan.json").write_text(json.dumps(plan))
    first = agx("job", "submit", "plan.json", code=0).json
    agx("edit", "plan.json", code=0)
    agx("save", code=0)
    second = agx("submit", "p", "--id", "mine", code=0).json
    assert first["plan_id"] == second["plan_id"] == "p"
    assert second["job_id"] == "mine"
    assert agx("submit", "p", "--id", "mine", code=0).json == second


def test_submit_options_reach_the_job(farro: Program, agx: Agx) -> None:
    agx("add", "--", "true", code=0)
    first = agx("submit", "--id", "first", code=0).json["job_id"]
    made = agx(
        *("submit", "--tag", "gpu", "--priority", "P0", "--after", first, "--env", "A=b", "--timeout", "90s"), code=0
    ).json["job_id"]
    prompt = json.loads((farro.folder(made) / "prompt.json").read_text())
    assert prompt["metadata"] == {"tags": ["gpu"], "after": ["first"], "priority": "P0"}
    assert prompt["timeout"] == 90
    assert prompt["steps"][0]["env"] == {"A": "b"}
    assert "no job nobody" in agx("submit", "--after", "nobody", code=2).err
    assert agx("submit", "--role", "Nobody", code=2).err


def test_a_drafts_commands_run_where_they_were_typed(farro: Program, agx: Agx) -> None:
    folder = farro.path / "inner"
    folder.mkdir()
    agx("add", "--", "pwd", code=0)
    made = farro.run("agx", "submit", "--root", str(farro.path), cwd=folder, code=0).json["job_id"]
    farro.worked()
    assert agx("job", "stdout", made).out == f"{folder}\n"


def test_a_job_is_cancelled(agx: Agx) -> None:
    agx("add", "--", "true", code=0)
    made = agx("submit", code=0).json["job_id"]
    assert "no result yet" in agx("job", "result", made, code=2).err
    assert agx("job", "cancel", made, code=0).json["status"] == "killed"
    assert "has no result, and will have none: it is killed" in agx("job", "result", made, code=2).err
    assert "no job nobody" in agx("job", "status", "nobody", code=2).err


def test_warnings_use_the_shown_step_numbers_and_are_printed_once(farro: Program, agx: Agx) -> None:
    told = farro.run("agx", "--text", "add", "--", "cd", "there", code=0)
    assert "warning: step 1, command: cd changes the folder" in told.out
    assert "warning" not in farro.run("agx", "--text", "add", "--", "true", code=0).out
    assert "warning: step 3, args[0]: " in farro.run("agx", "--text", "add", "--", "cat", "~/names", code=0).out
    both = farro.run("agx", "--text", "preview", code=0).out
    assert both.count("warning: step ") == 2
    assert agx("validate", code=0).json["warnings"][0]["path"] == "steps[0].command"


def test_stderr_of_succeeded_steps_is_shown(farro: Program, agx: Agx) -> None:
    for word in ("one", "two"):
        agx("add", "--", "sh", "-c", f"echo said {word} >&2; echo told {word}", code=0)
    worker = farro.start("worker").started()
    done = farro.run("agx", "submit", "--wait", "--text", code=0)
    worker.end()
    assert done.out == "told two\n"
    assert done.err.index("said one\n") < done.err.index("said two\n")


def test_a_taken_name_is_refused_with_the_flag_that_replaces(farro: Program, agx: Agx) -> None:
    agx("add", "--", "true", code=0)
    agx("save", "mine", code=0)
    agx("add", "--", "false", code=0)
    assert "agx save --replace" in agx("save", "mine", code=2).err
    agx("save", "mine", "--replace", code=0)


def test_submit_wait_exits_as_the_job_ends(farro: Program, agx: Agx) -> None:
    worker = farro.start("worker").started()
    agx("add", "--", "sh", "-c", "echo said; exit 7", code=0)
    told = agx("submit", "--wait", code=7).json
    assert told["plan_id"]
    assert (told["status"], told["exit_code"]) == ("failed", 7)
    assert told["result"]["step_results"][0]["stdout"] == "said\n"
    agx("new", code=0)
    agx("add", "--", "echo", "good", code=0)
    done = farro.run("agx", "submit", "--wait", "--text", code=0)
    assert done.out == "good\n"
    assert "succeeded" in done.err
    assert agx("workers").json["workers"][0]["alive"] is True
    worker.end()


def test_failure_quotes_the_stderr_of_the_failed_step(farro: Program, agx: Agx) -> None:
    """It does not quote a parallel step that ended later."""
    worker = farro.start("worker").started()
    late = "while [ ! -e failed ]; do sleep 0.01; done; sleep 0.2; echo good"
    plan = {"plan_id": "two", "parallel": 2, "steps": [{"id": "bad", "command": "sh"}, {"id": "late", "command": "sh"}]}
    plan["steps"][0]["args"] = ["-c", "echo half; echo why >&2; touch failed; exit 7"]  # type: ignore[index]
    plan["steps"][1]["args"] = ["-c", late]  # type: ignore[index]
    (farro.path / "two.json").write_text(json.dumps(plan))
    done = farro.run("agx", "submit", "./two.json", "--id", "two", "--wait", "--text", code=7)
    assert done.out == "half\n"
    *_, said, ended, where = done.err.splitlines()
    assert (said, where) == ("why", "`farro logs two` has what every step said")
    assert ended.startswith("two failed after ")
    worker.end()


def test_empty_name_for_after_is_refused(farro: Program, agx: Agx) -> None:
    agx("add", "--", "true", code=0)
    farro.call("enqueue", "--id", "m1", "--", "true", code=0)
    for verb in (("agx", "submit"), ("enqueue",)):
        words = () if verb[0] == "agx" else ("--", "true")
        for given in ("", " ", ",", "m1,", ",m1", "m1,,m1"):
            told = farro.call(*verb, "--after", given, *words, code=2).err
            assert "--after: " in told, given
            assert "or leave the option out" in told, given
    assert "--after-any: is empty" in farro.call("enqueue", "--after-any", "", "--", "true", code=2).err
    assert [job["job_id"] for job in farro.call("ls", "--json", code=0).json["jobs"]] == ["m1"]
    farro.call("enqueue", "--after", "m1, m1", "--after", "m1\n", "--id", "m2", "--", "true", code=0)
    assert farro.job("m2")["waits_for"] == ["m1"]


def test_submit_without_a_worker_names_the_worker_command(farro: Program, agx: Agx) -> None:
    agx("add", "--", "true", code=0)
    assert "farro worker" in agx("submit", "--text", code=0).err


# --- input -------------------------------------------------------------------------------------------------------


def piped(farro: Program, data: bytes, *args: str, code: int = 0) -> Any:
    return farro.run("agx", "submit", *args, stdin=data, code=code)


def test_stdin_reaches_the_first_step_byte_for_byte(farro: Program, agx: Agx) -> None:
    data = bytes(range(256)) * 1000
    agx("add", "--", "cat | cat", code=0)
    agx("add", "--", "wc", "-c", code=0)
    made = piped(farro, data).json["job_id"]
    assert json.loads((farro.folder(made) / "prompt.json").read_text())["input"] == "stdin"
    farro.worked()
    for step in ("1", "2"):
        assert farro.folder(made).joinpath("attempts", "0001", "steps", step, "stdout").read_bytes() == data
    assert agx("job", "stdout", made, "--step", "3").out == "0\n"
    again = farro.call("retry", made, "--from-start", "--json", code=0).json
    farro.worked()
    new = again["job_id"] if "job_id" in again else again["jobs"][0]
    assert farro.folder(new).joinpath("attempts", "0001", "steps", "1", "stdout").read_bytes() == data


def test_input_is_read_from_a_file_or_ignored(farro: Program, agx: Agx) -> None:
    (farro.path / "in").write_bytes(b"\x00\xff")
    agx("add", "--", "wc -c", code=0)
    first = piped(farro, b"x", "--input", "in").json["job_id"]
    second = piped(farro, b"x", "--no-input").json["job_id"]
    third = piped(farro, b"").json["job_id"]
    farro.worked()
    assert [agx("job", "stdout", job).out.strip() for job in (first, second, third)] == ["2", "0", "0"]


def test_too_much_input_is_refused_with_the_limit(farro: Program, agx: Agx) -> None:
    config = json.loads((farro.path / "agents-config.json").read_text())
    config["security"] = {**config.get("security", {}), "max_job_bytes": 1000}
    (farro.path / "agents-config.json").write_text(json.dumps(config))
    agx("add", "--", "cat", code=0)
    done = piped(farro, b"x" * 2000, code=2)
    assert "1000 bytes" in done.err
    assert agx("jobs").json == {"jobs": []}


def test_plan_without_its_required_input_is_refused(farro: Program, agx: Agx) -> None:
    plan = {"input": "stdin", "steps": [{"step_number": 1, "command": "cat"}]}
    (farro.path / "plan.json").write_text(json.dumps(plan))
    assert "input" in agx("submit", "plan.json", code=2).err
    assert "input" in farro.call("enqueue", "plan.json", code=2).err
    assert farro.call("plan", "lint", "plan.json", code=0)
    plan["input"] = "../stdin"
    (farro.path / "plan.json").write_text(json.dumps(plan))
    assert "plain file name" in farro.call("plan", "lint", "plan.json", code=2).out


def test_deleting_a_plan_or_action_keeps_its_jobs(farro: Program, agx: Agx) -> None:
    agx("add", "--", "echo", "{{input}}", code=0)
    agx("save", "say", code=0)
    made = agx("action", "submit", "say", "--inputs", "-", "--name", "both", stdin='["a", "b"]', code=0).json["jobs"]
    refused = agx("delete", "say", code=2).err
    assert "is used by the action both; nothing was deleted. First: agx action delete both" in refused
    agx("action", "delete", "both", code=0)
    assert "say is not kept any more" in farro.run("agx", "--text", "plan", "delete", "say", code=0).out
    assert (agx("list").json["plans"], agx("action", "list").json["actions"]) == ([], [])
    assert "no plan say is kept" in agx("delete", "say", code=2).err
    assert "no action both is kept" in agx("action", "delete", "both", code=2).err
    assert {farro.job(job_id)["status"] for job_id in made} == {"queued"}


def test_added_command_keeps_its_folder_and_variables(farro: Program, agx: Agx) -> None:
    (farro.path / "there").mkdir()
    agx("add", "--cwd", "there", "--env", "A=1", "--env", "B=x y", "--", "sh -c 'pwd; echo $A $B' | cat", code=0)
    for step in agx("preview").json["plan"]["steps"]:
        assert (step["cwd"], step["env"]) == (str(farro.path / "there"), {"A": "1", "B": "x y"})
    worker = farro.start("worker").started()
    assert farro.run("agx", "submit", "--wait", "--text", code=0).out == f"{farro.path}/there\n1 x y\n"
    worker.end()
    assert "is not NAME=VALUE" in agx("add", "--env", "A", "--", "true", code=2).err
    assert "--cwd is for commands" in agx("add", "--cwd", "there", "count the lines", code=2).err


# --- actions -----------------------------------------------------------------------------------------------------


def test_an_action_is_a_job_for_each_input(farro: Program, agx: Agx) -> None:
    agx("add", "--", "echo", "{{input.name}} is {{input.size}}", code=0)
    agx("save", "greet", code=0)
    assert "action submit" in agx("submit", "greet", code=2).err
    inputs = [{"name": "a", "size": 1}, {"name": "b", "size": 2}]
    (farro.path / "inputs.json").write_text(json.dumps(inputs))
    agx("action", "new", "greet", "--inputs", "inputs.json", "--name", "both", code=0)
    rehearsed = agx("action", "submit", "both", "--dry-run", code=0).json
    assert rehearsed["jobs"] == 2
    assert agx("jobs").json == {"jobs": []}
    made = agx("action", "submit", "both", code=0).json["jobs"]
    assert agx("action", "submit", "both", code=0).json["jobs"] == made
    worker: Daemon = farro.start("worker").started()
    ended = agx("action", "submit", "both", "--wait", code=0).json
    worker.end()
    assert ended["failed"] == []
    assert sorted(agx("job", "stdout", job).out for job in made) == ["a is 1\n", "b is 2\n"]
    assert agx("action", "get", "both").json["inputs"] == inputs
    assert [job["status"] for job in agx("action", "get", "both").json["jobs"]] == ["succeeded", "succeeded"]
    assert re.search(r"^ +both-001 +succeeded +\{", farro.run("agx", "--text", "action", "get", "both").out, re.M)
    assert agx("action", "list").json["actions"] == [{"action_id": "both", "plan_id": "greet", "inputs": 2}]


def test_inputs_are_read_as_lines_or_from_a_pipe(farro: Program, agx: Agx) -> None:
    agx("add", "--", "echo", "{{input}}", code=0)
    agx("save", "say", code=0)
    (farro.path / "words.txt").write_text("one\n\ntwo words\n")
    assert len(agx("action", "submit", "say", "--inputs", "words.txt", code=0).json["jobs"]) == 2
    assert len(agx("action", "submit", "say", "--inputs", "-", stdin='"a"\n{"b": 1}\n3\n', code=0).json["jobs"]) == 3
    assert len(agx("jobs").json["jobs"]) == 5


def test_an_input_that_does_not_fit_queues_nothing(farro: Program, agx: Agx) -> None:
    agx("add", "--", "echo", "{{input.name}}", code=0)
    agx("save", "greet", code=0)
    for verb in (("action", "submit", "greet"), ("action", "submit", "greet", "--dry-run"), ("action", "new", "greet")):
        assert "name" in agx(*verb, "--inputs", "-", stdin='[{"name": "a"}, {"nom": "b"}]', code=2).err
    assert agx("action", "submit", "greet", "--inputs", "-", stdin="[]", code=2).err
    assert agx("jobs").json == {"jobs": []}


# --- dry runs ----------------------------------------------------------------------------------------------------


def test_dry_run_shows_steps_and_matching_workers(farro: Program, agx: Agx) -> None:
    agx("add", "--", "sort | no-such-program", code=0)
    worker = farro.start("worker", "--workers", "1", "--tag", "gpu").started()
    eventually(lambda: agx("workers").json["workers"], "the worker is not listed")
    told = agx("submit", "--dry-run", "--tag", "gpu", code=0).json
    assert [(one["step"], one["found"], one["reads"]) for one in told["steps"]] == [
        ("1", True, None),
        ("2", False, "step 1"),
    ]
    assert os.path.basename(told["steps"][0]["where"]) == "sort"
    assert (told["role"], len(told["takers"]), told["timeout_s"], told["most_usd"]) == ("Runner", 1, 3600, 0)
    told = agx("submit", "--dry-run", "--tag", "tpu", code=0).json
    assert (told["takers"], told["others"]) == ([], 1)
    assert "none of 1 live workers" in agx("submit", "--dry-run", "--tag", "tpu", "--text", code=0).out
    worker.end()
    assert agx("jobs").json == {"jobs": []}


def test_dry_run_shows_the_highest_cost_of_agents(farro: Program, agx: Agx) -> None:
    config = json.loads((farro.path / "agents-config.json").read_text())
    prices = {"m": {"input_usd": 1.0, "output_usd": 2.0}}
    config["providers"] = {"openai": {"base_url": "http://127.0.0.1:9/v1", "model": "m", "prices": prices}}
    (farro.path / "agents-config.json").write_text(json.dumps(config))
    agx("add", "--tool", "agent", "--", "DocWriter", "Summarise", code=0)
    told = agx("submit", "--dry-run", code=0).json
    assert told["agent_steps"] == 1
    assert 0 < told["most_usd"] < 1
    assert "at most $" in agx("submit", "--dry-run", "--text", code=0).out
    del config["providers"]["openai"]["prices"]
    (farro.path / "agents-config.json").write_text(json.dumps(config))
    assert agx("submit", "--dry-run", code=0).json["most_usd"] is None


# --- roots ------------------------------------------------------------------------------------------------------


def test_submit_creates_the_personal_root_when_no_root_exists(empty: Program) -> None:
    empty.run("agx", "add", "--", "echo", "hi", code=0)
    assert not (empty.path / ".state" / "farro" / "jobs").exists()
    done = empty.run("agx", "submit", code=0)
    assert (empty.path / ".state" / "farro" / "jobs").is_dir()
    empty.run("worker", "--drain", "--root", f"{empty.path}/.state/farro", code=0)
    assert empty.run("agx", "job", "stdout", done.json["job_id"], code=0).out == "hi\n"


def test_folder_that_is_not_a_root_is_reported(empty: Program) -> None:
    assert "farro init" in empty.run("agx", "preview", "--root", "nowhere", code=2).err
    assert "--store" in empty.run("agx", "preview", "--store", "mysql://x", code=2).err


@pytest.mark.parametrize("name", ["a b", "../x", "", "con"])
def test_invalid_name_is_refused(agx: Agx, name: str, farro: Program) -> None:
    before = listing(Path(farro.path))
    assert "name" in agx("new", name, code=2).err
    assert {k for k in listing(Path(farro.path)) if ".state" not in k} == {k for k in before if ".state" not in k}


def test_agx_without_arguments_in_a_pipe_prints_its_purpose(agx: Agx) -> None:
    assert "terminal" in agx(code=2).err
