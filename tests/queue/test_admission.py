"""The admission rule and the users who may bypass it, for every mix of loads, caps and submissions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.adapters import make_adapter
from farro.config.settings import CapacitySettings, Settings
from farro.errors import CapacityReached, NotPermitted
from farro.queue.admission import Caps, Gate, admit, check_caps
from farro.store.port import Store, Submitted
from stage import submission

ROLES = st.sampled_from(["Architect", "CodeReviewer", "Runner"])
COUNTS = st.dictionaries(ROLES, st.integers(0, 12), max_size=3)
CAP = st.one_of(st.none(), st.integers(0, 12))
CAPS = st.builds(
    lambda role, total, roles: Caps(role=role, total=total, roles=roles), CAP, CAP, st.dictionaries(ROLES, CAP)
)


@given(loads=COUNTS, caps=CAPS, wanted=COUNTS)
def test_a_submission_is_admitted_exactly_when_it_fits_the_caps(
    loads: dict[str, int], caps: Caps, wanted: dict[str, int]
) -> None:
    refusal = check_caps(loads, caps, wanted)
    after = {role: loads.get(role, 0) + count for role, count in wanted.items() if count}
    full = {role for role, count in after.items() if (cap := caps.of(role)) is not None and count > cap}
    everything = {**loads, **after}
    capped = sum(count for role, count in everything.items() if caps.of(role) is not None)
    adds = any(caps.of(role) is not None for role in after)
    too_many = adds and caps.total is not None and capped > caps.total
    assert (refusal is not None) == (bool(full) or too_many)
    if refusal is not None:
        assert refusal.role in full or (refusal.role is None and not full)
        assert refusal.load + refusal.wanted > refusal.cap
        assert str(refusal.cap) in str(refusal)


@given(loads=COUNTS, caps=CAPS, wanted=COUNTS)
def test_a_smaller_submission_than_an_admitted_one_is_admitted(
    loads: dict[str, int], caps: Caps, wanted: dict[str, int]
) -> None:
    if check_caps(loads, caps, wanted) is None:
        for role, count in wanted.items():
            if count:
                assert check_caps(loads, caps, {**wanted, role: count - 1}) is None


def test_the_defaults_are_those_of_the_seed_and_runner_has_none() -> None:
    caps = Caps()
    assert (caps.of("Architect"), caps.total, caps.of("Runner")) == (200, 1000, None)
    assert check_caps({"Runner": 100_000}, caps, {"Runner": 100_000}) is None
    assert check_caps({"Runner": 100_000}, caps, {"Architect": 200}) is None
    assert check_caps({"Architect": 200}, caps, {"Architect": 1}) is not None
    crowd = {f"R{number}": 199 for number in range(5)}
    assert check_caps(crowd, caps, {"Architect": 5}) is None
    refused = check_caps(crowd, caps, {"Architect": 6})
    assert refused is not None
    assert refused.role is None


def test_the_config_caps_runner_where_it_says_so() -> None:
    capacity = CapacitySettings(role_cap=5, total_cap=9, roles={"Runner": 3, "Architect": None}, force=("alice",))
    gate = Gate.of(Settings(capacity=capacity), user="bob", force=False)
    assert (gate.caps.of("Runner"), gate.caps.of("Architect"), gate.caps.of("DocWriter")) == (3, None, 5)
    assert gate.may_force == ("alice",)


@pytest.mark.parametrize(
    ("wanted", "setting"),
    [
        ({"Runner": 4}, "capacity.roles.Runner"),
        ({"DocWriter": 6}, "capacity.role_cap"),
        ({"A": 5}, "capacity.total_cap"),
    ],
)
def test_a_refusal_names_the_setting_that_refused(wanted: dict[str, int], setting: str) -> None:
    caps = Caps(role=5, total=9, roles={"Runner": 3})
    refusal = check_caps({"B": 5}, caps, wanted)
    assert f"raise `{setting}` in the config" in str(refusal)


# --- with a store ---


@pytest.fixture
def store() -> Store:
    return make_adapter("memory", "").store


TWO = Caps(role=2, total=None, roles={})


def test_many_are_admitted_all_or_none(store: Store) -> None:
    admit(store, [submission()], Gate(caps=TWO))
    with pytest.raises(CapacityReached):
        admit(store, [submission(), submission()], Gate(caps=TWO))
    assert store.load(None) == 1
    assert len(admit(store, [submission()], Gate(caps=TWO))) == 1


def test_resubmitting_an_id_is_admitted_although_the_queue_is_full(store: Store) -> None:
    gate = Gate(caps=TWO)
    admit(store, [submission(job_id="a"), submission(job_id="b")], gate)
    again = admit(store, [submission(job_id="a"), submission(job_id="b")], gate)
    assert again == [Submitted(id="a", existed=True), Submitted(id="b", existed=True)]
    with pytest.raises(CapacityReached):
        admit(store, [submission(job_id="a"), submission(job_id="c")], gate)


def test_only_users_named_in_the_config_may_force(store: Store) -> None:
    with pytest.raises(NotPermitted, match=r"capacity\.force"):
        admit(store, [submission()], Gate(caps=TWO, user="bob", force=True, may_force=("alice",)))
    for may_force in (("bob",), ("*",)):
        gate = Gate(caps=TWO, user="bob", force=True, may_force=may_force)
        assert len(admit(store, [submission()] * 3, gate)) == 3
    assert store.load("Runner") == 6
