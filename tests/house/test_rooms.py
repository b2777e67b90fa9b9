"""Check the structure of the code: docstrings, package and class names, and imports between slices.

import-linter checks which package may import which (pyproject.toml).
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from support import ROOT

SOURCE = Path(ROOT, "src", "farro")
MATERIAL = SOURCE / "agents" / "demo" / "repository"  # the sample project with a bug that the demo repairs
MODULES = sorted(module for module in SOURCE.rglob("*.py") if MATERIAL not in module.parents)
DRAWERS = {"utils", "util", "common", "helpers", "helper", "base", "misc"}


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_there_are_modules_to_look_at() -> None:
    assert MODULES


@pytest.mark.parametrize("module", MODULES, ids=named)
def test_every_module_has_a_docstring(module: Path) -> None:
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    assert docstring, f"{named(module)}: needs a docstring whose first line says what the module does"


def test_every_package_has_an_init() -> None:
    folders = {module.parent for module in MODULES}
    assert not [named(folder) for folder in folders if not (folder / "__init__.py").is_file()]


def test_no_module_has_a_catch_all_name() -> None:
    paths = [*SOURCE.rglob("*"), *Path(ROOT, "tests").rglob("*.py")]
    drawers = [named(path) for path in paths if path.stem.removeprefix("_") in DRAWERS]
    assert not drawers, "name a module for what it contains"


def public_classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for module in MODULES:
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(named(module))
    return found


def test_a_public_class_name_occurs_once() -> None:
    twice = {name: modules for name, modules in public_classes().items() if len(modules) > 1}
    assert not twice, "a search for a class name must find one class"


def test_no_docstring_points_to_another_module() -> None:
    pointers = re.compile(r"\b(?:lives?|stands?|lies) in [a-z_]+\.[a-z_]+\b")
    found = [named(module) for module in MODULES if pointers.search(module.read_text(encoding="utf-8"))]
    assert not found, "a pointer to another module rots: name the thing, not its place"


UPPER, LOWER = ("web", "tui", "mcp", "agx"), ("agents", "air", "swarm", "agq")


def test_an_upper_slice_imports_only_the_service_of_a_lower_one() -> None:
    found = []
    for module in MODULES:
        slice_, *inside = module.relative_to(SOURCE).with_suffix("").parts
        if slice_ not in UPPER or inside[:1] == ["cli"]:  # the commands of a slice belong to the command line
            continue
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            lower = [name for name in names if name.startswith(tuple(f"farro.{each}." for each in LOWER))]
            found += [f"{named(module)}: {name}" for name in lower if name.split(".")[2] != "service"]
    assert not found, "offer it in the service module of the lower slice"
