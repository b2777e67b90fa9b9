"""Compare the public surface with the checked-in one: commands, routes, tools, names, keys, files, fields, exit codes.

`FARRO_WRITE_SURFACE=1 pytest tests/golden/test_surface.py` rewrites tests/golden/surface/. Do so only for an intended
change of the surface, and read the diff: each removed line breaks a user.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.program import Program
from golden import surface_views as views
from golden.surface_views import Played
from house.test_documents import DOCUMENTS
from support import ROOT

SURFACE = Path(__file__).resolve().parent / "surface"
WRITE = bool(os.environ.get("FARRO_WRITE_SURFACE"))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    program = Program(tmp_path_factory.mktemp("surface") / "root")
    program.path.mkdir()
    try:
        yield Played(program)
    finally:
        program.clean_up()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path)
    program.run("init", code=0)
    try:
        yield program
    finally:
        program.clean_up()


def changes(name: str, lines: list[str]) -> list[str]:
    """List every removed and every added line."""
    kept = (SURFACE / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    found = difflib.unified_diff(kept, sorted(set(lines)), "checked in", "now", lineterm="", n=0)
    return [line for line in found if not line.startswith("@@")]


def compare(name: str, lines: list[str]) -> None:
    path = SURFACE / f"{name}.txt"
    if WRITE:
        SURFACE.mkdir(exist_ok=True)
        path.write_text("\n".join(sorted(set(lines))) + "\n", encoding="utf-8")
    changed = changes(name, lines)
    assert not changed, f"{path.relative_to(ROOT)}: the public surface changed\n" + "\n".join(changed)


@pytest.mark.parametrize(
    ("name", "view"),
    [
        ("commands", views.command_lines),
        ("http", views.http_routes),
        ("python", views.python_names),
        ("config", views.config_keys),
        ("schemas", views.schema_properties),
        ("swarm-wire", views.swarm_wire),
        ("variables", views.variables),
    ],
)
def test_no_name_of_the_surface_is_lost_or_new(name: str, view: Callable[[], list[str]]) -> None:
    compare(name, view())


@pytest.mark.parametrize(("name", "view"), [("mcp-tools", views.mcp_tools), ("resp-commands", views.resp_commands)])
def test_servers_offer_the_same_interface(served: Program, name: str, view: Callable[[Program], list[str]]) -> None:
    compare(name, view(served))


@pytest.mark.parametrize(
    ("name", "view"),
    [
        ("layout", views.layout),
        ("answers", views.answers),
        ("log-lines", views.log_lines),
        ("exit-codes", views.exit_codes),
        ("step-variables", views.step_variables),
    ],
)
def test_the_layout_of_a_used_root_is_unchanged(played: Played, name: str, view: Callable[[Played], list[str]]) -> None:
    compare(name, view(played))


def test_every_import_of_the_documents_is_part_of_the_surface() -> None:
    # Contributors write modules of farro itself; adapters implement its ports, which the suites of farro.testing check.
    users = [page for page in DOCUMENTS if page.name not in ("CONTRIBUTING.md", "adapters.md")]
    pages = [*users, *(page for page in Path(ROOT, "examples").rglob("*.py") if page.name != "sqlite_store.py")]
    imports = re.compile(r"^(?:> )?from (farro\.[\w.]+) import ([\w, ]+)$", re.MULTILINE)
    for page in pages:
        for module, names in imports.findall(page.read_text(encoding="utf-8")):
            missing = set(names.split(", ")) - set(views.DOCUMENTED.get(module, ()))
            assert not missing, f"{page.relative_to(ROOT)}: {module} is not in surface_views.DOCUMENTED with {missing}"


def test_a_lost_line_and_a_new_one_are_both_reported() -> None:
    lines = [line.replace("agx.model =", "agx.modell =") for line in views.config_keys()]
    assert changes("config", lines)[2:] == ["-agx.model = `null`", "+agx.modell = `null`"]
