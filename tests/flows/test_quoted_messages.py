"""The error messages that the pages quote are those that the program prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

from flows.program import Program
from support import ROOT


def quoted(page: str, path: str) -> list[str]:
    """Return the messages about that file which a page quotes, without their positions."""
    text = Path(ROOT, "docs", page).read_text(encoding="utf-8")
    return re.findall(rf"^farro: \S*{re.escape(path)}:\d+:\d+: (.*)$", text, re.MULTILINE)


def printed(errors: str) -> list[str]:
    return re.findall(r"^farro: \S+:\d+:\d+: (.*)$", errors, re.MULTILINE)


def test_the_mistakes_in_a_prompt_are_reported_as_the_page_says(farro: Program) -> None:
    (farro.path / "agents-config.json").write_text(
        json.dumps(
            {
                "version": "1.0.0",
                "providers": {"local": {"kind": "cli", "command": ["cat"]}},
                "security": {"max_job_bytes": 1 << 20, "payload_allowlist": [".md"]},
            }
        )
    )
    prompt = {
        "role": "SeniorEnginer",
        "rubric": "Greet.",
        "allowed_paths": ["../src"],
        "success": "It greets.",
        "routing": {"mode": "role"},
    }
    (farro.path / "prompt.json").write_text(json.dumps(prompt))
    expected = quoted("agents.md", "prompt.json")
    assert len(expected) == 3
    assert printed(farro.call("enqueue", "--prompt-json", "prompt.json", code=2).err) == expected


def test_the_mistakes_in_a_config_are_reported_as_the_page_says(farro: Program) -> None:
    (farro.path / "agents-config.json").unlink()
    (farro.path / "agents-config.yaml").write_text("capacity: {role_cap: many}\nprune: {keep_sucess: 7d}\n")
    expected = quoted("configuration.md", "agents-config.yaml")
    assert len(expected) == 2
    assert printed(farro.call("ls", code=1).err) == expected


def test_the_messages_about_a_redis_server_are_in_the_source() -> None:
    """They cannot all be provoked without several servers, so compare the words."""
    page = Path(ROOT, "docs", "redis.md").read_text(encoding="utf-8").split("\n## Fix problems\n")[1]
    messages = re.findall(r"^\| ([^|]+) \| ", page, re.MULTILINE)[1:]
    assert len(messages) > 5
    files = sorted(Path(ROOT, "src", "farro").rglob("*.py"))
    source = "\n".join(file.read_text(encoding="utf-8") for file in files)
    joined = re.sub(r'"\s*\n\s*f?"', "", source)  # a long message is written in pieces
    pieces = [piece.strip() for message in messages for piece in message.split("…")]
    assert [piece for piece in pieces if piece not in joined] == []
