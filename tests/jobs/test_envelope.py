"""job.json: every field is written and read back, and any other bytes raise only Damaged."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.errors import Damaged, UnknownSchema
from farro.jobs import ids
from farro.jobs.envelope import SCHEMA_VERSION, Decision, Envelope, Hop, Lifecycle
from farro.jobs.states import Reason, Status

# DESIGN §3.3, word by word.
DESIGN = """
schema_version job_id role status attempt retry_count hops created_at enqueued_at updated_at first_claimed_at
finalized_at not_before routing agent correlation_id requeued_from retry_of policy_version result_sha256 error
decision
"""
FIELDS = DESIGN.split()

text = st.text(max_size=20)
odd_text = st.text(st.one_of(st.characters(), st.sampled_from("\ud800\udfff\udc80")), max_size=20)
moments = st.datetimes().map(lambda at: at.isoformat(timespec="milliseconds") + "Z")
counts = st.integers(0, 10**6)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
hops = st.builds(
    Hop,
    at=moments,
    role=text,
    attempt=counts,
    reason=st.sampled_from(Reason),
    to=text,
    by=text,
    note=st.none() | odd_text,
    route=st.none() | st.dictionaries(text, json_values, max_size=3),
)
decisions = st.builds(Decision, attempt=counts, reason=st.sampled_from(Reason), to=text, not_before=st.none() | moments)
lifecycles = st.builds(
    Lifecycle,
    job_id=text,
    role=st.from_regex(ids.ROLE, fullmatch=True),
    status=st.sampled_from(Status),
    attempt=counts,
    retry_count=counts,
    hops=st.lists(hops, max_size=4).map(tuple),
    created_at=moments,
    enqueued_at=moments,
    updated_at=moments,
    first_claimed_at=st.none() | moments,
    finalized_at=st.none() | moments,
    not_before=st.none() | moments,
    routing=st.none() | st.dictionaries(text, json_values, max_size=3),
    agent=st.none() | text,
    correlation_id=st.none() | text,
    requeued_from=st.none() | st.sampled_from(Status),
    retry_of=st.none() | text,
    policy_version=st.none() | text,
    result_sha256=st.none() | text,
    error=st.none() | st.fixed_dictionaries({"category": text, "message": odd_text}),
    decision=st.none() | decisions,
)

SAMPLE = Lifecycle(
    job_id="job-1",
    role="Runner",
    status=Status.IN_PROGRESS,
    attempt=1,
    hops=(Hop(at="t", role="Runner", attempt=1, reason=Reason.RETRIED, to="agents/Runner/incoming", by="w", note="n"),),
    created_at="2026-11-15T12:00:00.000Z",
    enqueued_at="2026-11-15T12:00:00.000Z",
    updated_at="2026-11-15T12:00:00.000Z",
    error={"category": "step_failed", "message": "no"},
    decision=Decision(attempt=1, reason=Reason.RETRIED, to="agents/Runner/incoming"),
)


def with_field(name: str, value: Any) -> bytes:
    return json.dumps({**json.loads(SAMPLE.to_json()), name: value}).encode()


@given(lifecycles)
def test_a_lifecycle_reads_back_as_it_was_written(lifecycle: Lifecycle) -> None:
    written = lifecycle.to_json()
    assert Lifecycle.from_json(written) == lifecycle
    assert Lifecycle.from_json(written).to_json() == written


@given(lifecycles)
def test_the_line_form_equals_the_document_without_empty_fields(lifecycle: Lifecycle) -> None:
    line = lifecycle.to_line()
    assert Lifecycle.from_json(line) == lifecycle
    said = json.loads(lifecycle.to_json()).items()
    assert json.loads(line) == {name: value for name, value in said if value is not None and value != []}


@given(lifecycles)
def test_every_field_of_the_design_is_in_job_json(lifecycle: Lifecycle) -> None:
    data = json.loads(lifecycle.to_json())
    assert list(data) == FIELDS
    assert data["schema_version"] == SCHEMA_VERSION == "1.0.0"
    if lifecycle.decision is not None:
        assert list(data["decision"]) == ["attempt", "reason", "to", "not_before"]


def test_an_envelope_has_exactly_three_parts() -> None:
    assert [part.name for part in fields(Envelope)] == ["prompt", "lifecycle", "runtime"]
    with pytest.raises(AttributeError):
        Envelope(prompt={}, lifecycle=SAMPLE).lock = "a fourth part"  # type: ignore[attr-defined]


def test_job_json_has_one_field_per_line() -> None:
    lines = SAMPLE.to_json().decode().splitlines()
    assert lines[0] == "{"
    assert lines[-1] == "}"
    assert '  "status": "in_progress",' in lines


def test_a_lifecycle_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        SAMPLE.status = Status.KILLED  # type: ignore[misc]


@given(st.binary(max_size=200))
def test_garbage_is_damaged_and_nothing_worse(garbage: bytes) -> None:
    with pytest.raises(Damaged):
        Lifecycle.from_json(garbage)


@given(lifecycles.map(Lifecycle.to_json), st.data())
def test_a_torn_or_flipped_file_is_damaged_or_still_a_lifecycle(written: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(written) - 1))
    flipped = written[:at] + bytes([data.draw(st.integers(0, 255))]) + written[at + 1 :]
    for broken in (written[:at], flipped):
        try:
            found = Lifecycle.from_json(broken)
        except Damaged:
            continue
        Lifecycle.from_json(found.to_json())  # an accepted lifecycle can be written again


@given(st.sampled_from([name for name in FIELDS if name != "schema_version"]), json_values | st.just(float("inf")))
def test_a_field_of_any_type_is_damaged_or_can_be_written_again(name: str, value: Any) -> None:
    try:
        found = Lifecycle.from_json(with_field(name, value))
    except Damaged:
        return
    assert Lifecycle.from_json(found.to_json()) == found


@given(st.sampled_from(["at", "role", "attempt", "reason", "to", "by", "note"]), json_values | st.just(float("-inf")))
def test_a_hop_or_decision_of_any_type_is_damaged_or_can_be_written_again(name: str, value: Any) -> None:
    for field in ("hops", "decision"):
        data = json.loads(SAMPLE.to_json())
        target = data["hops"][0] if field == "hops" else data["decision"]
        target[name] = value
        try:
            found = Lifecycle.from_json(json.dumps(data).encode())
        except Damaged:
            continue
        assert Lifecycle.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attempt", -1),
        ("attempt", True),
        ("attempt", 1.5),
        ("attempt", "1"),
        ("retry_count", None),
        ("status", "done"),
        ("status", None),
        ("status", 3),
        ("role", "../../etc"),
        ("role", "runner"),
        ("role", None),
        ("job_id", 7),
        ("hops", None),
        ("hops", 3),
        ("hops", [3]),
        ("hops", [{}]),
        ("decision", "later"),
        ("decision", {}),
        ("decision", {"attempt": 1, "reason": "because", "to": "jobs/stale"}),
        ("routing", []),
        ("error", "no"),
        ("not_before", "soon"),
        ("not_before", "2026-01-01T00:00:00"),
        ("requeued_from", "nowhere"),
    ],
)
def test_a_wrong_type_or_value_is_damaged(name: str, value: Any) -> None:
    with pytest.raises(Damaged):
        Lifecycle.from_json(with_field(name, value))


@pytest.mark.parametrize("name", ["job_id", "role", "status", "created_at", "enqueued_at", "updated_at"])
def test_a_missing_field_is_damaged(name: str) -> None:
    data = json.loads(SAMPLE.to_json())
    del data[name]
    with pytest.raises(Damaged):
        Lifecycle.from_json(json.dumps(data).encode())


@pytest.mark.parametrize("token", [b"NaN", b"Infinity", b"-Infinity"])
def test_numbers_that_are_not_json_are_damaged(token: bytes) -> None:
    """Such numbers can be read but not written: the job would be stuck with the agent that claimed it."""
    with pytest.raises(Damaged):
        Lifecycle.from_json(SAMPLE.to_json().replace(b'"routing": null', b'"routing": {"x": ' + token + b"}"))


def test_nesting_that_no_parser_survives_is_damaged() -> None:
    deep = b"[" * 100_000
    with pytest.raises(Damaged):
        Lifecycle.from_json(deep)
    with pytest.raises(Damaged):
        Lifecycle.from_json(SAMPLE.to_json().replace(b'"routing": null', b'"routing": {"x": ' + deep))


@pytest.mark.parametrize("version", ["9.9.9", "1.0.1", "2.0.0", "", "1.0", "\x1b[31m", "v" * 500])
def test_another_schema_version_is_unknown_with_any_content(version: str) -> None:
    for body in (with_field("schema_version", version), json.dumps({"schema_version": version, "new": []}).encode()):
        with pytest.raises(UnknownSchema) as unknown:
            Lifecycle.from_json(body)
        assert str(unknown.value).isprintable()
        assert len(str(unknown.value)) < 200


@pytest.mark.parametrize("version", [None, 1, 1.0, ["1.0.0"], {}])
def test_a_missing_version_or_one_that_is_no_text_is_unknown(version: Any) -> None:
    """The kernel document, 7.3: such a job is not processed either."""
    with pytest.raises(UnknownSchema):
        Lifecycle.from_json(with_field("schema_version", version))
    with pytest.raises(UnknownSchema, match="has no schema_version"):
        Lifecycle.from_json(b"{}")


@pytest.mark.parametrize("field", ["status", "requeued_from"])
def test_the_seeds_spelling_of_in_progress_is_read_and_written_as_ours(field: str) -> None:
    found = Lifecycle.from_json(with_field(field, "in-progress"))
    assert getattr(found, field) is Status.IN_PROGRESS
    assert json.loads(found.to_json())[field] == "in_progress"


def test_fields_that_this_version_does_not_know_are_left_out() -> None:
    assert Lifecycle.from_json(with_field("color", "red")) == SAMPLE
