"""Programs are found by name, also those of installed packages."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

import pytest

from farro.agents.programs import registry
from farro.agents.programs.registry import BUILT_IN, find_program
from farro.config.reader import settings_of
from farro.documents import parse_json
from farro.errors import BadDocument, InputError
from farro.roles.provider_rules import PROGRAM_ENTRY_POINTS, PROGRAMS

ACME = object()


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def installed(**programs: str) -> None:
        points = [
            importlib.metadata.EntryPoint(name=name, value=value, group=PROGRAM_ENTRY_POINTS)
            for name, value in programs.items()
        ]
        monkeypatch.setattr(
            importlib.metadata, "entry_points", lambda group: points if group == PROGRAM_ENTRY_POINTS else []
        )

    return installed


def test_the_config_and_the_registry_know_the_same_programs() -> None:
    assert set(BUILT_IN) == set(PROGRAMS)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_program_is_found_by_its_name(name: str) -> None:
    assert find_program(name).name == name


def test_a_package_adds_a_program(install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    install(acme="agents.programs.test_registry:ACME")
    monkeypatch.setattr(registry, "_load", lambda reference: {"agents.programs.test_registry:ACME": ACME}[reference])
    assert find_program("acme") is ACME
    settings_of(parse_json(b'{"providers": {"a": {"kind": "cli", "program": "acme"}}}', source="c"), {}, print)


def test_an_unknown_program_is_refused_with_those_that_are_known(install: Callable[..., None]) -> None:
    install(acme="nowhere:ACME")
    with pytest.raises(InputError, match="does not know the program claud; did you mean claude"):
        find_program("claud")
    config: Any = b'{"providers": {"a": {"kind": "cli", "program": "claud"}}}'
    with pytest.raises(BadDocument, match="did you mean claude"):
        settings_of(parse_json(config, source="c"), {}, print)


def test_a_package_that_cannot_be_loaded_says_why(install: Callable[..., None]) -> None:
    install(acme="no_such_module:ACME")
    with pytest.raises(InputError, match="acme cannot be loaded from no_such_module:ACME: ModuleNotFoundError"):
        find_program("acme")
