"""The contract of the Runtime port. The fixture `bench` yields a RuntimeBench with your runtime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from farro.errors import AlreadyRunning, BadName
from farro.testing.waiting import eventually
from farro.worker.runtime import ProcessSpec, Runtime


class RuntimeBench:
    """A folder for components, and the runtime under test. Inherit from it and override `another` and `living`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runtime = self.another()

    def another(self) -> Runtime:
        """Return the runtime as another process sees it, without the memory of this one."""
        raise NotImplementedError

    def living(self) -> list[int]:
        """Return the living processes of all components."""
        raise NotImplementedError

    def component(self, script: str = "exec sleep 100000", name: str = "one", **more: Any) -> ProcessSpec:
        options: dict[str, Any] = {
            "argv": ("sh", "-c", script),
            "env": {"PATH": os.environ["PATH"], "COLOUR": "blue"},
            "cwd": str(self.folder),
            "log": str(self.folder / f"{name}.log"),
            **more,
        }
        return ProcessSpec(name=name, **options)

    def said(self, name: str = "one") -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def saying(self, word: str, name: str = "one") -> None:
        eventually(lambda: word in self.said(name), f"{name} does not say {word}: {self.said(name)}")


def alive(bench: RuntimeBench, name: str = "one") -> bool:
    seen = bench.another().look(name)
    return seen is not None and seen.alive


def test_a_log_is_appended_to(bench: RuntimeBench) -> None:
    for turn in ("first", "second"):
        bench.runtime.launch(bench.component(f"echo {turn}"))
        bench.saying(turn)
        eventually(lambda: not alive(bench), "it does not end")
    assert bench.said() == "first\nsecond\n"


def test_a_component_that_ended_is_seen_as_dead(bench: RuntimeBench) -> None:
    bench.runtime.launch(bench.component("exit 3"))

    def dead() -> bool:
        seen = bench.runtime.look("one")
        return seen is not None and not seen.alive

    eventually(dead, "it is still taken for alive")
    assert bench.runtime.look("two") is None
    bench.runtime.launch(bench.component())
    assert alive(bench)


def test_one_name_is_one_component(bench: RuntimeBench) -> None:
    first = bench.runtime.launch(bench.component())
    with pytest.raises(AlreadyRunning, match=str(first.pid)):
        bench.another().launch(bench.component("echo second"))
    assert bench.said() == ""
    assert [seen.name for seen in bench.runtime.list()] == ["one"]


def test_a_component_has_time_to_end_by_itself(bench: RuntimeBench) -> None:
    bench.runtime.launch(bench.component("trap 'echo bye; exit' TERM; echo up; while :; do sleep 0.02; done"))
    bench.saying("up")
    assert [done.how for done in bench.runtime.stop(["one"])] == ["stopped"]
    assert bench.said().endswith("bye\n")
    assert bench.runtime.look("one") is None


def test_a_component_that_ignores_signals_is_killed_with_its_process_tree(bench: RuntimeBench) -> None:
    script = "trap '' TERM; setsid sleep 100000 & echo up; while :; do sleep 0.02; done"
    bench.runtime.launch(bench.component(script))
    bench.saying("up")
    assert [done.how for done in bench.runtime.stop(["one"], 0.2)] == ["killed"]
    assert bench.living() == []


def test_leftover_processes_end_with_their_component(bench: RuntimeBench) -> None:
    bench.runtime.launch(bench.component("setsid sleep 100000 & echo up; exec sleep 100000"))
    bench.saying("up")
    assert [done.how for done in bench.runtime.stop(["one"])] == ["stopped"]
    assert bench.living() == []


def test_several_are_stopped_together_and_unknown_names_are_left_out(bench: RuntimeBench) -> None:
    bench.runtime.launch(bench.component("exit 0"))
    bench.runtime.launch(bench.component(name="two"))
    eventually(lambda: not alive(bench), "it does not end")
    done = bench.runtime.stop(["one", "two", "three", "../etc"])
    assert [(item.name, item.how) for item in done] == [("one", "was gone"), ("two", "stopped")]
    assert bench.runtime.list() == []


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "../x", "-x", "x" * 64])
def test_an_invalid_component_name_is_refused(bench: RuntimeBench, name: str) -> None:
    with pytest.raises(BadName):
        bench.runtime.launch(bench.component(name=name, log=str(bench.folder / "x.log")))
