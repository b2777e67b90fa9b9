"""Places: a decision may name the alphabet of DESIGN §3.5 and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from farro.errors import Damaged
from farro.jobs import ids, places
from farro.jobs.states import Status

roles = st.from_regex(ids.ROLE, fullmatch=True)


@given(roles, st.sampled_from([status for status in Status if status is not Status.IN_PROGRESS]))
def test_every_destination_is_read_back_as_written(role: str, status: Status) -> None:
    place = places.parse(places.destination(role, status))
    assert place.status is status
    assert place.role == (None if status is Status.STALE else role)
    assert place.path == places.destination(role, status)


def test_the_paths_are_those_of_the_design() -> None:
    assert places.destination("Runner", Status.QUEUED) == "agents/Runner/incoming"
    assert places.destination("Runner", Status.SUCCEEDED) == "agents/Runner/completed/succeeded"
    assert places.destination("Runner", Status.FAILED) == "agents/Runner/completed/failed"
    assert places.destination("Runner", Status.KILLED) == "agents/Runner/completed/killed"
    assert places.destination("Runner", Status.STALE) == "jobs/stale"
    assert places.in_progress("Runner") == "agents/Runner/in-progress"
    assert places.parse("agents/Manager/waiting").status is Status.QUEUED


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "..",
        "/",
        "/etc",
        "jobs",
        "jobs/",
        "jobs/stale/",
        "jobs/stale/x",
        "/jobs/stale",
        "jobs/../jobs/stale",
        "jobs/outbox",
        "jobs/.held/x",
        "jobs/.staging",
        "jobs/quarantine",
        "agents/Runner",
        "agents/Runner/in-progress",
        "agents/Runner/in-progress/w.0.0000000000000000",
        "agents/Runner/incoming/",
        "agents/Runner/incoming/..",
        "agents/Runner/incoming\n",
        "agents/../incoming",
        "agents/../../x/incoming",
        "agents//incoming",
        "agents/runner/incoming",
        "agents/Run ner/incoming",
        "agents/Runner/completed",
        "agents/Runner/completed/queued",
        "agents/Runner/waiting",
        "agents/Runner\0/incoming",
        "AGENTS/Runner/incoming",
        "agents/Rünner/incoming",
        "agents/" + "R" * 33 + "/incoming",
    ],
    ids=ascii,
)
def test_anything_else_is_refused(path: str) -> None:
    with pytest.raises(Damaged, match="is not a place for a job"):
        places.parse(path)


@given(st.text(max_size=60))
def test_arbitrary_text_is_no_place(text: str) -> None:
    assume(text not in (places.STALE, places.WAITING))
    with pytest.raises(Damaged):
        places.parse(text)


@given(roles, st.text(min_size=1, max_size=10), st.integers(0, 40))
def test_a_place_with_inserted_characters_is_refused(role: str, more: str, at: int) -> None:
    path = places.incoming(role)
    planted = path[:at] + more + path[at:]
    try:
        place = places.parse(planted)
    except Damaged:
        return
    assert place.role is not None
    assert ids.ROLE.fullmatch(place.role), "what is accepted is still one role's queue and no other path"
    assert planted == places.incoming(place.role)
