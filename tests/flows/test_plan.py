"""`farro plan`: check and draw plans from files, from standard input, and from jobs."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from flows.program import Program
from support import eventually

PLAN = """\
steps:
- id: fetch
  command: echo
  args: [hello]
- id: count
  command: wc
  input_from_step: fetch
- id: stop
  command: "false"
  needs: [fetch]
- id: never
  command: "true"
  needs: [count, stop]
"""


def test_a_good_plan_is_summed_up_in_one_line(farro: Program) -> None:
    (farro.path / "p.yaml").write_text(PLAN)
    assert farro.run("plan", "lint", "p.yaml", code=0).out == (
        "p.yaml: ok: 4 steps, longest chain 3, 2 can run together (one at a time: no `parallel`), at most 2h00m, "
        "tools: unix\n"
    )


def test_lint_works_where_there_is_no_root(empty: Program) -> None:
    assert "<stdin>: ok: 4 steps" in empty.call("plan", "lint", "-", stdin=PLAN, code=0).out


def test_lint_reports_every_problem_of_every_file_with_its_position(farro: Program) -> None:
    (farro.path / "good.yaml").write_text(PLAN)
    (farro.path / "bad.json").write_text('{"steps": [{"id": "a", "comand": "ls"},\n {"id": "a", "command": "ls"}]}')
    told = farro.call("plan", "lint", "good.yaml", "bad.json", "none.json", code=2)
    assert told.err == ""
    assert told.out.splitlines()[1:] == [
        "bad.json:1:12: steps[0].command: is required",
        "bad.json:1:24: steps[0].comand: is not a known field; did you mean command?",
        'bad.json:2:9: steps[1].id: "a" is also steps[0]; ids are unique in a plan',
        "none.json: cannot be read: No such file or directory",
    ]


def test_lint_refuses_what_enqueue_would(farro: Program) -> None:
    plan = json.dumps({"steps": [{"id": "a", "command": "ls"}], "metadata": {"priority": "P9"}})
    told = farro.call("plan", "lint", "-", stdin=plan, code=2)
    assert told.out.startswith("<stdin>:1:")
    assert "is not a priority; choose one of P0" in told.out


def test_a_file_of_many_plans_is_checked_line_by_line(farro: Program) -> None:
    (farro.path / "m.ndjson").write_text(
        '{"steps":[{"id":"a","command":"ls"}]}\n\n[{"id":"b","command":"no-such-x"}]\n'
    )
    told = farro.call("plan", "lint", "m.ndjson", code=2).out.splitlines()
    assert told[0].startswith("m.ndjson: ok: 1 step,")
    assert told[1].startswith("m.ndjson:3:22: [0].command: no-such-x was not found on the PATH")


MISSING = {
    "missing program": ({"command": "no-such"}, {}, "steps[0].command: no-such was not found on the PATH"),
    "words in the command": ({"command": "ls -l"}, {}, "a command is one program: put its arguments into args"),
    "missing tool": ({"tool": "unx", "command": "x"}, {}, "steps[0].tool: tool unx is neither registered nor a program "
                     "on the PATH; did you mean unix? `farro tools` lists what there is"),
    "cd": ({"command": "cd"}, {}, "steps[0].command: cd changes the folder of that step alone"),
    "gone function": ({"tool": "gone", "command": "x"}, {}, "steps[0].tool: tool gone is registered but cannot"),
    "gone program": ({"tool": "lost", "command": "x"}, {}, "steps[0].tool: tool lost: /none/lost was not found"),
}  # fmt: skip
WARNED = {
    "shell": ({"command": "ls", "args": ["|", "wc"]}, {}, 'steps[0].args[0]: "|" is handed over as text'),
    "no folder": ({"command": "ls", "cwd": "none"}, {}, "steps[0].cwd: "),
    "role": ({"command": "ls"}, {"role": "Nobody"}, "role: Nobody is not a role here"),
    "parallel": ({"command": "ls"}, {"parallel": 3}, "parallel: 3 is of no use"),
}  # fmt: skip


def written(farro: Program, step: dict[str, Any], more: dict[str, Any]) -> None:
    config = {"tools": {"gone": {"python": "no_such_module:f"}, "lost": {"command": "/none/lost"}}}
    (farro.path / "agents-config.json").write_text(json.dumps(config))
    (farro.path / "p.json").write_text(json.dumps({"steps": [{"id": "a", **step}], **more}))


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_tool_or_program_is_an_error(farro: Program, name: str) -> None:
    step, more, message = MISSING[name]
    written(farro, step, more)
    told = farro.call("plan", "lint", "p.json", code=2).out
    assert message in told
    assert told.startswith("p.json:1:")
    assert "warning" not in told
    (checked,) = farro.call("plan", "lint", "--json", "p.json", code=2).json["plans"]
    assert (checked["ok"], len(checked["problems"]), checked["warnings"]) == (False, 1, [])


@pytest.mark.parametrize("name", WARNED)
def test_likely_mistake_is_a_warning_and_a_failure_with_strict(farro: Program, name: str) -> None:
    step, more, message = WARNED[name]
    written(farro, step, more)
    told = farro.call("plan", "lint", "p.json", code=0).out
    assert message in told
    assert told.startswith("p.json:1:")
    assert ": warning: " in told
    assert told.rstrip().endswith(", 1 warning")
    farro.call("plan", "lint", "--strict", "p.json", code=1)


def test_program_made_by_an_earlier_step_causes_no_warning(farro: Program) -> None:
    steps: list[dict[str, Any]] = [
        {"id": "a", "command": "mkdir", "args": ["built"]},
        {"id": "b", "command": "./run", "cwd": "built"},
    ]
    assert "warning" not in farro.call("plan", "lint", "-", stdin=json.dumps({"steps": steps}), code=0).out


@pytest.mark.parametrize("command", ["./run --fast", "/bin/echo hi"])
def test_command_line_as_program_name_is_an_error(farro: Program, command: str) -> None:
    steps = [{"id": "a", "command": "true"}, {"id": "b", "command": command}]
    told = farro.call("plan", "lint", "-", stdin=json.dumps({"steps": steps}), code=2).out
    assert f"steps[1].command: {command} was not found" in told
    assert "put its arguments into args" in told


def test_lint_answers_as_json(farro: Program) -> None:
    (farro.path / "p.yaml").write_text(PLAN)
    good, bad = farro.call("plan", "lint", "--json", "p.yaml", "-", stdin="[]", code=2).json["plans"]
    assert (good["ok"], good["steps"], good["longest_chain"], good["together"], good["tools"]) == (
        True,
        4,
        3,
        2,
        ["unix"],
    )
    assert bad["ok"] is False
    assert (bad["problems"][0]["line"], bad["problems"][0]["column"]) == (1, 1)


def test_a_plan_is_drawn_with_its_legend(farro: Program) -> None:
    (farro.path / "p.yaml").write_text(PLAN)
    told = farro.run("plan", "show", "p.yaml", code=0).out
    assert "┏" in told
    assert "━━▶ output becomes input   ──▶ runs after" in told
    assert "waiting" not in told


@pytest.mark.parametrize("env", [{"LC_ALL": "C", "PYTHONIOENCODING": "latin-1"}, {}])
def test_plan_is_drawn_in_ascii_where_the_encoding_requires_it(farro: Program, env: dict[str, str]) -> None:
    (farro.path / "p.yaml").write_text(PLAN)
    told = farro.run("plan", "show", "p.yaml", *([] if env else ["--ascii"]), env=env, code=0).out
    assert told.isascii()
    assert "==> output becomes input   --> runs after" in told


def test_a_large_plan_is_listed_by_levels(farro: Program) -> None:
    steps = [{"id": f"s{n}", "command": "echo", "needs": [f"s{n - 1}"] if n % 5 else []} for n in range(100)]
    told = farro.call("plan", "show", "-", stdin=json.dumps({"steps": steps}), code=0).out
    assert told.startswith("level 1, 20 steps\n")
    assert "← s1" in told


def test_a_job_is_drawn_with_the_states_of_its_steps(farro: Program) -> None:
    (farro.path / "p.yaml").write_text(PLAN)
    farro.call("enqueue", "p.yaml", "--id", "my-release-7", code=0)
    assert "○ waiting" in farro.call("plan", "show", "my-release", code=0).out
    farro.worked()
    told = farro.call("plan", "show", "my-release", code=0).out
    for mark in ("✓ fetch", "✓ count", "✗ stop", "– never", "✓ succeeded   ✗ failed   – skipped"):
        assert mark in told
    states = {step["id"]: step["state"] for step in farro.call("plan", "show", "--json", "my-release").json["steps"]}
    assert states == {"fetch": "succeeded", "count": "succeeded", "stop": "failed", "never": "skipped"}


@pytest.mark.parametrize("parallel", [1, 2])
def test_running_job_is_drawn_with_its_progress(farro: Program, parallel: int) -> None:
    steps = [
        {"id": "done", "command": "true"},
        {"id": "now", "command": "sh", "args": ["-c", "touch started; exec sleep 100000"], "needs": ["done"]},
        {"id": "later", "command": "true", "needs": ["now"]},
    ]
    job = farro.enqueue({"steps": steps, "parallel": parallel})
    farro.start("worker")
    eventually((farro.path / "started").exists, "the second step did not start")
    told = farro.call("plan", "show", job, code=0).out
    for mark in ("✓ done", "◐ now", "○ later"):
        assert mark in told


def test_picture_is_written_to_a_file(farro: Program) -> None:
    (farro.path / "p.yaml").write_text(PLAN)
    assert farro.call("plan", "show", "p.yaml", "--svg", "-o", "p.svg", code=0).out == ""
    assert ET.parse(farro.path / "p.svg").getroot().get("role") == "img"
    assert farro.call("plan", "show", "p.yaml", "--mermaid", code=0).out.startswith("flowchart TD\n")
    assert "is not a file" in farro.call("plan", "show", "p.yaml", "-o", os.devnull, code=2).err
    assert "none/p.svg: No such file" in farro.call("plan", "show", "p.yaml", "-o", "none/p.svg", code=2).err


def test_plan_show_names_what_it_cannot_find(farro: Program) -> None:
    assert farro.call("plan", "show", "none.yaml", code=2).err == "farro: none.yaml: no such file\n"
    assert "no job none" in farro.call("plan", "show", "none", code=2).err
    assert "keep one" in farro.call("plan", "show", "none", "--svg", "--json", code=2).err
    (farro.path / "bad.json").write_text("[]")
    assert farro.call("plan", "show", "bad.json", code=2).err.startswith("farro: bad.json:1:1: ")
