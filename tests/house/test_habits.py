"""Check the test tools that every suite relies on: the runner's count, `need`, `figure`, `shm`, and no network.

They are tested because their failure is silent: a runner that miscounts shows green.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest

from support import ROOT, need, torture


@pytest.fixture(scope="module")
def suites() -> ModuleType:
    spec = importlib.util.spec_from_file_location("suites", os.path.join(ROOT, "scripts", "suites.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["suites"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


JUNIT = """<testsuites><testsuite tests="9">
  <testcase classname="t" name="passes"/>
  <testcase classname="t" name="fails"><failure message="assert 1 == 2&#10;more">trace</failure></testcase>
  <testcase classname="t" name="breaks in setup"><error message="boom">trace</error></testcase>
  <testcase classname="t" name="skips"><skipped message="NEEDED: strace"/></testcase>
  <testcase classname="t" name="twice"><failure message="first"/></testcase>
  <testcase classname="t" name="twice"><error message="and its teardown"/></testcase>
</testsuite></testsuites>"""


def test_the_runner_counts_each_test_once(suites: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(JUNIT, encoding="utf-8")
    report = suites.Report(name="t")
    suites.read_junit(str(tmp_path / "junit.xml"), report)
    assert report.passed == 1
    assert report.failures == ["t::fails: assert 1 == 2", "t::breaks in setup: boom", "t::twice: first"]
    assert report.skips == ["t::skips: NEEDED: strace"]


def test_the_runner_fails_a_suite_that_died_without_a_report(
    suites: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suites, "call", lambda *_, **__: 137)
    monkeypatch.setattr(suites, "OUT", str(tmp_path))
    report = suites.run_suite("t", [], {})
    assert report.failures == ["pytest tests/t: exit 137, see its output above"]


@pytest.mark.parametrize(
    ("ci", "code", "last"), [("", 0, "1 passed, 0 failed, 1 skipped"), ("true", 1, "1 passed, 1 failed, 0 skipped")]
)
def test_a_skip_is_a_failure_in_ci(
    suites: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ci: str,
    code: int,
    last: str,
) -> None:
    report = suites.Report(name="t", passed=1, skips=["t::x: NEEDED: strace"])
    monkeypatch.setenv("CI", ci)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["suites.py", "--suites", "jobs"])
    monkeypatch.setattr(suites, "run_all", lambda *_, **__: [report])
    assert suites.main() == code
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_figures_are_appended_as_whole_lines(
    suites: ModuleType, figure: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "figures.jsonl"
    monkeypatch.setenv("FARRO_FIGURES", str(path))
    figure("kills", 1234, "points")
    figure("agree", "yes")
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"name": "kills", "value": 1234, "unit": "points"},
        {"name": "agree", "value": "yes", "unit": ""},
    ]
    assert [entry["name"] for entry in suites.read_figures(str(path))] == ["agree", "kills"]


def test_figures_are_harmless_outside_a_run(figure: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FARRO_FIGURES", raising=False)
    figure("kills", 1)


def test_a_missing_part_skips_here_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="NEEDED: no-such-tool is not installed: to see it"):
        need("no-such-tool", "to see it")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="NEEDED: not possible here: no loop devices"):
        need(False, "no loop devices")
    assert os.path.isabs(need("sh"))


def test_connections_beyond_loopback_are_refused() -> None:
    with socket.socket() as outside, pytest.raises((RuntimeError, UserWarning), match=r"192\.0\.2\.1"):
        outside.connect(("192.0.2.1", 80))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername() == server.getsockname()


def test_the_scratch_folder_is_fresh_and_writable(shm: Path) -> None:
    assert list(shm.iterdir()) == []
    (shm / "file").write_text("x")


def test_properties_are_repeatable_in_the_short_form() -> None:
    settings = hypothesis.settings()
    assert settings.database is None
    assert settings.deadline is None
    assert settings.derandomize is (torture() == 0)


def test_make_help_lists_every_promised_target() -> None:
    done = subprocess.run([need("make"), "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {line.split()[1] for line in done.stdout.splitlines()}
    assert listed >= {"help", "demo", "test", "lint", "types", "bench", "torture", "docs", "clean"}
