"""The commands and the config of docs/overnight.md are taken by this version of farro."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from farro.config.reader import load
from flows.program import Program
from support import ROOT

PAGE = Path(ROOT, "docs", "overnight.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = "\n".join(text for _, text in FENCE.findall(PAGE))
SPANS = [" ".join(span.split()) for span in re.findall(r"`(farro [a-z][^`]*)`", FENCE.sub("", PAGE))]
COMMANDS = [*dict.fromkeys([*re.findall(r"^farro .*", BLOCKS, re.MULTILINE), *SPANS])]
# They have tests of their own: they start services, or end what the others need.
OTHERS = ("up", "down", "service", "kill", "pause")
NAMED = ("approve", "refuse", "explain", "session", "replay")  # the page also speaks of these without a job
PROMPT = {
    "role": "SeniorEngineer",
    "rubric": "Say please.",
    "allowed_paths": ["src/"],
    "success": "It says please.",
    "routing": {"mode": "role", "next": "CodeReviewer"},
}


@pytest.fixture
def night(farro: Program) -> Program:
    farro.run("init", code=0)
    (farro.path / "agents-config.json").unlink(missing_ok=True)
    (shown,) = [text for kind, text in FENCE.findall(PAGE) if kind == "yaml"]
    (farro.path / "agents-config.yaml").write_text(shown)
    farro.run("init", code=0)
    (farro.path / "prompt.json").write_text(json.dumps(PROMPT))
    return farro


def test_the_config_of_the_page_limits_costs_and_times(night: Program) -> None:
    settings = load(str(night.path))
    assert (settings.budgets.job_usd, settings.budgets.day_usd) == (15, 40)
    assert settings.idle_timeout_s("claude") == 900
    assert settings.providers["claude"].budget_usd == 30


def test_every_command_of_the_page_is_understood(night: Program) -> None:
    assert len(COMMANDS) > 20
    job = night.run("enqueue", "--prompt-json", "prompt.json", code=0).out.strip()
    for command in COMMANDS:
        words = shlex.split(command.replace("JOB", job))[1:]
        if words[0] in OTHERS or (len(words) == 1 and words[0] in NAMED):
            continue
        done = night.run(*words)
        assert "Usage:" not in done.err, f"{command}: {done.err}"  # no such command, option or argument
    night.run("pause", "--all", "--why", "look at this first", code=0)
    night.run("kill", job, code=0)


def test_other_commands_of_the_page_have_the_options_that_it_names(night: Program) -> None:
    for command in COMMANDS:
        words = shlex.split(command)[1:]
        if words[0] in OTHERS:
            names = [word for word in words if not word.startswith("-")][: 2 if words[0] == "service" else 1]
            shown = night.run(*[name for name in names if name.islower()], "--help", code=0).out
            assert [word for word in words if word.startswith("--") and word not in shown] == [], command
