"""Find the tests that the documents name.

A document names a test by its function, so that moving a file breaks no document.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from support import ROOT

NAME = re.compile(r"`(test_[a-z0-9_]+)`")
SUITES = Path(ROOT, "src/farro/testing")
_NEVER_RUN = re.compile(r"mark\.(?:skip|skipif|xfail|torture)\b")


@dataclass(frozen=True, kw_only=True)
class Found:
    """A test function."""

    name: str
    docstring: str
    runs: bool  # False: it is skipped, expected to fail, or part of the long form only


@functools.cache
def functions() -> tuple[Found, ...]:
    """Return every test function under tests/ and in the contract suites."""
    return tuple(
        Found(
            name=node.name,
            docstring=ast.get_docstring(node) or "",
            runs=not any(_NEVER_RUN.search(ast.unparse(decorator)) for decorator in node.decorator_list),
        )
        for path in (
            *sorted(Path(ROOT, "tests").rglob("test_*.py")),
            *sorted(Path(ROOT, "src/farro/testing").glob("*.py")),
        )
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def problems(names: Iterable[str]) -> list[str]:
    """Return one line for each named test that does not exist or does not run."""
    wrong = []
    for name in names:
        found = [function for function in functions() if function.name == name]
        if not found:
            wrong.append(f"there is no test {name}")
        elif not all(function.runs for function in found):
            wrong.append(f"{name} is skipped, expected to fail, or part of `make torture` only")
    return wrong
