"""Check what doctor says about the network of confined programs."""

from __future__ import annotations

import pytest

from farro.doctor.checks import Finding
from farro.sandbox import syscalls
from farro.sandbox.checks import checks
from farro.sandbox.levels import Sandbox

pytestmark = pytest.mark.linux


def network(*, served: tuple[str, ...] = (), **networks: bool | tuple[str, ...]) -> Finding:
    _, check = checks("B", required=False, networks=networks, served=served, config="config.json")
    assert check.id == "network"
    return check.look()


def test_listed_hosts_and_the_gateway_need_supervised_connections(
    level_b: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert network(one=("index.example:443",), served=("two",)).verdict == "ok"
    monkeypatch.setattr(syscalls, "supervises", lambda: False)
    found = network(one=("index.example:443",), served=("two",))
    assert (found.verdict, found.found) == ("failed", "not served: one, two")
    assert network(one=False, two=()).verdict == "ok"
    assert network(one=True).verdict == "warning"
