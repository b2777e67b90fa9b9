"""The error about a wrong plan says how to fix it, for every form and both languages."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from farro import documents
from farro.errors import BadDocument
from farro.plans.loading import load
from farro.plans.model import Plan

STEP = '{"id": "build", "command": "make", "args": ["all"]}'


def told(text: str, name: str = "p.yaml") -> list[str]:
    with pytest.raises(BadDocument) as caught:
        load(documents.parse(text.encode(), name))
    return str(caught.value).split("\n")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("steps:\n\t- id: a\n", "p.yaml:2:1: steps: not YAML: found character '\\t' that cannot start any token; "
         "a tab stands here; YAML is indented by spaces"),
        ("steps:\n- id: a\n  command: @x\n", "p.yaml:3:12: steps[0].command: not YAML: found character '@' that cannot "
         "start any token; text that begins with @ needs quotes"),
        ("steps:\n- id: a\n   command: ls\n", "p.yaml:3:11: steps[0].id: not YAML: mapping values are not allowed "
         "here; the indentation is not that of the line before, or a text with a colon in it needs quotes"),
        ("steps:\n- &x\n  id: a\n  command: ls\n- *x\n",
         "p.yaml:2:3: steps[0]: anchors and aliases are not read; write the value out"),
        ("steps:\n- id: a\n  <<: {command: ls}\n",
         'p.yaml:3:3: steps[0]["<<"]: merge keys are not read; write the members out'),
        ("steps:\n- id: a\n  id: b\n", "p.yaml:3:3: steps[0].id: this key is in the mapping twice; keep one"),
        ("steps:\n- id: a\n  command: ls\n  args: [5]\n",
         'p.yaml:4:10: steps[0].args[0]: must be text, not the number 5; quote it: "5"'),
        ("steps:\n- id: a\n  command: ls\n  args: [a: b]\n",
         "p.yaml:4:10: steps[0].args[0]: must be text, not an object; a text with a colon in it needs quotes"),
        ("steps:\n- id: a\n  command: ls\n  args: -l /tmp\n",
         'p.yaml:4:9: steps[0].args: must be a list, not text; write ["-l", "/tmp"]'),
        ("steps:\n- id: a\n  command: [ls, -l]\n", "p.yaml:3:12: steps[0].command: must be text, not a list; "
         "the program alone is the command; its words go into args"),
        ("steps:\n- id: a\n  command: ls\n  needs: b\n",
         'p.yaml:4:10: steps[0].needs: must be a list, not text; write ["build"]'),
        ("steps:\n- id: a\n  command: ls\n  env: [A=1]\n",
         'p.yaml:4:8: steps[0].env: must be an object, not a list; write {"NAME": "value"}'),
        ("steps:\n- id: a\n  command: ls\n  timeout: 10m\n",
         "p.yaml:4:12: steps[0].timeout: must be a number, not text; it is in seconds: 600 is ten minutes"),
        ("steps:\n- id: a\n  command: ls\n  ok_exit_codes: 0\n",
         "p.yaml:4:18: steps[0].ok_exit_codes: must be a list, not the number 0; write [0, 1]"),
        ("steps:\n  build:\n    command: make\n",
         f"p.yaml:2:3: steps: must be a list, not an object; each step is an item with its own id: [{STEP}]"),
        ("steps: []\n", f"p.yaml:1:8: steps: must have at least 1; it has 0; a plan has at least one step: [{STEP}]"),
        ("steps: [ls]\n", f"p.yaml:1:9: steps[0]: must be an object, not text; a step is an object: {STEP}"),
        ("hello\n", f'p.yaml:1:1: must be an object, not text; a plan is an object, {{"steps": [{STEP}]}}, '
         "or a list of tasks"),
        ("- id: a\n  command: ls\n  job_name: ''\n", "p.yaml:3:13: [0].job_name: must not be empty"),
    ],
)  # fmt: skip
def test_a_fault_in_yaml_is_reported_with_its_place_and_a_fix(text: str, line: str) -> None:
    assert line in told(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"steps": [1,]}', "p.json:1:14: not JSON: expecting value; a comma stands before this with nothing after it"),
        ("{'steps': []}", "p.json:1:2: not JSON: expecting property name enclosed in double quotes; names and text"),
        ("// plan\n{}", "p.json:1:1: not JSON: expecting value; JSON has no comments; take it out"),
        ('{"a": 1 "b": 2}', "p.json:1:9: not JSON: expecting ',' delimiter; a comma is missing before this"),
        ('{"steps": [', "p.json:1:12: not JSON: expecting value; the text ends too early: a } or ] is missing"),
        ('{"a": "x', "p.json:1:7: not JSON: unterminated string starting; the text that begins here has no closing"),
        (r'{"a": "C:\x"}', r"p.json:1:10: not JSON: invalid \escape; a backslash is written \\"),
        ("{}\n{}\n", "p.json:2:1: not JSON: extra data; one document ends before this, and one file holds one"),
    ],
)
def test_broken_json_is_reported_with_a_fix(text: str, line: str) -> None:
    if "illegal trailing comma" in (found := told(text, "p.json"))[0]:  # as later Pythons call it, at the comma
        return
    assert found[0].startswith(line)


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("depends_on", "needs"),
        ("dependsOn", "needs"),
        ("run", "command, and its words args; farro uses no shell"),
        ("working-directory", "cwd"),
        ("environment", "env"),
        ("name", "id"),
        ("input_from", "input_from_step"),
        ("timeout_seconds", "timeout, in seconds"),
    ],
)
def test_a_word_of_another_system_is_answered_with_farros_own(field: str, meant: str) -> None:
    text = json.dumps({"steps": [{"id": "a", "command": "ls", field: "x"}]})
    assert told(text, "p.json")[0].endswith(f"steps[0].{field}: is not a known field; farro calls it {meant}")


def test_a_misspelt_state_of_an_exported_task_is_answered_with_the_right_one() -> None:
    text = json.dumps([{"id": "t", "command": "ls", "stauts": "pending"}])
    assert told(text, "t.json") == ["t.json:1:31: [0].stauts: is not a known field; did you mean status?"]


@pytest.mark.parametrize(
    ("numbers", "source", "why"),
    [
        ((1, 2), 9, "9 is not an earlier step, and no step of this plan has that number"),
        ((1, 2), 1, "1 is not an earlier step: it is this step itself"),
        ((1, 2), 2, "2 is not an earlier step; move it up in the list, or give the steps ids instead of numbers"),
    ],
)
def test_a_number_that_is_no_earlier_step_says_why(numbers: tuple[int, ...], source: int, why: str) -> None:
    steps: list[dict[str, Any]] = [{"step_number": number, "command": "ls"} for number in numbers]
    steps[0]["input_from_step"] = source
    assert why in told(json.dumps({"steps": steps}), "p.json")[0]


def test_too_many_steps_are_answered_with_a_way_to_have_more() -> None:
    text = json.dumps({"steps": [{"id": f"s{index}", "command": "ls"} for index in range(101)]})
    assert "it has 101; let a step add the rest while it runs (farro task add)" in told(text, "p.json")[0]


def test_a_cycle_of_steps_is_reported_at_the_reference_that_closes_it() -> None:
    text = "steps:\n" + "".join(
        f"- id: {name}\n  command: ls\n  needs: [x, {need}]\n" for name, need in (("a", "b"), ("b", "c"), ("c", "a"))
    )
    text += "- id: x\n  command: ls\n"
    assert told(text) == [
        "p.yaml:4:14: steps[0].needs[1]: steps wait for each other: a → b → c → a (each needs the next); "
        "take one need out"
    ]


def test_every_form_loads_into_the_same_plan() -> None:
    own = "steps:\n- id: '1'\n  command: ls\n- id: '2'\n  command: wc\n  input_from_step: '1'\n"
    memo = {"steps": [{"step_number": 1, "command": "ls"}, {"step_number": 2, "command": "wc", "input_from_step": 1}]}
    state = {"status": "completed", "created_at": "x", "started_at": "x", "completed_at": "x", "error": None}
    air = [
        {"id": "1", "command": "ls", "args": [], "dependencies": [], **state},
        {"id": "2", "command": "wc", "input_from_step": "1", "dependencies": [], **state},
    ]
    plans: list[Plan] = [load(documents.parse(own.encode(), "p.yaml"))]
    plans += [load(documents.parse(json.dumps(form).encode(), "p.json")) for form in (memo, air, {"tasks": air})]
    assert plans[1] == plans[0]
    assert plans[2:] == [replace(plans[0], keep_going=True)] * 2
