"""`farro service`: systemd units that are quoted correctly, also for paths with blanks, percents and dollars."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from farro.worker.service_units import MARK, slug, units
from flows.program import Program

ODD = 'odd 100% $HOME \\t "quoted" it\'s %i'


def unquoted(text: str) -> list[str]:
    """Split a command line as systemd does: quotes and backslashes, then specifiers, then variables."""
    words = re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', text)
    plain = [re.sub(r"\\(.)", r"\1", quoted or bare) for quoted, bare in words]
    return [
        word.replace("%i", "ROLE") if word == "%i" else word.replace("%%", "%").replace("$$", "$") for word in plain
    ]


def fields(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


@pytest.mark.parametrize("name", ["plain", ODD])
def test_a_unit_starts_this_interpreter_on_this_root(name: str) -> None:
    root, python = f"/srv/{name}", f"/opt/{name}/bin/python"
    made = units(root, roles=["Runner", "Architect"], workers=3, python=python, path="/a b:/c%d")
    worker = next(text for unit, text in made.files.items() if "worker@" in unit)
    command = unquoted(fields(worker)["ExecStart"])
    expected = [python, "-P", "-m", "farro", "worker", "--role", "ROLE", "--workers", "3", "--root", root]
    if "$" not in python:  # the program's own path is not expanded, so its dollar is not doubled
        assert command == expected
    assert command[1:] == expected[1:]
    assert fields(worker)["WorkingDirectory"] == root.replace("%", "%%")
    assert fields(worker)["Environment"] == '"PATH=/a b:/c%%d"'
    assert worker.startswith(MARK)
    for wanted in ("Restart=on-failure", "KillMode=mixed", "TimeoutStopSec=15", "WantedBy=default.target"):
        assert all(wanted in text for text in made.files.values())
    assert [unit.split("-")[-1] for unit in made.started] == [
        "worker@Runner.service",
        "worker@Architect.service",
        "watchdog.service",
        "manager.service",
    ]


def test_roots_with_the_same_name_have_different_units() -> None:
    assert slug("/a/repo") != slug("/b/repo")
    assert slug("/a/repo").startswith("repo-")
    assert re.fullmatch(r"[A-Za-z0-9_-]+", slug("/a/übel %")) is not None


@pytest.fixture
def systemd(farro: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install a fake systemctl that records its calls; test machines run no user manager."""
    home = tmp_path_factory.mktemp("home")
    tool = home / "bin" / "systemctl"
    tool.parent.mkdir()
    tool.write_text(
        f'#!/bin/sh\necho "$@" >> {home}/asked\ncase $2 in is-active) echo active;; is-enabled) echo enabled;; esac\n'
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    farro.env |= {"PATH": f"{tool.parent}:{farro.env['PATH']}", "XDG_CONFIG_HOME": str(home / "config")}
    return home


def asked(home: Path) -> list[str]:
    path = home / "asked"
    told = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return [line.removeprefix("--user ").split()[0] for line in told if "show-environment" not in line]


def test_install_status_and_uninstall(farro: Program, systemd: Path) -> None:
    folder = systemd / "config" / "systemd" / "user"
    name = f"farro-{slug(str(farro.path))}"
    done = farro.run("service", "install", "--role", "Runner", "--workers", "1", code=0)
    assert "loginctl enable-linger" in done.out
    assert asked(systemd) == ["daemon-reload", "enable"]
    assert sorted(path.name for path in folder.iterdir()) == [
        f"{name}-manager.service",
        f"{name}-watchdog.service",
        f"{name}-worker@.service",
    ]
    assert "nothing changed" in farro.run("service", "install", "--workers", "1", code=0).out
    assert "try-restart" not in asked(systemd)
    farro.run("service", "install", "--role", "Architect", "--workers", "1", code=0)
    assert asked(systemd) == ["daemon-reload", "disable", "enable", "try-restart"], "other roles replace the former"
    told = farro.run("service", "status", "--json", code=0).json["services"]
    assert told[0]["unit"] == f"{name}-worker@Architect.service"
    assert {row["active"] for row in told} == {"active"}
    wants = folder / "default.target.wants"
    wants.mkdir()
    (wants / f"{name}-manager.service").symlink_to(folder / f"{name}-manager.service")
    (folder / "mine.service").write_text("[Service]\n")
    asked(systemd)
    farro.run("service", "uninstall", code=0)
    assert asked(systemd) == ["stop", "daemon-reload"]
    assert sorted(path.name for path in folder.iterdir()) == ["default.target.wants", "mine.service"]
    assert list(wants.iterdir()) == []
    assert "no services" in farro.run("service", "uninstall", code=0).out
    assert "farro service install" in farro.run("service", "status", code=0).out


def test_print_writes_and_starts_nothing(farro: Program, systemd: Path) -> None:
    done = farro.run("service", "install", "--print", code=0)
    assert "ExecStart=" in done.out
    assert not (systemd / "config").exists()
    assert asked(systemd) == []


def test_service_without_systemd_prints_the_commands(farro: Program, systemd: Path) -> None:
    (systemd / "bin" / "systemctl").write_text("#!/bin/sh\necho no bus >&2\nexit 1\n")
    done = farro.run("service", "install", code=0)
    assert "the user manager does not answer (no bus). Type:" in done.out
    assert "  systemctl --user enable --now farro-" in done.out
    assert farro.run("service", "status", code=0).out.count("unknown") >= 3


def test_unit_that_farro_did_not_write_is_kept(farro: Program, systemd: Path) -> None:
    folder = systemd / "config" / "systemd" / "user"
    folder.mkdir(parents=True)
    path = folder / f"farro-{slug(str(farro.path))}-manager.service"
    path.write_text("[Service]\nExecStart=/bin/true\n")
    assert "farro did not make it" in farro.run("service", "install", code=2).err
    farro.run("service", "uninstall", code=0)
    assert path.read_text() == "[Service]\nExecStart=/bin/true\n"
    assert len(list(folder.iterdir())) == 1


def test_unknown_role_is_refused(farro: Program, systemd: Path) -> None:
    assert "no role Nobody here" in farro.run("service", "install", "--role", "Nobody", code=2).err


def test_systemd_itself_finds_nothing_wrong(tmp_path: Path) -> None:
    """Needs systemd-analyze; the tests above check the units without it."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        return
    root = tmp_path / ODD.replace('"', "").replace("\\", "")
    root.mkdir()
    made = units(str(root), roles=["Runner"], workers=1, python=sys.executable, path=os.defpath)
    folder = tmp_path / "units"
    folder.mkdir()
    for name, text in made.files.items():
        (folder / name).write_text(text)
    paths = [str(folder / name) for name in made.started]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "SYSTEMD_LOG_LEVEL": "warning"}
    done = subprocess.run(
        [tool, "verify", "--user", "--man=no", *paths], env=env, capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if "farro-" in line]
    assert complaints == []
