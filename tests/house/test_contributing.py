"""Check CONTRIBUTING.md: its paths exist, and the provider and the command that it adds work."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from farro.agents.providers.registry import Place
from farro.app import App
from farro.config.settings import ProviderSettings
from farro.testing.provider import request
from flows.program import Program
from house.test_documents import FENCE, SPAN
from support import ROOT

PAGE = Path(ROOT, "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = {
    found[1]: block
    for _, block in FENCE.findall(PAGE)
    if (found := re.match(r"# ((?:src|tests)/\S+\.py)\n", block)) is not None
}
# A path has a slash and names a file or a folder; a glob, a placeholder and a command do not.
PATH = re.compile(r"[a-z_.]+(?:/[\w.-]*)+")
BUILD = ".build/"  # made by the scripts: not there in a fresh clone


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put the modules of the page beside those of farro, as if they were in its folders."""
    known = set(sys.modules)
    for name, block in BLOCKS.items():
        if name.startswith("src/"):
            file = tmp_path / name.removeprefix("src/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block, encoding="utf-8")
            package = importlib.import_module(".".join(Path(name).parts[1:-1]))
            monkeypatch.setattr(package, "__path__", [*package.__path__, str(file.parent)])
    yield tmp_path
    for name in set(sys.modules) - known:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            parent, _, child = name.rpartition(".")
            delattr(sys.modules[parent], child)
            del sys.modules[name]


def module(path: str) -> ModuleType:
    assert path in BLOCKS, f"CONTRIBUTING.md no longer adds {path}"
    return importlib.import_module(".".join(Path(path).with_suffix("").parts[1:]))


@pytest.mark.usefixtures("added")
def test_the_provider_of_the_page_answers() -> None:
    make = module("src/farro/agents/providers/echo.py").make
    provider = make("mirror", ProviderSettings(kind="echo"), Place(root="/", environ={}))
    assert provider.answer(request(1)).text == "What is the number?"


@pytest.fixture
def farro(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path / "root")
    program.path.mkdir()
    program.run("init", code=0)
    yield program
    program.clean_up()


@pytest.mark.usefixtures("added")
def test_the_command_of_the_page_counts_jobs(farro: Program) -> None:
    farro.run("enqueue", "--tag", "gpu", "--", "true", code=0)
    farro.run("enqueue", "--tag", "gpu", "--tag", "big", "--", "true", code=0)
    tags = module("src/farro/cli/tags.py").tags
    done = CliRunner().invoke(tags, ["--root", str(farro.path)], obj=App())
    assert done.exception is None
    assert done.output.split() == ["TAG", "JOBS", "gpu", "2", "big", "1"]


def test_every_path_of_the_page_exists() -> None:
    said = SPAN.findall(FENCE.sub("", PAGE))
    named = {
        path for text in said for path in PATH.findall(text) if PATH.fullmatch(text) and not text.startswith(BUILD)
    }
    assert len(named) > 30
    new = {*BLOCKS, *(name.removeprefix("src/farro/") for name in BLOCKS)}
    roots = (Path(ROOT), Path(ROOT, "src", "farro"))
    assert sorted(path for path in named - new if not any((root / path).exists() for root in roots)) == []


def test_every_package_is_in_the_tree_of_the_page() -> None:
    tree = PAGE.split("```\nsrc/farro/\n")[1].split("```")[0]
    told = set(re.findall(r"(?<!\S)([a-z]+)/(?= {2,})", tree))
    aliases = {"component", "ports", "providers"}
    there = {path.parent.name for path in Path(ROOT, "src", "farro").glob("*/__init__.py")}
    assert told == there - aliases
