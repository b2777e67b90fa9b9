"""Check what a process with a closed list can read, and what belongs to a program's installation."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from farro.host.processes import Launch
from farro.sandbox.confinement import Confinement
from farro.sandbox.levels import Sandbox
from farro.sandbox.reading import closed_list, hops, installation
from sandbox.test_sandbox import Box

pytestmark = pytest.mark.linux


@pytest.fixture
def box(tmp_path: Path, sandbox: Sandbox) -> Iterator[Box]:
    """Return a box whose processes read its folder only."""
    folder = tmp_path / "box"
    folder.mkdir()
    made = Box(folder, sandbox)
    made.confinement = replace(made.confinement, readable=(), reads=(str(folder),))
    yield made
    assert made.living() == []


def executable(path: Path, text: str = "#!/bin/sh\necho ran\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_closed_list_holds_the_workspace_and_the_system_and_nothing_else(box: Box, tmp_path: Path) -> None:
    (box.folder / "file").write_text("mine\n")
    (tmp_path / "other").write_text("not yours\n")
    assert box.run("sh", "-c", "cat file; ls; date > in/date; head -c 1 /etc/passwd > /dev/null").code == 0
    assert box.out.split() == ["mine", "1.err", "1.out", "file", "in"]
    assert box.run("cat", str(tmp_path / "other")).code != 0
    assert box.out == ""


def test_what_is_named_is_readable_and_its_neighbours_are_not(box: Box, tmp_path: Path) -> None:
    for name in ("given", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(f"{name}\n")
    (tmp_path / "way").symlink_to("given")
    box.confinement = replace(box.confinement, reads=(str(box.folder), str(tmp_path / "way")))
    box.run("sh", "-c", f"cat {tmp_path}/way/file {tmp_path}/given/file {tmp_path}/kept/file")
    assert box.out == "given\ngiven\n"


def test_a_hidden_folder_may_hold_something_readable_and_something_writable(box: Box) -> None:
    """For example a job's payload and its private folder, among farro's own."""
    for name in ("payload", "work", "other"):
        (box.folder / "jobs" / name).mkdir(parents=True)
        (box.folder / "jobs" / name / "file").write_text(f"{name}\n")
    jobs = box.folder / "jobs"
    box.confinement = replace(
        box.confinement,
        hidden=(str(jobs),),
        reads=(str(box.folder), str(jobs / "payload")),
        writable=(str(box.inside), str(jobs / "work")),
    )
    box.run("sh", "-c", "cat jobs/*/file jobs/payload/file; echo new > jobs/work/file; echo x > jobs/new")
    assert set(box.out.split()) == {"payload", "work"}
    assert (jobs / "work/file").read_text() == "new\n"
    assert not (jobs / "new").exists()


def test_a_program_outside_the_system_starts_with_its_interpreter(box: Box, tmp_path: Path) -> None:
    runner = executable(tmp_path / "tools/bin/runner", "#!/bin/sh\n. $(dirname $0)/../lib/part; echo $1 >&2\n")
    (tmp_path / "tools/lib").mkdir()
    (tmp_path / "tools/lib/part").write_text("echo ran\n")
    program = executable(tmp_path / "home/program", f"#!{runner} -x\n")
    (tmp_path / "home/key").write_text("secret\n")
    box.confinement = replace(box.confinement, reads=(str(box.folder), str(tmp_path / "tools/bin/runner")))
    assert box.run("env", str(program)).code != 0
    assert box.run("sh", "-c", f"cat {tmp_path}/home/key").code != 0
    assert box.run(str(program)).code == 0
    assert (box.out, box.err) == ("ran\n", "-x\n")


def test_this_python_starts_with_its_libraries(box: Box) -> None:
    assert box.run(sys.executable, "-c", "import json, ssl; print('started')").code == 0
    assert box.out == "started\n"


def test_a_link_is_followed_unless_the_process_may_write_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/link").symlink_to("../target")
    (tmp_path / "way").symlink_to("in/link")
    real = os.path.realpath(tmp_path)
    assert list(hops(f"{real}/way")) == [f"{real}/way", f"{real}/in/link", f"{real}/target"]
    assert list(hops(f"{real}/way", (f"{real}/in",))) == [f"{real}/way"]
    (tmp_path / "round").symlink_to("round")
    assert set(hops(f"{real}/round")) == {f"{real}/round"}


def test_a_program_that_a_step_left_opens_nothing(tmp_path: Path) -> None:
    """Neither by a link nor by a `#!` line, if it lies where the process may write."""
    key = executable(tmp_path / "home/bin/key")
    planted = executable(tmp_path / "in/planted", f"#!{key}\n")
    (tmp_path / "in/link").symlink_to(key)
    for file in (planted, tmp_path / "in/link"):
        launch = Launch(
            argv=["x"], executable=str(file), stdin=None, stdout="", stderr="", cwd="/", env={"PATH": "/usr/bin"}
        )
        listed = closed_list(launch, Confinement(writable=(str(tmp_path / "in"),), reads=()))
        assert [path for path in listed if path.startswith(str(tmp_path))] == []


def test_a_link_to_the_whole_disk_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / "all").symlink_to("/")
    launch = Launch(argv=["sh"], executable="/bin/sh", stdin=None, stdout="", stderr="", cwd="/", env={})
    assert "/" not in closed_list(launch, Confinement(reads=(str(tmp_path / "all"),)))


def test_an_installation_is_a_venv_a_node_package_or_a_version_manager(tmp_path: Path) -> None:
    real = Path(os.path.realpath(tmp_path))
    venv = executable(real / ".venv/bin/tool", "#!/bin/sh\n")
    (real / ".venv/pyvenv.cfg").write_text("")
    node = executable(real / ".npm/lib/node_modules/@some/agent/cli.js", "#!/usr/bin/env -S sh -x\n")
    (real / ".local/bin").mkdir(parents=True)
    (real / ".local/bin/agent").symlink_to(node)
    shim = executable(real / ".pyenv/shims/python3")
    assert str(real / ".venv") in installation(str(venv), None)
    found = set(installation(str(real / ".local/bin/agent"), "/bin:/usr/bin"))
    assert {str(real / ".npm/lib/node_modules"), str(real / ".npm/lib/package.json"), "/bin/sh"} <= found
    assert not {str(real), str(real / ".local"), str(real / ".npm")} & found
    assert str(real / ".pyenv") in installation(str(shim), None)
