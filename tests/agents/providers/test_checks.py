"""Check that the libraries of providers over HTTP are found without importing them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from farro.agents.providers import checks
from farro.config.settings import ProviderSettings, Secret, Settings
from farro.doctor.checks import Finding


class Missing:
    """Behave as if a package were not installed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        if name.split(".")[0] == self.name:
            raise ModuleNotFoundError(name)


def libraries(kind: str) -> Finding:
    settings = Settings(providers={"it": ProviderSettings(kind=kind)})
    found = {check.id: check for check in checks.checks(settings, {}, root="/", config="/c")}
    return found["libraries"].look()


def test_installed_libraries_are_found() -> None:
    assert libraries("openai").verdict == "ok"


def test_a_program_needs_no_library() -> None:
    assert libraries("cli").found == "none needed"


def test_a_program_behind_the_gateway_needs_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    described = ProviderSettings(kind="cli", program="claude", api_key=Secret("A_KEY"))
    look = checks.checks(Settings(providers={"it": described}), {}, root="/", config="/c")[0].look
    assert look().found == "there for the model gateway"
    for name in [name for name in sys.modules if name.split(".")[0] == "aiohttp"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing("aiohttp"), *sys.meta_path])
    assert look().found == "aiohttp cannot be imported"


@pytest.mark.parametrize("package", ["pydantic_ai", "genai_prices"])
def test_a_missing_library_is_reported_with_what_installs_it(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing(package), *sys.meta_path])
    found = libraries("openai")
    assert found.verdict == "failed"
    assert package in found.found
    assert found.repair == (f"{sys.executable} -m pip install 'farro[agents]'",)
