"""First steps of a new user: read the help, make a root, queue plans, run them, read the results."""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest

from flows.program import Program, listing, shell, steps

COMMANDS = ("init", "enqueue", "worker", "watchdog", "manager", "ls", "show", "requeue", "kill", "force-complete")
MINTED = r"job-\d{8}-\d{6}-[0-9a-f]{23}"


def test_help_names_every_command_and_where_to_start(empty: Program) -> None:
    told = empty.run("--help", code=0)
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", told.out, re.MULTILINE), command
    assert "farro run -- make test" in told.out
    assert "farro enqueue -- make test" in told.out
    assert empty.run(code=2).err.startswith("Usage: farro")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_root_and_json(empty: Program, command: str) -> None:
    told = empty.run(command, "--help", code=0)
    assert "--root" in told.out
    assert "--json" in told.out
    assert listing(empty.path) == {}


def test_misspelt_command_gets_a_suggestion(empty: Program) -> None:
    assert "did you mean `farro enqueue`?" in empty.run("enque", code=2).err
    assert "did you mean `farro service install`?" in empty.run("service", "instal", code=2).err
    assert "no command 'ls'; `farro schedules --help` lists the commands" in empty.run("schedules", "ls", code=2).err
    assert "`farro --help` lists the commands" in empty.run("frobnicate", code=2).err


def test_init_lists_what_it_made_and_can_be_repeated(empty: Program) -> None:
    assert "is a farro root now" in empty.run("init", code=0).out
    before = listing(empty.path)
    assert "nothing was missing" in empty.run("init", code=0).out
    assert empty.run("init", "--json", code=0).json == {"root": str(empty.path), "made": []}
    assert listing(empty.path) == before


def test_init_restores_missing_files_and_keeps_edited_ones(farro: Program) -> None:
    (farro.path / "AGENTS.md").write_text("mine")
    (farro.path / "jobs/stale").rmdir()
    assert farro.run("ls", code=2).err.startswith(
        f"farro: {farro.path} is not a whole farro root: jobs/stale is missing"
    )
    assert "is whole again; made jobs/stale" in farro.run("init", code=0).out
    assert (farro.path / "AGENTS.md").read_text() == "mine"


def test_init_creates_the_folder_and_its_parents(empty: Program) -> None:
    told = empty.run("init", "--root", "a/b/c", "--json", code=0).json
    assert told["root"] == str(empty.path / "a/b/c")
    assert empty.run("ls", "--root", "a/b/c", code=0).out.startswith("no jobs")


def test_a_root_is_found_from_below_and_from_the_environment(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "one")
    below = farro.path / "agents/Runner"
    assert "one" in farro.run("ls", cwd=below, code=0).out
    assert "one" in farro.run("ls", cwd=farro.path.parent, env={"FARRO_ROOT": str(farro.path)}, code=0).out
    assert "one" in farro.run("ls", "--root", farro.path.name, cwd=farro.path.parent, code=0).out


def test_plans_are_read_from_a_file_from_stdin_and_many_from_one_file(farro: Program) -> None:
    plan = json.dumps(steps(["echo", "hi"]))
    (farro.path / "plan.json").write_text(plan)
    (farro.path / "many.ndjson").write_text(f"{plan}\n\n{plan}\n")
    ways: list[tuple[list[str], int]] = [
        (["--plan", "plan.json"], 1),
        (["plan.json"], 1),
        (["-"], 1),
        (["--plan", "-"], 1),
        (["--many", "many.ndjson"], 2),
    ]
    for args, count in ways:
        told = farro.run("enqueue", *args, stdin=plan, code=0).out
        assert re.fullmatch(rf"({MINTED}\n){{{count}}}", told), args
    told = farro.run("enqueue", "--many", "-", "--json", stdin=f"{plan}\n{plan}\n{plan}", code=0).json
    assert len(set(told["jobs"])) == 3
    assert len(farro.run("ls", "--json", code=0).json["jobs"]) == 9


def test_a_yaml_plan_is_a_plan(farro: Program) -> None:
    (farro.path / "plan.yaml").write_text(
        "plan_id: y\nsteps:\n  - id: say\n    command: echo\n    args: [from, yaml]\n"
        "  - id: count\n    command: wc\n    args: [-w]\n    input_from_step: say\n"
    )
    job_id = farro.run("enqueue", "plan.yaml", code=0).out.strip()
    farro.worked()
    assert (farro.folder(job_id) / "attempts/0001/steps/count/stdout").read_text().strip() == "2"


def test_repeated_id_is_one_job_and_other_content_is_refused(farro: Program) -> None:
    assert farro.enqueue(steps(["true"]), "--id", "mine") == "mine"
    before = listing(farro.path)
    assert farro.enqueue(steps(["true"]), "--id", "mine") == "mine"
    told = farro.run("enqueue", "-", "--id", "mine", stdin=json.dumps(steps(["false"])), code=2)
    assert "mine was submitted before with other content" in told.err
    assert listing(farro.path) == before
    farro.worked()
    assert farro.enqueue(steps(["true"]), "--id", "mine") == "mine"
    assert farro.status("mine") == "succeeded"


def test_repeated_submission_is_reported_with_ignored_options(farro: Program) -> None:
    def again(*more: str) -> str:
        done = farro.call("enqueue", "--id", "mine", *more, "--", "true", code=0)
        assert done.out == "mine\n"
        return done.err

    assert again() == ""
    assert again() == "mine exists already and is queued; nothing was queued.\n"
    assert "the time that you gave is not its own" in again("--delay", "1h")
    farro.worked()
    assert "is succeeded, and that is final; nothing was queued" in again()
    own = json.dumps(steps(["true"], id="own"))
    assert farro.call("enqueue", "-", stdin=own, code=0).err == ""
    assert (
        farro.call("enqueue", "-", stdin=own, code=0).err == "own exists already and is queued; nothing was queued.\n"
    )


def test_ls_lists_jobs_in_order_of_creation(farro: Program) -> None:
    farro.call("enqueue", "--id", "z-first", "--", "echo", "one two", code=0)
    farro.enqueue(steps(["true"], ["false"]), "--id", "m-second")
    farro.worked()
    farro.call("enqueue", "--id", "a-third", "--role", "Runner", "--", "sh", "-c", f"echo {'x' * 60}", code=0)
    listed = [line.split()[0] for line in farro.call("ls", code=0).out.splitlines()]
    assert listed == ["JOB", "z-first", "m-second", "a-third"]
    assert [job["job_id"] for job in farro.call("ls", "--json", code=0).json["jobs"]] == listed[1:]
    head, first, second, third = farro.call("ls", code=0).out.splitlines()
    at = head.index("COMMAND")
    assert first[at:] == "echo 'one two'"
    assert re.fullmatch(r"true \(\+1\) +step_failed: step 2: exit code 1", second[at:])
    assert third[at:] == f"sh -c 'echo {'x' * 27}…"


def test_a_plan_on_standard_input_may_be_yaml(farro: Program) -> None:
    text = "# what it does\nid: mine\nsteps:\n- id: a\n  command: echo\n  args: [hi]\n"
    assert farro.call("enqueue", "-", stdin=text, code=0).out == "mine\n"
    assert farro.call("enqueue", "-", stdin="- {id: a, command: 'true'}\n", code=0).out
    told = farro.call("enqueue", "-", stdin="steps:\n- comand: echo\n", code=2)
    assert "<stdin>:2:3: steps[0].comand" in told.err
    assert "not JSON" in farro.call("enqueue", "-", stdin="what is this", code=2).err


def test_several_plan_files_are_queued_all_or_none(farro: Program) -> None:
    for name in ("a", "b"):
        (farro.path / f"{name}.json").write_text(json.dumps(steps(["echo", name], id=name)))
    (farro.path / "bad.yaml").write_text("steps:\n- comand: echo\n")
    (farro.path / "twice.json").write_text(json.dumps(steps(["true"], id="a")))
    told = farro.run("enqueue", "a.json", "bad.yaml", "twice.json", code=2)
    assert "bad.yaml:2:3: steps[0].comand" in told.err
    assert "twice.json:1" in told.err
    assert "a.json has another plan of this id" in told.err
    assert "--id names one job" in farro.run("enqueue", "a.json", "b.json", "--id", "c", code=2).err
    assert farro.call("ls", "--json").json["jobs"] == []
    assert farro.run("enqueue", "a.json", "b.json", code=0).out == "a\nb\n"
    assert "farro enqueue -- a.json gone" in farro.run("enqueue", "a.json", "gone", code=2).err


def test_ls_and_show_agree_as_text_and_as_json(farro: Program) -> None:
    farro.enqueue(steps(["echo", "hi"]), "--id", "good")
    farro.enqueue(shell("echo partial; echo reason >&2; exit 3"), "--id", "bad")
    assert re.search(r"^good +Runner +queued +0 ", farro.run("ls", code=0).out, re.MULTILINE)
    farro.worked()
    told = farro.run("ls", code=0).out
    assert re.search(r"^good +Runner +succeeded +1 +\d+s +echo hi$", told, re.MULTILINE)
    assert re.search(r"^bad +Runner +failed +1 +\d+s +sh -c .* step_failed: ", told, re.MULTILINE)
    views = {view["job_id"]: view for view in farro.run("ls", "--json", code=0).json["jobs"]}
    assert views["good"]["place"] == "agents/Runner/completed/succeeded"
    assert views["bad"]["error"]["category"] == "step_failed"

    shown = farro.run("show", "bad", code=0).out
    assert "lies in   agents/Runner/completed/failed/bad" in shown
    assert "committed → agents/Runner/completed/failed" in shown
    assert "reason" in shown
    details = farro.job("bad")
    assert "attempts/0001/steps/1/stdout" in details["files"]
    assert details["message"] == (farro.folder("bad") / "error.md").read_text()


def test_ls_filters_jobs(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "ends")
    farro.worked()
    farro.enqueue(steps(["true"]), "--id", "waits")
    farro.enqueue(steps(["true"]), "--id", "reviews", "--role", "CodeReviewer")

    def ids(*args: str) -> list[str]:
        return [view["job_id"] for view in farro.run("ls", "--json", *args, code=0).json["jobs"]]

    assert ids("--status", "queued") == ["waits", "reviews"]
    assert ids("--state", "completed") == ["ends"]
    assert ids("--role", "CodeReviewer") == ["reviews"]
    assert ids("--status", "succeeded", "--status", "queued", "--limit", "1") == ["reviews"]
    assert "no jobs like that" in farro.run("ls", "--status", "in-progress", code=0).out
    assert "no role Nobody here" in farro.run("ls", "--role", "Nobody", code=2).err


def test_pipeline_passes_bytes_on_and_stops_at_a_failure(farro: Program) -> None:
    plan = steps(["seq", "1", "50000"], ["sort", "-rn"], ["head", "-n", "2"])
    plan["steps"][1]["input_from_step"] = 1
    plan["steps"][2]["input_from_step"] = 2
    farro.enqueue(plan, "--id", "pipe")
    farro.enqueue(steps(["echo", "kept"], ["false"], ["touch", "never"]), "--id", "halts")
    farro.worked()
    result = json.loads((farro.folder("pipe") / "attempts/0001/result.json").read_text())
    assert result["step_results"][2]["stdout"] == "50000\n49999\n"
    result = json.loads((farro.folder("halts") / "attempts/0001/result.json").read_text())
    assert [step["success"] for step in result["step_results"]] == [True, False]
    assert not (farro.path / "never").exists()


def test_a_step_sees_its_job_and_root(farro: Program) -> None:
    farro.enqueue(shell('echo "$FARRO_JOB $FARRO_STEP $FARRO_ROOT $PWD"'), "--id", "looks")
    farro.worked()
    said = (farro.folder("looks") / "attempts/0001/steps/1/stdout").read_text()
    assert said == f"looks 1 {farro.path} {farro.path}\n"


def test_a_python_tool_of_the_config_runs_in_the_worker(farro: Program) -> None:
    (farro.path / "shouting.py").write_text(
        "def shout(call):\n    call.stdout.write(call.stdin.read().upper() + call.command.encode())\n"
    )
    config = json.loads((farro.path / "agents-config.json").read_text())
    config["tools"] = {"shout": {"python": "shouting:shout"}, "say": {"command": "echo"}}
    (farro.path / "agents-config.json").write_text(json.dumps(config))
    plan = {
        "steps": [
            {"id": "say", "tool": "say", "command": "hello"},
            {"id": "shout", "tool": "shout", "command": "!", "input_from_step": "say"},
            {"id": "child", "tool": "shout", "command": "?", "input_from_step": "say", "timeout": 60},
        ]
    }
    farro.enqueue(plan, "--id", "loud")
    farro.run("worker", "--drain", env={"PYTHONPATH": str(farro.path)}, code=0)
    attempt = farro.folder("loud") / "attempts/0001"
    assert (attempt / "steps/shout/stdout").read_text() == "HELLO\n!", (attempt / "result.json").read_text()
    assert (attempt / "steps/child/stdout").read_text() == "HELLO\n?"


def test_a_tool_that_cannot_be_imported_fails_its_job_alone(farro: Program) -> None:
    (farro.path / "agents-config.json").write_text('{"tools": {"gone": {"python": "no_such_module:f"}}}')
    farro.enqueue({"steps": [{"id": "a", "tool": "gone", "command": "x"}]}, "--id", "lost-tool")
    farro.enqueue(steps(["true"]), "--id", "fine")
    farro.worked()
    assert farro.job("lost-tool")["error"]["category"] == "missing_tool"
    assert farro.status("fine") == "succeeded"


def test_jobs_with_tags_wait_for_a_worker_that_offers_them(farro: Program) -> None:
    farro.enqueue(steps(["true"], metadata={"tags": ["gpu"]}), "--id", "heavy")
    farro.enqueue(steps(["true"]), "--id", "light")
    farro.worked("--tag", "gpu", "--tag", "ssd")
    assert (farro.status("heavy"), farro.status("light")) == ("succeeded", "succeeded")


@pytest.mark.parametrize("work", [False, True], ids=["queued", "finished"])
def test_id_of_a_job_removed_by_hand_is_not_acknowledged(farro: Program, work: bool) -> None:
    farro.run("enqueue", "--id", "mine", "--", "true", code=0)
    if work:
        farro.run("worker", "--drain", code=0)
    (folder,) = farro.path.glob("agents/Runner/**/mine")
    shutil.rmtree(folder)
    for command in ("enqueue", "run"):
        for other in ("true", "false"):
            told = farro.run(command, "--id", "mine", "--", other, code=2).err
            assert "its folder does not exist any more" in told
    many = "\n".join(
        json.dumps({"id": name, "plan_id": "p", "steps": [{"id": "s", "command": "true"}]}) for name in ("a", "mine")
    )
    assert "does not exist any more" in farro.run("enqueue", "--many", "-", stdin=many, code=2).err
    assert farro.run("ls", "--json", code=0).json["jobs"] == [], "no job of the batch is queued"
    assert "no job mine" in farro.run("kill", "mine", code=2).err
    remedy = re.search(r"`rm (\S+)`", told)
    assert remedy is not None
    os.unlink(remedy[1])
    assert farro.run("enqueue", "--id", "mine", "--", "false", code=0).out == "mine\n"
    assert farro.status("mine") == "queued"
