"""`farro demo`, SPEC-1's functional acceptance: a task through all roles, with real daemons, nothing left behind."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flows.program import FARRO, PATIENCE_S, Program
from support import eventually, need, torture

ROLES = ("Architect", "SeniorEngineer", "CodeReviewer", "DocWriter")
WAY = [
    *("Manager", "Architect", "Manager", "SeniorEngineer", "Manager", "CodeReviewer", "Manager"),
    *("SeniorEngineer", "Manager", "CodeReviewer", "Manager", "DocWriter", "Manager"),
]


def started(empty: Program, *args: str, **streams: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [FARRO, "demo", *args],
        cwd=empty.path,
        env={**empty.env, "TMPDIR": str(empty.path / "tmp")},
        stdin=subprocess.DEVNULL,
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
    )


def run(empty: Program, *args: str) -> str:
    (empty.path / "tmp").mkdir(exist_ok=True)
    process = started(empty, *args)
    out, err = process.communicate(timeout=3 * PATIENCE_S)
    assert process.returncode == 0, out + err
    assert err == ""
    return out


def nothing_is_left(empty: Program) -> None:
    eventually(lambda: not empty.living(), "a process of the demo lives on")
    assert list((empty.path / "tmp").iterdir()) == []


def unittests(root: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": "src", "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, "-m", "unittest", "discover", "-s", "tests"]
    return subprocess.run(argv, cwd=root, env=env, capture_output=True, text=True, check=False)


def decided(told: Sequence[dict[str, Any]]) -> list[tuple[str, int, str]]:
    return [(hop["role"], hop["attempt"], hop["reason"]) for hop in told]


def test_demo_task_passes_all_roles_without_intervention(empty: Program) -> None:
    told = json.loads(run(empty, "--json", "--root", str(empty.path / "kept")))
    root = empty.path / "kept"
    assert told["status"] == "succeeded"
    assert not told["tests_before"]["passed"]
    assert told["tests_after"]["passed"]
    done = unittests(root)
    assert done.returncode == 0, done.stderr
    assert "Ran 3 tests" in done.stderr

    assert [hop["role"] for hop in told["hops"]] == WAY
    assert len(set(decided(told["hops"]))) == len(WAY)  # every hop once
    notes = [hop["note"] or "" for hop in told["hops"]]
    assert sum("asks for changes" in text for text in notes) == 1
    job = root / "agents" / "Manager" / "completed" / "succeeded" / "discount"
    worked = [hop for hop in told["hops"] if hop["role"] != "Manager"]
    for hop in worked:
        result = json.loads((job / "attempts" / f"{hop['attempt']:04d}" / "result.json").read_text())
        assert result["agent"]["role"] == hop["role"]
    said = {role: [event["text"] for event in told["events"] if event["role"] == role] for role in ROLES}
    assert "test_a_discount_is_a_percentage" in " ".join(said["Architect"])
    assert any(text.startswith("changes requested; src/shop.py:") for text in said["CodeReviewer"])
    assert any(text.startswith("approve") for text in said["CodeReviewer"])

    assert set(told["usd"]) == set(ROLES)
    costs = empty.call("costs", "discount", "--root", str(root), "--json", code=0).json
    assert costs["total"]["calls"] == 6
    assert "A discount is a percentage" in (root / "CHANGELOG.md").read_text()
    changed = {line[6:] for line in told["diff"].splitlines() if line.startswith("+++ b/")}
    assert changed == {"CHANGELOG.md", "src/shop.py", "tests/test_shop.py"}
    history = empty.call("history", "discount", "--root", str(root), "--json", code=0).json
    assert len(history["hops"]) == len(WAY)
    replayed = empty.call("replay", "discount", "--root", str(root), code=0).out.splitlines()
    assert len(replayed) == 6
    assert all("the same result" in line for line in replayed)
    nothing_is_left(empty)


BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"pydantic_ai", "httpx", "httpx2", "openai", "genai_prices", "google", "redis"}:
            raise ModuleNotFoundError(f"{name} is not part of the base install")

sys.meta_path.insert(0, Blocked())
"""


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, subprocess.CompletedProcess[str]]]:
    """Run the demo without the optional packages and without a network."""
    farro = Program(tmp_path_factory.mktemp("offline"))
    (farro.path / "tmp").mkdir()
    (farro.path / "site").mkdir()
    (farro.path / "site" / "sitecustomize.py").write_text(BLOCKED)
    unshare = [need("unshare"), "--net"] if os.geteuid() == 0 else [need("unshare"), "--map-root-user", "--net"]
    done = subprocess.run(
        [*unshare, FARRO, "demo"],
        cwd=farro.path,
        env={**farro.env, "TMPDIR": str(farro.path / "tmp"), "PYTHONPATH": str(farro.path / "site")},
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * PATIENCE_S,
    )
    yield farro, done
    farro.clean_up()


def test_demo_needs_no_network_and_no_extra(offline: tuple[Program, subprocess.CompletedProcess[str]]) -> None:
    farro, done = offline
    assert (done.returncode, done.stderr) == (0, "")
    nothing_is_left(farro)


def test_demo_prints_its_progress_then_history_diff_cost_and_files(
    offline: tuple[Program, subprocess.CompletedProcess[str]],
) -> None:
    out = offline[1].stdout
    for part in ("The way of the task", "What was changed", "What it cost", "Where it is", "The repository's tests"):
        assert part in out
    order = [out.index(f" {role} ") for role in ("Architect", "SeniorEngineer", "CodeReviewer", "DocWriter")]
    assert order == sorted(order)
    assert "+    if not 0 <= discount <= 100:" in out
    assert "\x1b" not in out
    assert "Succeeded, in " in out


def test_at_a_terminal_the_roles_are_drawn_live(empty: Program) -> None:
    (empty.path / "tmp").mkdir()
    parent, child = pty.openpty()
    process = started(empty, stdout=child, stderr=child)
    os.close(child)
    seen = b""
    try:
        while data := os.read(parent, 65536):
            seen += data
    except OSError:  # the other end is closed: the demo has ended
        pass
    finally:
        os.close(parent)
    assert process.wait(PATIENCE_S) == 0, seen.decode()
    assert b"\x1b[" in seen
    assert b"TURNS" in seen
    assert b"CodeReviewer" in seen
    nothing_is_left(empty)


def in_hand(root: Path, role: str) -> bool:
    return any((root / "agents" / role / "in-progress").glob("*/discount/attempts/*"))


VICTIMS = (
    "farro-worker-seniorengineer",
    "farro-manager",
    "farro-watchdog",
    "farro-supervisor",
    *(["farro-worker-codereviewer"] if torture() else []),
)


@pytest.mark.parametrize("victim", VICTIMS)
def test_demo_recovers_from_a_killed_worker(empty: Program, victim: str) -> None:
    (empty.path / "tmp").mkdir()
    root = empty.path / "kept"
    process = started(empty, "--json", "--root", str(root))
    role = "CodeReviewer" if "reviewer" in victim else "SeniorEngineer"
    eventually(lambda: in_hand(root, role), f"{role} has never started")
    record = json.loads((root / "jobs" / ".components" / f"{victim}.json").read_text())
    os.kill(record["pid"], signal.SIGKILL)
    out, err = process.communicate(timeout=3 * PATIENCE_S)
    assert process.returncode == 0, out + err
    told = json.loads(out)
    assert told["status"] == "succeeded"
    assert unittests(root).returncode == 0
    routed = [hop["role"] for hop in told["hops"] if hop["reason"] in ("routed", "committed")]
    assert routed == WAY  # no hop is accepted twice, despite the kill
    assert len(set(decided(told["hops"]))) == len(told["hops"])
    nothing_is_left(empty)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_nothing_behind(empty: Program, number: signal.Signals) -> None:
    (empty.path / "tmp").mkdir()
    process = started(empty)
    assert process.stdout is not None
    while "Architect " not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "Traceback" not in err
    nothing_is_left(empty)


def test_keep_leaves_the_demo_root_and_prints_commands_for_it(empty: Program) -> None:
    out = run(empty, "--keep")
    (root,) = (empty.path / "tmp").iterdir()
    assert f"cd {root}" in out
    assert (root / ".git").is_dir()
    assert empty.call("status", "--root", str(root), code=0).out
    eventually(lambda: not empty.living(), "a process of the demo lives on")
    again = out.split("And again:\n")[1]
    env = {**empty.env, "PATH": f"{Path(FARRO).parent}:{empty.env['PATH']}"}
    told = subprocess.run(
        ["sh", "-ec", again], cwd=root, env=env, capture_output=True, text=True, check=False, timeout=3 * PATIENCE_S
    )
    assert told.returncode == 0, told.stderr
    assert re.search(r"job-\S+  succeeded after", told.stdout)  # without Ctrl-C
    eventually(lambda: not empty.living(), "farro stop left something")


def test_demo_refuses_a_folder_that_is_not_empty(empty: Program) -> None:
    (empty.path / "mine.txt").write_text("mine")
    assert "not an empty folder" in empty.run("demo", "--root", ".", code=2).err
    assert [file.name for file in empty.path.iterdir()] == ["mine.txt"]


def test_demo_without_git_names_the_missing_program(empty: Program) -> None:
    (empty.path / "bin").mkdir()
    told = empty.run("demo", env={"PATH": str(empty.path / "bin")}, code=2)
    assert "git was not found; install it" in told.err


# --- plans ---------------------------------------------------------------------------------------------------------


def test_plan_demo_shows_a_success_a_failure_and_a_recovery_and_leaves_nothing(empty: Program) -> None:
    out = run(empty, "--plans")
    assert "200000\n199999\n199998" in out
    assert "halts-at-the-second (attempt 1): in_progress → failed" in out
    assert "stale            survivor" in out
    assert "I was killed, and here I am" in out
    assert "attempt 2  committed → agents/Runner/completed/succeeded" in out
    blocks = out.split("\n$ ")  # every listing follows a command that works in that folder
    for command, said in (([*one.split("\n", 1), ""])[:2] for one in blocks[1:]):
        assert "/tmp" not in command
        assert "…" not in command
        assert "agents/Runner/" not in said or command.startswith(("find ", "farro show ")), command
    assert re.search(r"^\$ kill -9 \d+$", out, re.MULTILINE)
    nothing_is_left(empty)
    told = json.loads(run(empty, "--plans", "--json"))
    assert told["exit_code"] == 0
    assert "I was killed, and here I am" in told["said"]
