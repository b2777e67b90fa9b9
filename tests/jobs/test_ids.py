"""Ids: minted ids sort and are hard to guess, derived ids are stable, and hostile names are refused."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.errors import BadName
from farro.jobs import ids
from farro.jobs.ids import IdMint

MINTED = re.compile(r"job-[0-9]{8}-[0-9]{6}-[0-9]{3}[0-9a-f]{4}[0-9a-f]{16}")
DESIGN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # DESIGN §3.4, written out again
NOON = datetime(2026, 11, 15, 12, 0, 0, 250_000, tzinfo=UTC)

HOSTILE = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/etc/passwd",
    "a\\b",
    "a\0b",
    "\0",
    "a\n",
    "a\n/b",
    "-rf",
    "_x",
    ".lock",
    "x.lock",
    ".tmp-1234",
    ".lease",
    "a b",
    "a:b",
    "a%2fb",
    "job\u200b",
    "jöb",
    "ｊｏｂ",
    "а",  # a Cyrillic letter
    "١",  # a digit, but not ASCII
    "job\ud800",
    "\x1b[31mred",
    "x" * 65,
    "con",
    "CON",
    "Nul",
    "aux",
    "PRN",
    "com1",
    "LPT9",
]

CHECKS = [ids.check_job_id, ids.check_role, ids.check_agent_name]

moments = st.datetimes(timezones=st.just(UTC)).filter(lambda at: 1970 < at.year < 2200)


def mint_at(times: list[datetime], seed: int = 0) -> list[str]:
    walk = iter(times)
    mint = IdMint(lambda: next(walk), random.Random(seed).getrandbits)
    return [mint.mint() for _ in times]


@given(st.lists(moments, min_size=1, max_size=50), st.integers(0, 1000))
def test_minted_ids_sort_in_the_order_of_minting_with_any_clock(times: list[datetime], seed: int) -> None:
    minted = mint_at(times, seed)
    assert minted == sorted(minted)
    assert len(set(minted)) == len(minted)


@given(st.lists(moments, min_size=1, max_size=20))
def test_minted_ids_have_the_promised_form(times: list[datetime]) -> None:
    for name in mint_at(times):
        assert MINTED.fullmatch(name)
        assert DESIGN.fullmatch(name)
        assert ids.check_job_id(name) == name


def test_a_minted_id_tells_the_time_it_was_minted() -> None:
    assert mint_at([NOON])[0].startswith("job-20261115-120000-2500000")


def test_a_clock_that_stands_still_or_jumps_back_moves_the_counter() -> None:
    back = NOON - timedelta(hours=3)
    stamps = [name[:-16] for name in mint_at([NOON, NOON, back, back, NOON + timedelta(milliseconds=1)])]
    first = "job-20261115-120000-"
    assert stamps == [f"{first}250{n:04x}" for n in range(4)] + [f"{first}2510000"]


def test_a_counter_that_is_used_up_borrows_the_next_millisecond() -> None:
    minted = mint_at([NOON] * (2**16 + 2))
    ends = [name[len("job-20261115-120000-") : -16] for name in minted[-3:]]
    assert ends == ["250ffff", "2510000", "2510001"]
    assert minted == sorted(minted)


@given(st.integers(0, 2**64 - 1))
def test_a_minted_id_ends_in_64_bits_that_were_asked_for(bits: int) -> None:
    asked = []

    def dice(count: int) -> int:
        asked.append(count)
        return bits

    name = IdMint(lambda: NOON, dice).mint()
    assert asked == [64]
    assert int(name[-16:], 16) == bits


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_hostile_names_are_refused(check: Callable[[str], str], name: str) -> None:
    with pytest.raises(BadName) as refused:
        check(name)
    assert str(refused.value).isprintable(), "the message must not pass escapes to a terminal"


@pytest.mark.parametrize("name", ["x.lock", "a:b"])
def test_a_tag_is_never_a_file_name_so_dots_and_colons_are_welcome(name: str) -> None:
    assert ids.check_tag(name) == name


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in ("x.lock", "a:b")], ids=ascii)
def test_hostile_tags_are_refused(name: str) -> None:
    with pytest.raises(BadName):
        ids.check_tag(name)


@pytest.mark.parametrize("value", [None, 7, b"job", ["job"], True])
def test_what_is_not_text_is_not_a_name(value: object) -> None:
    with pytest.raises(BadName):
        ids.check_job_id(value)  # type: ignore[arg-type]


@given(st.text(max_size=80))
def test_a_job_id_is_accepted_exactly_when_it_matches_the_pattern(text: str) -> None:
    reserved = text.lower() in {"con", "prn", "aux", "nul", *(f"{k}{n}" for k in ("com", "lpt") for n in range(1, 10))}
    wanted = DESIGN.fullmatch(text) is not None and not reserved
    assert ids.is_job_id(text) is wanted
    if wanted:
        assert ids.check_job_id(text) == text
    else:
        with pytest.raises(BadName):
            ids.check_job_id(text)


@given(st.from_regex(DESIGN, fullmatch=True), st.integers(0, 999_999), st.integers(0, 10_000))
def test_a_childs_id_is_stable_and_within_the_pattern(parent: str, attempt: int, index: int) -> None:
    child = ids.child_id(parent, attempt, index)
    assert child == ids.child_id(parent, attempt, index)
    assert DESIGN.fullmatch(child)
    assert ids.is_job_id(child)


def test_a_childs_id_is_pinned() -> None:
    """Deliveries may be repeated by a later version of farro: the derivation must never change."""
    assert ids.child_id("job-1", 1, 0) == "job-1-88a161d269ef7fe7"
    assert ids.child_id("p" * 64, 2, 7) == "p" * 40 + "-253ea5e215c9864d"


@given(
    st.lists(
        st.tuples(st.text("p", min_size=60, max_size=64), st.integers(0, 30), st.integers(0, 30)),
        min_size=2,
        max_size=20,
        unique=True,
    )
)
def test_children_of_different_attempts_have_different_ids(sources: list[tuple[str, int, int]]) -> None:
    assert len({ids.child_id(*source) for source in sources}) == len(sources)


def test_an_agents_id_names_it_its_slot_and_64_random_bits() -> None:
    name = ids.agent_id("worker", 3, lambda bits: 2**bits - 1)
    assert name == "worker.3.ffffffffffffffff"
    assert ids.is_agent(name)
    assert not ids.is_job_id(name), "an agent's folder is never taken for a job"


@pytest.mark.parametrize(
    "name", ["..", "worker", "worker.0", "worker.0.xyz", "a/b.0." + "0" * 16, "worker.0." + "0" * 17]
)
def test_an_id_that_only_resembles_an_agents_is_refused(name: str) -> None:
    assert not ids.is_agent(name)


def test_a_minted_id_is_distinguished_from_a_prefix_of_one() -> None:
    made = IdMint(lambda: NOON, random.Random(7).getrandbits).mint()
    assert ids.is_minted(made)
    assert all(ids.may_begin_minted(made[:length]) for length in range(len(made) + 1))
    assert not any(ids.is_minted(text) for text in (made[:-1], made + "0", made.upper(), ids.child_id(made, 1, 0)))
    assert not any(ids.may_begin_minted(text) for text in ("nope", "job-x", "job-2026111x", "jobs", made + "0"))
