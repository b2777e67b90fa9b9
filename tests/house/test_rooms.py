"""The shape of the code: every module says what it is, none is too long, none is a drawer.

Which room may import which is import-linter's business (pyproject.toml).
"""

from __future__ import annotations

import ast
import re
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


def public_classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for module in MODULES:
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(named(module))
    return found


def test_a_public_class_name_occurs_once() -> None:
    twice = {name: modules for name, modules in public_classes().items() if len(modules) > 1}
    assert not twice, "a reader who searches for a class must find one"


def test_no_docstring_points_to_where_something_else_lives() -> None:
    pointers = re.compile(r"\b(?:lives?|stands?|lies) in [a-z_]+\.[a-z_]+\b")
    found = [named(module) for module in MODULES if pointers.search(module.read_text(encoding="utf-8"))]
    assert not found, "a pointer to another module rots: name the thing, not its place"


UPPER, LOWER = ("web", "tui", "mcp", "agx"), ("agents", "air", "swarm", "agq")


def test_an_upper_slice_imports_only_the_service_of_a_lower_one() -> None:
    found = []
    for module in MODULES:
        slice_, *inside = module.relative_to(SOURCE).with_suffix("").parts
        if slice_ not in UPPER or inside[:1] == ["cli"]:  # a slice's commands belong to the shell
            continue
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            lower = [name for name in names if name.startswith(tuple(f"farro.{each}." for each in LOWER))]
            found += [f"{named(module)}: {name}" for name in lower if name.split(".")[2] != "service"]
    assert not found, "offer it in the service module of the lower slice"
