"""The shape of the code: every module says what it is, none is too long, none is a drawer.

Which room may import which is import-linter's business (pyproject.toml).
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support import ROOT

SOURCE = Path(ROOT, "src", "farro")
MATERIAL = SOURCE / "agents" / "demo" / "repository"  # a shop with a bug, which the demo puts on its stage
MODULES = sorted(module for module in SOURCE.rglob("*.py") if MATERIAL not in module.parents)
DRAWERS = {"utils", "util", "common", "helpers", "helper", "base", "misc"}


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_there_are_modules_to_look_at() -> None:
    assert MODULES


@pytest.mark.parametrize("module", MODULES, ids=named)
def test_every_module_says_what_lives_in_it(module: Path) -> None:
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    assert docstring, f"{named(module)}: first line of its docstring: what lives here; second: what does not"


def test_every_room_is_a_package_with_an_init() -> None:
    folders = {module.parent for module in MODULES}
    assert not [named(folder) for folder in folders if not (folder / "__init__.py").is_file()]


def test_nothing_is_named_like_a_drawer() -> None:
    paths = [*SOURCE.rglob("*"), *Path(ROOT, "tests").rglob("*.py")]
    drawers = [named(path) for path in paths if path.stem.removeprefix("_") in DRAWERS]
    assert not drawers, "name a module for what lives in it"
