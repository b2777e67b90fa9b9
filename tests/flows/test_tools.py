"""`farro tools`, and plans whose tools are missing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from flows.program import Program

MODULE = '''
print("noise while it is imported")

def shout(call):
    """Writes its input in capitals.

    And more."""
    call.stdout.write(call.stdin.read().upper())

def told(call): ...
told.describe = {"description": "By an attribute.", "version": 2, "commands": [{"name": "go", "args": ["N"]}]}

def broken(call): ...
broken.describe = lambda: 1 / 0
'''

PROGRAMS = {
    "agx-good": 'echo \'{"version": "1.2", "description": "Reads images.", "extra": [1], "commands": ["read"]}\'',
    "agx-hangs": "sleep 1000",
    "agx-leaves": 'sleep 1000 & echo \'{"description": "Leaves one behind."}\'',
    "agx-loud": "yes",
    "agx-rubbish": "printf '\\033[31mhello'",
    "agx-list": "echo '[]'",
    "farro-fails": "exit 3",
}


@pytest.fixture
def equipped(farro: Program) -> Program:
    """Make a root with every kind of tool, good and bad."""
    folder = farro.path / "bin"
    folder.mkdir()
    for name, script in PROGRAMS.items():
        program(folder / name, script)
    (folder / "agx-no-program").write_text("neither script nor binary")
    (folder / "agx-no-program").chmod(0o755)
    (farro.path / "own_tools.py").write_text(MODULE)
    (farro.path / "leaver.py").write_text("import sys; sys.exit(4)")
    (farro.path / "vanisher.py").write_text("import os; os._exit(4)")
    config = {
        "tools": {
            "ocr": {"command": "bin/agx-good"},
            "lost": {"command": "/none/lost"},
            "shout": {"python": "own_tools:shout"},
            "told": {"python": "own_tools:told"},
            "broken": {"python": "own_tools:broken"},
            "gone": {"python": "no_such_module:f"},
            "leaver": {"python": "leaver:f"},
            "vanisher": {"python": "vanisher:f"},
        }
    }
    (farro.path / "agents-config.json").write_text(json.dumps(config))
    farro.env["PATH"] = f"{folder}{os.pathsep}{farro.env['PATH']}"
    farro.env["PYTHONPATH"] = str(farro.path)
    return farro


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_every_tool_is_listed_and_a_broken_one_does_not_stop_the_list(equipped: Program) -> None:
    told = equipped.run("tools", "--path", "--json", code=0)
    assert "noise" not in told.out
    tools = {tool["name"]: tool for tool in told.json["tools"]}

    def said(name: str) -> str | None:
        tool = tools[name]
        return tool["trouble"] or tool["said"]["description"]

    assert (tools["unix"]["kind"], tools["ocr"]["kind"], tools["shout"]["kind"]) == ("built in", "program", "python")
    assert (tools["ocr"]["comes_from"], tools["agx-good"]["comes_from"]) == ("config", "PATH")
    assert tools["ocr"]["where"] == str(equipped.path / "bin/agx-good")
    assert tools["ocr"]["said"]["version"] == "1.2"
    assert [command["name"] for command in tools["ocr"]["said"]["commands"]] == ["read"]
    assert said("shout") == "Writes its input in capitals."
    assert said("told") == "By an attribute."
    assert said("broken") == "describe() raised ZeroDivisionError"
    assert said("agx-hangs") == "--describe gave no answer within 2 s"
    assert said("agx-leaves") == "Leaves one behind."
    assert said("agx-loud") == "--describe said more than 262144 bytes"
    assert said("agx-rubbish") == "--describe did not answer in JSON"
    assert said("agx-list") == "--describe did not answer with a JSON object"
    assert said("agx-no-program") == "--describe could not be started: Exec format error"
    assert said("farro-fails") == "--describe ended with exit code 3"
    assert "No module named 'no_such_module'" in str(said("gone"))
    assert said("vanisher") == "importing it ended with exit code 4"
    unusable = {name for name, tool in tools.items() if not tool["usable"]}
    assert unusable == {"gone", "lost", "leaver", "vanisher"}


def test_the_list_for_people_is_a_table_without_escapes(equipped: Program) -> None:
    told = equipped.run("tools", code=0).out
    assert "\x1b" not in told
    lines = told.splitlines()
    assert lines[0].split() == ["TOOL", "KIND", "FROM", "WHERE", "WHAT", "IT", "DOES"]
    assert any(line.startswith("gone ") and "cannot be used: " in line for line in lines)
    assert not any(line.startswith("agx-") for line in lines), "only with --path"


def test_one_tool_is_shown_in_full(equipped: Program) -> None:
    told = equipped.run("tools", "told", code=0).out
    assert told.startswith("told 2  (python, from config)\n")
    assert "    go N" in told
    assert equipped.run("tools", "ocr", "--json", code=0).json["said"]["description"] == "Reads images."
    assert "did you mean agx-good? `farro tools --path`" in equipped.run("tools", "agx-god", code=2).err


def test_tools_are_listed_where_there_is_no_root(empty: Program) -> None:
    assert [tool["name"] for tool in empty.run("tools", "--json", code=0).json["tools"]][:1] == ["unix"]


def test_output_of_a_tools_import_is_not_in_the_answer(equipped: Program) -> None:
    plan = json.dumps({"steps": [{"id": "a", "tool": "shout", "command": "x"}]})
    told = equipped.run("plan", "lint", "--json", "-", stdin=plan, code=0)
    assert told.json["plans"][0]["warnings"] == []
    assert "noise" in told.err


MISSING: dict[str, tuple[dict[str, Any], str]] = {
    "program": ({"command": "no-such-program"}, "no-such-program was not found on the PATH, or is not executable"),
    "tool": (
        {"tool": "agx-god", "command": "x"},
        "tool agx-god is neither registered nor a program on the PATH; `farro tools` lists what there is",
    ),
    "near tool": ({"tool": "shuot", "command": "x"}, "did you mean shout?"),
    "program of the config": ({"tool": "lost", "command": "x"}, "tool lost: /none/lost was not found"),
    "function": ({"tool": "gone", "command": "x"}, "tool gone is registered but cannot be used: no_such_module:f"),
    "function with a timeout": ({"tool": "gone", "command": "x", "timeout": 5}, "tool gone is registered but cannot"),
    "module that leaves": ({"tool": "leaver", "command": "x"}, "tool leaver is registered but cannot be used"),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_tool_fails_at_its_own_step_and_earlier_results_stay(equipped: Program, name: str) -> None:
    step, message = MISSING[name]
    first = {"id": "first", "command": "touch", "args": ["ran"]}
    second = {"id": "second", "needs": ["first"], "command": "echo", "args": ["two"]}
    job = equipped.enqueue({"steps": [first, second, {"id": "third", "needs": ["second"], **step}]})
    equipped.worked()
    error = equipped.job(job)["error"]
    assert error["category"] == "missing_tool"
    assert error["message"].startswith("step third: ")
    assert message in error["message"]
    assert (equipped.path / "ran").exists()
    result = json.loads((equipped.folder(job) / "attempts/0001/result.json").read_text())
    assert [(one["success"], one["exit_code"]) for one in result["step_results"]] == [
        (True, 0),
        (True, 0),
        (False, 127),
    ]
    assert "missing_tool" in equipped.call("show", job, code=0).out


@pytest.mark.parametrize("verb", [("enqueue", "--check-tools"), ("run", "--check-tools"), ("plan", "lint")])
def test_a_missing_tool_is_refused_beforehand_where_asked(equipped: Program, verb: tuple[str, ...]) -> None:
    steps = [{"id": "a", "command": "true"}, {"id": "b", "tool": "shuot", "command": "x"}]
    (equipped.path / "p.json").write_text(json.dumps({"steps": steps}))
    before = equipped.call("ls", "--json", code=0).json
    named = ("p.json",) if verb[0] == "plan" else ("--plan", "p.json")
    told = equipped.call(*verb, *named, code=2)
    assert "steps[1].tool: tool shuot is neither registered" in told.out + told.err
    assert "did you mean shout?" in told.out + told.err
    assert equipped.call("ls", "--json", code=0).json == before


def test_an_installed_entry_point_that_cannot_be_imported_is_missing_too(equipped: Program) -> None:
    info = equipped.path / "broken_package-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-package\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[farro.tools]\npacked = broken_package:f\nready = own_tools:shout\n")
    tools = {tool["name"]: tool for tool in equipped.run("tools", "--json", code=0).json["tools"]}
    assert (tools["packed"]["comes_from"], tools["packed"]["usable"]) == ("package", False)
    assert tools["ready"]["said"]["description"] == "Writes its input in capitals."
    job = equipped.enqueue({"steps": [{"id": "a", "tool": "packed", "command": "x"}]})
    equipped.worked()
    assert "tool packed is registered but cannot be used: broken_package:f" in equipped.job(job)["error"]["message"]


def test_descriptions_of_built_in_tools_are_not_cut(farro: Program) -> None:
    assert "…" not in farro.call("tools", code=0).out


@pytest.mark.parametrize("runner", ["inline", "process"])
def test_a_function_of_a_module_in_the_root_is_found(farro: Program, runner: str) -> None:
    (farro.path / "texts.py").write_text(MODULE.partition("\n\n")[2])  # without its print statements
    (farro.path / "agents-config.json").write_text('{"tools": {"shout": {"python": "texts:shout"}}}')
    step = {"tool": "shout", "command": "x", "input_from_step": "a"}
    said = {"id": "a", "command": "echo", "args": ["hi"]}
    job = farro.enqueue({"steps": [said, {"id": "b", **step}, {"id": "c", **step, "timeout": 60}]})
    farro.run("worker", "--drain", "--runner", runner, code=0)
    assert farro.call("logs", job, "--stdout", code=0).out == "hi\nHI\nHI\n"
    (shout,) = (tool for tool in farro.run("tools", "--json", code=0).json["tools"] if tool["name"] == "shout")
    assert shout["said"]["description"] == "Writes its input in capitals."
