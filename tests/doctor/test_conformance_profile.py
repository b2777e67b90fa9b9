"""The profile of SPEC-1 as data: pinned values, differences, and the defaults of farro, which conform."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from farro.config.settings import CapacitySettings, Settings
from farro.doctor.policy_lock import CHECKLIST, PINNED, Difference, compare, differences, lock, parameters, text_of

DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=2),
    lambda inner: st.dictionaries(st.text("xyz", min_size=1, max_size=2), inner, max_size=3),
    max_leaves=8,
)


def test_the_defaults_are_what_the_profile_pins() -> None:
    now = parameters(Settings())
    assert list(differences(PINNED, now, more=False)) == []


def test_the_providers_try_as_often_as_the_profile_pins(tmp_path: Any) -> None:
    backoff = lock(str(tmp_path), Settings())["parameters"]["backoff"]
    assert backoff == {"base_ms": 250, "multiplier": 1.5, "max_delay_ms": 10000, "attempts_http": 4, "attempts_cli": 2}


def test_the_profile_is_that_of_the_seed() -> None:
    assert PINNED["audit"] == {"max_bytes": 50 << 20, "files": 10, "daily_cut": True, "quota_bytes": 512 << 20}
    assert PINNED["watchdog"] == {"stale_after_s": 1800, "abandon_after_s": 7200}
    assert PINNED["caps"] == {"role": 200, "total": 1000}
    assert PINNED["backpressure"] == {"pause_percent": 80, "resume_percent": 60}
    assert len(CHECKLIST) == 7


def test_a_difference_names_its_place_and_both_values() -> None:
    found = list(differences(PINNED, parameters(Settings(capacity=CapacitySettings(role_cap=7))), more=False))
    assert found == [Difference(path="caps.role", wanted=200, found=7)]
    assert str(found[0]) == "caps.role: 7, not 200"


def test_backpressure_is_what_the_config_says() -> None:
    now = parameters(Settings(capacity=CapacitySettings(pause=0.95, resume=0.29)))
    assert [str(item) for item in differences(PINNED, now, more=False)] == [
        "backpressure.pause_percent: 95, not 80",
        "backpressure.resume_percent: 29, not 60",
    ]


def test_missing_and_new_values_are_differences() -> None:
    assert [str(item) for item in differences({"a": 1}, {"b": 2})] == ["a: (absent), not 1", "b: 2, not (absent)"]
    assert [str(item) for item in differences({"a": 1}, {"a": True})] == ["a: true, not 1"]


@given(DATA, DATA)
def test_differences_are_reported_exactly_where_the_texts_differ(one: Any, other: Any) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (list(differences(one, other)) == []) is same


def test_the_lock_survives_being_written_and_read(tmp_path: Any) -> None:
    now = lock(str(tmp_path), Settings())
    assert compare(json.loads(text_of(now)), now) == []
