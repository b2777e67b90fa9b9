"""Check policy files: their header, and the version that a job records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.errors import BadDocument
from farro.roles.policy import policy_version, read


def test_a_policy_has_a_version_and_its_text_is_without_the_header() -> None:
    policy = read("---\nversion: 1.2.3\nrole: Architect\n---\n# Architect\n\nDraw.\n", "f")
    assert (policy.version, policy.text, policy.warning) == ("1.2.3", "# Architect\n\nDraw.\n", None)


@pytest.mark.parametrize("line", ["version: '1.0.0'", 'Version:  "1.0.0"  ', "version: 1.0.0 # the first"])
def test_the_version_may_be_written_in_several_ways(line: str) -> None:
    assert read(f"---\r\n{line}\r\n---\r\nx\r\n", "f").version == "1.0.0"


@pytest.mark.parametrize("text", ["# Architect\n", "", "---\nrole: x\n---\nbody\n"])
def test_a_policy_without_a_version_works_with_a_warning(text: str) -> None:
    policy = read(text, "agents/A/AGENTS-ROLE.md")
    assert policy.version is None
    assert policy.warning is not None
    assert policy.warning.startswith("agents/A/AGENTS-ROLE.md ")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("---\nversion: 1.0.0\n", "f:1:1: the header that begins here has no end"),
        ("---\nrole: x\nversion: 1.0\n---\n", 'f:3:1: the version is "1.0"; it must be three numbers'),
        ("---\nversion: 01.0.0\n---\n", "f:2:1: the version is"),
        ("---\nversion: 1.0.0\nversion: 1.0.1\n---\n", "f:3:1: the version is given twice"),
    ],
)
def test_a_wrong_header_is_refused_with_its_position(text: str, told: str) -> None:
    with pytest.raises(BadDocument) as caught:
        read(text, "f")
    assert str(caught.value).startswith(told)


def test_a_job_records_the_version_and_the_snapshot() -> None:
    sha = "0123456789abcdef" * 4
    assert policy_version(read("---\nversion: 1.0.0\n---\n", "f"), sha) == "1.0.0+0123456789ab"
    assert policy_version(read("---\nversion: 1.0.0-rc.1+b5\n---\n", "f"), sha) == "1.0.0-rc.1+b5.0123456789ab"
    assert policy_version(read("no header", "f"), sha) == "0.0.0+0123456789ab"


@given(st.text() | st.text().map(lambda text: f"---\n{text}"))
def test_any_text_is_read_or_refused(text: str) -> None:
    bad = None
    try:
        read(text, "f")
    except BadDocument as error:
        bad = error
    assert bad is None or bad.problems[0].line
