"""Bad input: a message with the position, exit 2, and nothing written, from every source of a plan.

tests/rules covers each rule of a plan; these tests cover the way from the file to the refusal.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

import pytest

from flows.program import Program, listing, steps, unprivileged

STEP = '{"id": "a", "command": "true"}'


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A wrong plan with its expected message and position. The plan is one line, so `column` suffices."""

    text: bytes
    says: str
    column: int | None = 1
    ways: tuple[str, ...] = field(default=("--plan", "stdin", "--many"))


def bad(text: str | bytes, says: str, column: int | None = 1, **more: Any) -> Bad:
    """Build a wrong plan; `¦` in the text marks the position of the problem and is removed."""
    if isinstance(text, str):
        column = text.index("¦") + 1 if "¦" in text else column
        text = text.replace("¦", "").encode()
    return Bad(text=text, says=says, column=column, **more)


def plan(**fields: Any) -> str:
    return json.dumps({"steps": [{"id": "a", "command": "true"}], **fields})


def with_id(value: str) -> Bad:
    return bad(f'{{"id": ¦{json.dumps(value)}, "steps": [{STEP}]}}', "id: is not an id; it must match")


def with_step(fields: str, says: str) -> Bad:
    return bad(f'{{"steps": [{{"id": "a", {fields}}}]}}', says)


CASES = {
    "unknown field of a plan": bad(
        f'{{"steps": [{STEP}], ¦"stepz": 1}}', "stepz: is not a known field; did you mean steps?"
    ),
    "unknown field of a step": with_step('"command": "x", ¦"colour": 1', "steps[0].colour: is not a known field"),
    "no command": bad('{"steps": [¦{"id": "a"}]}', "steps[0].command: is required"),
    "id with dots": with_id(".."),
    "id with a slash": with_id("a/b"),
    "id with NUL": with_id("a\0b"),
    "id with .lock": with_id("a.lock"),
    "id with a newline": with_id("a\n"),
    "id with an escape": with_id("\x1b[31m"),
    "id hidden": with_id(".a"),
    "id empty": with_id(""),
    "id too long": with_id("x" * 65),
    "id reserved": bad(f'{{"id": ¦"con", "steps": [{STEP}]}}', "id: 'con' is not a job id: Windows keeps"),
    "id of a step": bad('{"steps": [{"id": ¦"../x", "command": "x"}]}', "steps[0].id: is not an id"),
    "role unknown": bad(f'{{"role": ¦"Nobody", "steps": [{STEP}]}}', "role: no role Nobody here; known: Architect"),
    "role with a slash": bad(f'{{"role": ¦"a/b", "steps": [{STEP}]}}', "role: is not an id"),
    "argument with NUL": with_step('"command": "x", "args": [¦"\\u0000"]', "steps[0].args[0]: holds a NUL"),
    "too large": bad(b'{"name": "' + b"x" * (1 << 20) + b'"}', "1048576", None),
    "nested deeply": bad("[" * 64 + "¦" + "[" * 100_000, "nested deeper than 64 levels"),
    "nested deeply in a field": bad(
        '{"metadata": ' + "[" * 63 + "¦[]" + "]" * 63 + "}", "nested deeper than 64 levels"
    ),
    "key twice": bad('{"id": "a", ¦"id": "b"}', "id: this key is in the object twice"),
    "NaN": with_step('"command": "x", "timeout": ¦NaN', "steps[0].timeout: NaN is not JSON"),
    "infinite": bad('{"timeout": ¦1e999}', "timeout: this number is too large for a float"),
    "huge integer": bad('{"parallel": ¦' + "9" * 5000 + "}", "an integer of 5000 digits"),
    "lone surrogate": bad('{"name": ¦"\\ud800"}', "name: half of a surrogate pair is not a character"),
    "wrong type of steps": bad('{"steps": ¦"echo"}', "steps: must be a list, not text"),
    "wrong type of a step": bad('{"steps": [¦"echo"]}', "steps[0]"),
    "wrong type of args": with_step('"command": "x", "args": ¦"-l"', "steps[0].args: must be a list, not text"),
    "text for a number": with_step('"command": "x", "timeout": ¦"9"', "steps[0].timeout: must be a number, not text"),
    "number for text": with_step('"command": ¦7', "steps[0].command: must be text, not the number 7"),
    "timeout below zero": bad(f'{{"timeout": ¦-1, "steps": [{STEP}]}}', "timeout: must be more than 0"),
    "not an object": bad("5", "must be an object, not the number 5"),
    "text": bad('"echo"', "must be an object, not text"),
    "null": bad("null", "must be an object"),
    "no steps": bad('{"steps": ¦[]}', "steps: must have at least 1"),
    "empty list": bad("[]", "must have at least 1"),
    "not UTF-8": bad(b'{"name": "\xff"}', "byte 0xff is not UTF-8", 11),
    "UTF-16": bad(plan().encode("utf-16"), "is not UTF-8", ways=("--plan", "stdin")),
    "byte order mark": bad(b"\xef\xbb\xbf" + plan().encode(), "byte order mark"),
    "not JSON": bad("echo hi", "not JSON"),
    "JSON cut off": bad('{"steps": [', "not JSON", None),
    "empty": bad("", "not JSON: the document is empty", ways=("--plan", "stdin")),
    "blank": bad(" \n\n", "not JSON: the document is empty", None, ways=("--plan", "stdin")),
    "the memo's old single-step form": bad(
        '{"id": "j", "tool": "unix", "command": "ls", "args": []}',
        "this is the old single-step job; a job holds its whole plan",
    ),
    "too many steps": bad(
        json.dumps(steps(*[["true"]] * 101)).replace("[", "¦[", 1), "steps: may have at most 100; it has 101"
    ),
    "reference to a later step": bad(
        '{"steps": [{"step_number": 1, "command": "x", "input_from_step": ¦7}]}',
        "steps[0].input_from_step: 7 is not an earlier step",
    ),
    "reference to nothing": bad(
        '{"steps": [{"id": "build", "command": "x"}, {"id": "b", "command": "x", "needs": [¦"biuld"]}]}',
        'steps[1].needs[0]: "biuld" is not a step of this plan; did you mean "build"?',
    ),
    "steps that wait for each other": bad(
        '{"steps": [{"id": "a", "command": "x", "needs": [¦"b"]}, {"id": "b", "command": "x", "needs": ["a"]}]}',
        "steps wait for each other: a → b → a",
    ),
    "one id for two steps": bad(
        f'{{"steps": [{STEP}, {{"id": ¦"a", "command": "x"}}]}}', "is also steps[0]; ids are unique in a plan"
    ),
}
PAIRS = [(name, way) for name, case in CASES.items() for way in case.ways]


@pytest.mark.parametrize(("name", "way"), PAIRS, ids=[f"{name}, {way}" for name, way in PAIRS])
def test_bad_plan_is_refused_with_its_position_and_nothing_is_written(farro: Program, name: str, way: str) -> None:
    case = CASES[name]
    good = b"" if way != "--many" else plan().encode() + b"\n\n"
    (farro.path / "bad.json").write_bytes(good + case.text)
    before = listing(farro.path)
    arg = {"--plan": ["--plan", "bad.json"], "stdin": ["-"], "--many": ["--many", "bad.json"]}[way]
    told = farro.call("enqueue", *arg, stdin=case.text, code=2)
    source = "<stdin>" if way == "stdin" else "bad.json"
    place = source if case.column is None else f"{source}:{3 if way == '--many' else 1}:{case.column}: "
    assert told.err.startswith(f"farro: {place}"), told.err
    assert case.says in told.err
    assert told.out == ""
    assert listing(farro.path) == before


@pytest.mark.parametrize("name", ["nested deeply", "not UTF-8", "lone surrogate", "too large"])
def test_installed_program_prints_the_same_refusal(farro: Program, name: str) -> None:
    before = listing(farro.path)
    told = farro.run("enqueue", "-", stdin=CASES[name].text, code=2)
    assert told.err.startswith("farro: <stdin>:")
    assert CASES[name].says in told.err
    assert listing(farro.path) == before


def test_every_problem_of_a_file_is_reported_at_once(farro: Program) -> None:
    lines = [plan(), '{"steps": 3}', plan(id="a/b"), plan(nmae="x"), plan()]
    before = listing(farro.path)
    told = farro.call("enqueue", "--many", "-", stdin="\n".join(lines), code=2)
    assert [line.split(": ")[1] for line in told.err.splitlines()] == ["<stdin>:2:11", "<stdin>:3:51", "<stdin>:4:45"]
    assert listing(farro.path) == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &x 1\nsteps: *x\n", "plan.yaml:1:4: a: anchors and aliases are not read"),
        ("steps:\n- {id: a, command: x}\n- *x\n", "plan.yaml:3:3: steps[1]: anchors and aliases are not read"),
        ("steps:\n- <<: {id: a}\n  command: x\n", "plan.yaml:2:3: steps[0]"),
        ("steps:\n- id: a\n  id: b\n  command: x\n", "plan.yaml:3:3: steps[0].id"),
        ("steps: [\n", "plan.yaml:2:1: "),
        ("steps: !!python/object:os.system []\n", "plan.yaml:1:8: steps: "),
        ("steps:\n- {id: a, command: x, colour: red}\n", "plan.yaml:2:23: steps[0].colour: is not a known field"),
        ("", "plan.yaml:1:1: not YAML: the document is empty"),
        ("a: " + "[" * 100, "nested deeper than 64 levels"),
    ],
)
def test_bad_yaml_plan_is_refused_with_its_position(farro: Program, text: str, says: str) -> None:
    (farro.path / "plan.yaml").write_text(text)
    before = listing(farro.path)
    told = farro.call("enqueue", "plan.yaml", code=2)
    assert says in told.err
    assert listing(farro.path) == before


@pytest.mark.parametrize("option", ["--plan", "--many"])
def test_unreadable_file_is_refused_without_blocking(farro: Program, option: str) -> None:
    os.mkfifo(farro.path / "fifo")
    (farro.path / "folder").mkdir()
    (farro.path / "secret").write_text(plan())
    (farro.path / "secret").chmod(0)
    (farro.path / "loop").symlink_to("loop")
    before = sorted(path.name for path in (farro.path / "jobs").rglob("*"))
    for name, why in (
        ("nothing", "No such file or directory"),
        ("fifo", "not a regular file"),
        ("folder", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("secret", "Permission denied"),
        ("loop", "Too many levels of symbolic links"),
        ("AGENTS.md/x", "Not a directory"),
    ):
        told = farro.run("enqueue", option, name, prefix=unprivileged(), code=2)
        assert told.err == f"farro: {name}: cannot be read: {why}\n"
    assert sorted(path.name for path in (farro.path / "jobs").rglob("*")) == before


def test_options_that_contradict_the_plan_or_each_other_are_refused(farro: Program) -> None:
    (farro.path / "plan.json").write_text(plan(id="mine", role="Runner"))
    (farro.path / "two.ndjson").write_text(f"{plan()}\n{plan()}\n")
    (farro.path / "blank.ndjson").write_text("\n \n")
    before = listing(farro.path)
    for args, says in (
        (["plan.json", "--id", "other"], "plan.json:1:51: id: is mine, but --id says other; keep one of them"),
        (["plan.json", "--role", "Manager"], "role: is Runner, but --role says Manager; keep one of them"),
        (["plan.json", "--id", ".."], "--id: '..' is not a job id"),
        (["plan.json", "--id", ""], "--id: '' is not a job id"),
        (["plan.json", "--id", "nul"], "--id: 'nul' is not a job id: Windows keeps"),
        (["plan.json", "--role", "../Runner"], "--role: '../Runner' is not a role"),
        (["plan.json", "--role", "Nobody"], "--role: no role Nobody here; known: Architect"),
        (["--many", "two.ndjson", "--id", "x"], "--id names one job, and there are several plans"),
        (["--many", "blank.ndjson"], "blank.ndjson: it contains no plan; --many needs one JSON plan per line"),
        (["plan.json", "--many", "two.ndjson"], "name one thing to queue"),
        ([], "name one thing to queue"),
        (["plan.json", "--rool", "Runner"], "No such option"),
    ):
        assert says in farro.call("enqueue", *args, code=2).err
    assert listing(farro.path) == before


def test_file_with_one_id_for_two_plans_is_refused_and_a_repeated_plan_is_one_job(farro: Program) -> None:
    before = listing(farro.path)
    lines = plan(id="one") + "\n" + plan(id="one", name="another")
    told = farro.call("enqueue", "--many", "-", stdin=lines, code=2)
    assert "<stdin>:2:51: id: line 1 has another plan of this id" in told.err
    assert listing(farro.path) == before
    told = farro.call("enqueue", "--many", "-", stdin=plan(id="one") + "\n" + plan(id="one"), code=0)
    assert told.out == "one\none\n"
    assert len(farro.call("ls", "--json", code=0).json["jobs"]) == 1


def test_job_without_required_allowed_paths_is_refused(farro: Program) -> None:
    (farro.path / "agents-config.json").write_text('{"security": {"require_allowed_paths": true}}')
    before = listing(farro.path)
    for arguments in (("enqueue", "-"), ("enqueue", "--", "ls"), ("run", "--", "ls")):
        told = farro.call(*arguments, stdin=plan() if "-" in arguments else "", code=3)
        assert "`security.require_allowed_paths` is on" in told.err
        assert "Nothing was queued" in told.err
    assert listing(farro.path) == before
    farro.call("enqueue", "-", stdin=plan(allowed_paths=["src"]), code=0)


@pytest.mark.parametrize("job_id", ["..", "a/b", ".lock", "x" * 65, "", "nul", "a\nb", "\x1b[31m", "--help-me"])
@pytest.mark.parametrize("verb", ["show", "kill"])
def test_bad_job_id_is_never_used_as_a_path(farro: Program, verb: str, job_id: str) -> None:
    before = listing(farro.path / "agents")
    told = farro.call(verb, "--", job_id, code=2)
    assert "is not a job id" in told.err
    assert "\x1b" not in told.err
    assert listing(farro.path / "agents") == before


@pytest.mark.parametrize("verb", ["show", "kill", "requeue", "force-complete"])
def test_unknown_job_is_reported(farro: Program, verb: str) -> None:
    assert farro.call(verb, "nope", code=2).err == (
        f"farro: no job nope in {farro.path}; `farro ls` lists what there is\n"
    )
    missing = {"kill": "name the jobs to kill", "requeue": "Missing argument 'JOB...'."}
    assert missing.get(verb, "Missing argument 'JOB'.") in farro.call(verb, code=2).err
