"""Forks of a template: what they are, and when there are none."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farro.host import process_table, process_tree
from farro.host.process_template import ROOM, Fork, ProcessTemplate
from farro.host.processes import Process

CODE = """
import json, os, sys
sys.path[:] = {path!r}
from farro.host import process_template

def run():
    told = {{
        "arguments": sys.argv[1:],
        "environ": dict(os.environ),
        "cwd": os.getcwd(),
        "open": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{{fd}}")),
        "leads": os.getsid(0) == os.getpid(),
    }}
    print(json.dumps(told), flush=True)
    sys.stdin.read()
    return 7

process_template.serve(run)
"""


@pytest.fixture
def template() -> Iterator[ProcessTemplate]:
    before, _ = process_tree._adopting, process_tree.adopt_orphans()
    yield ProcessTemplate(CODE.format(path=sys.path), word="word", env={"PATH": os.environ["PATH"], "OWN": "template"})
    ctypes.CDLL(None).prctl(process_tree._PR_SET_CHILD_SUBREAPER, int(before), 0, 0, 0)
    process_tree._adopting = before


class Forked:
    """A fork, and what it says of itself; it lives until `end`."""

    def __init__(self, template: ProcessTemplate, env: dict[str, str], cwd: str = "/") -> None:
        stdin, self._stdin = os.pipe()
        said, stdout = os.pipe()
        with process_tree.starting():
            pid = template.fork(Fork(name="its-name", env=env, cwd=cwd, fds={0: stdin, 1: stdout, 2: 2, 9: 2}))
            self.process = None if pid is None else Process(pid, time.monotonic())
        os.close(stdin)
        os.close(stdout)
        with os.fdopen(said) as file:
            self.said: dict[str, Any] = json.loads(file.readline() or "{}")

    def end(self) -> int:
        os.close(self._stdin)
        assert self.process is not None
        ended = self.process.wait(60)
        assert ended is not None
        return ended.code


def test_a_fork_is_found_by_its_own_environment(template: ProcessTemplate, tmp_path: Path) -> None:
    one = Forked(template, {"FARRO_CLAIM": f"one@{tmp_path}", "FARRO_AGENT": "a.0.1"})
    other = Forked(template, {"FARRO_CLAIM": f"other@{tmp_path}"})
    assert one.process is not None
    assert other.process is not None
    for forked, mark in ((one, "one"), (other, "other")):
        carriers = [
            entry.pid
            for entry in process_table.entries()
            if entry.alive and process_table.carries(entry.pid, f"FARRO_CLAIM={mark}@{tmp_path}")
        ]
        assert carriers == [forked.process.pid]
    assert process_table.carries(one.process.pid, "FARRO_AGENT=a.0.1")
    assert process_tree.end_marked(f"one@{tmp_path}") == ()
    one.process.wait(60)
    assert other.end() == 7


def test_a_fork_has_only_what_it_was_given(template: ProcessTemplate, tmp_path: Path) -> None:
    forked = Forked(template, {"A": "b"}, cwd=str(tmp_path))
    assert forked.said["arguments"] == ["word", "its-name"]
    assert {"A": "b", "OWN": "template"}.items() <= forked.said["environ"].items()
    assert ROOM not in forked.said["environ"]
    assert forked.said["cwd"] == str(tmp_path)
    assert forked.said["open"] == [0, 1, 2, 9]
    assert forked.said["leads"]
    assert forked.process is not None
    shown = Path(f"/proc/{forked.process.pid}/cmdline").read_bytes()
    assert shown.rstrip(b"\0").endswith(b"\0word\0its-name")
    assert forked.end() == 7


def test_a_fork_needs_a_process_that_adopts_orphans(template: ProcessTemplate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "_adopting", False)
    assert Forked(template, {}).process is None


def test_variables_that_find_no_room_are_refused(template: ProcessTemplate) -> None:
    assert Forked(template, {"A": "b" * 5000}).process is None
    assert Forked(template, {"A": "b"}).end() == 7


def test_a_template_that_cannot_start_is_not_tried_again(template: ProcessTemplate) -> None:
    broken = ProcessTemplate("raise SystemExit(1)", word="word", env=os.environ)
    assert Forked(broken, {}).process is None
    assert not broken._usable
