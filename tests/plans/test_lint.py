"""Lint a valid plan: report its size and its suspicious parts."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.plans.graph import measure, together
from farro.plans.lint import suspicions
from farro.plans.loading import load_data
from farro.plans.model import Plan


def plan(*steps: dict[str, Any], **more: Any) -> Plan:
    return load_data({"steps": [{"id": f"s{i}", "command": "x", **step} for i, step in enumerate(steps)], **more}, "p")


def told(loaded: Plan) -> list[str]:
    return [message for _, message in suspicions(loaded)]


@pytest.mark.parametrize("word", ["|", "&&", "||", ";", "&", ">", ">>", "2>", "<", "2>/dev/null", ">out.txt", "2>&1"])
def test_an_operator_of_the_shell_as_an_argument_is_suspicious(word: str) -> None:
    (found,) = suspicions(plan({"command": "make", "args": ["all", word]}))
    assert found[0] == ("steps", 0, "args", 1)
    assert "is handed over as text, for there is no shell" in found[1]


@pytest.mark.parametrize(
    ("script", "instead"),
    [
        ("make; echo done > /dev/stderr", ">&1 or >&2"),
        ("make; echo done 1>/dev/fd/2", ">&1 or >&2"),
        ("make | tee /dev/stderr | wc", "tee -a"),
    ],
)
def test_a_script_that_reopens_its_own_output_is_suspicious(script: str, instead: str) -> None:
    (found,) = suspicions(plan({"command": "/bin/bash", "args": ["-c", script]}))
    assert found[0] == ("steps", 0, "args", 1)
    assert found[1].endswith(f"what the step has said before: its output is a file; write {instead}")


@pytest.mark.parametrize(
    "script", ["make >&2", "make >> /dev/stderr", "make | tee -a /dev/stderr", "make 2>/dev/null", "x > /dev/stdoutx"]
)
def test_a_script_that_does_not_truncate_its_output_is_not_suspicious(script: str) -> None:
    assert not told(plan({"command": "sh", "args": ["-c", script]}))


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("cat", "$HOME"),
        ("cat", "${HOME}/x"),
        ("cat", "$(date)"),
        ("cat", "~/x"),
        ("rm", "*.txt"),
        ("/bin/ls", "build/*"),
    ],
)
def test_an_argument_that_only_a_shell_expands_is_suspicious(command: str, word: str) -> None:
    assert len(told(plan({"command": command, "args": [word]}))) == 1


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("sh", ["-c", "a | b > c && d"]),
        ("find", [".", "-name", "*.py", "-exec", "wc", ";"]),
        ("expr", ["1", ">", "2"]),
        ("awk", ["{print $1}"]),
        ("grep", ["*", "x"]),
        ("pip", ["install", "x>=1.2", ">=1.2"]),
        ("make", ["$(TARGET)"]),
        ("cat", ["a|b", "<html>", "a&b", "x > y"]),
    ],
)
def test_an_argument_that_its_program_interprets_is_not_suspicious(command: str, args: list[str]) -> None:
    assert told(plan({"command": command, "args": args})) == []


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("sh", ["-c", "echo {{input.name}}"]),
        ("/bin/bash", ["-ec", "rm -r '{{ input }}'"]),
        ("bash", ["-e", "-c", "ls {{input.a.b}}", "x"]),
        ("python3", ["-c", "print('{{input.name}}')"]),
        ("perl", ["-e", "{{input.code}}"]),
    ],
)
def test_an_input_that_is_written_into_a_script_is_suspicious(command: str, args: list[str]) -> None:
    ((path, message),) = suspicions(plan({"command": command, "args": args}))
    assert "input" in args[path[3]]  # type: ignore[index]
    assert "may be commands" in message


def test_an_input_passed_as_a_script_argument_is_not_suspicious() -> None:
    assert told(plan({"command": "sh", "args": ["-c", 'echo "$1"', "sh", "{{input.name}}"]})) == []
    assert told(plan({"command": "echo", "args": ["-e", "{{input.name}}"]})) == []


def test_words_of_the_shell_are_no_commands() -> None:
    assert "say `cwd` in the steps that shall run there" in told(plan({"command": "cd", "args": ["/tmp"]}))[0]
    assert "say `env` in the steps that need it" in told(plan({"command": "export", "args": ["A=1"]}))[0]
    assert told(plan({"command": "cd", "tool": "own"})) == []


def test_a_step_that_may_take_longer_than_its_plan_is_suspicious() -> None:
    assert told(plan({"timeout": 60}, timeout=30)) == ["60 s is more than the whole plan may take (30 s)"]
    assert told(plan({"timeout": 30}, {}, timeout=30)) == []


def test_parallel_is_of_no_use_to_a_chain() -> None:
    chain: list[dict[str, Any]] = [{}, {"needs": ["s0"]}, {"input_from_step": "s1"}]
    assert told(plan(*chain, parallel=4)) == ["4 is of no use: every step waits for the one before it"]
    assert told(plan({}, parallel=4)) == ["4 is of no use: there is but one step"]
    assert told(plan({}, {}, parallel=4)) == []
    assert told(plan(*chain)) == []


def test_a_plan_is_measured() -> None:
    found = measure(plan({}, {"needs": ["s0"]}, {"needs": ["s0"], "tool": "agx"}, {"needs": ["s1", "s2"]}), 10)
    assert (found.steps, found.longest_chain, found.together, found.timeout_s) == (4, 3, 2, 40)
    assert found.tools == ("unix", "agx")


@given(st.lists(st.sets(st.integers(0, 7), max_size=3), min_size=1, max_size=8))
def test_the_widest_set_and_the_longest_chain_match_an_exhaustive_search(needs: list[set[int]]) -> None:
    made = plan(*({"needs": [f"s{need}" for need in wanted if need < index]} for index, wanted in enumerate(needs)))
    before: dict[str, set[str]] = {}
    for step in made.steps:
        before[step.id] = set(step.depends_on).union(*(before[need] for need in step.depends_on))
    sets = [one for size in range(len(before) + 1) for one in combinations(before, size)]
    free = [one for one in sets if not any(a in before[b] or b in before[a] for a, b in combinations(one, 2))]
    chains = [one for one in sets if all(a in before[b] or b in before[a] for a, b in combinations(one, 2))]
    assert together(made) == max(map(len, free))
    assert measure(made, 10).longest_chain == max(map(len, chains))
