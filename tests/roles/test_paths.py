"""Check the lexical rules of allowed_paths: one spelling, no escape, and nothing of the queue's own files."""

from __future__ import annotations

import ntpath
import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.roles.paths import PROTECTED, fault, is_absolute, normalise

PART = st.sampled_from(["a", "b", "src", "..", ".", "", "x y", ".git", "agents", "ü"]) | st.text(
    st.characters(blacklist_categories=("Cc", "Cs"), blacklist_characters="/\\*?:~"), max_size=6
)
RELATIVE = st.lists(PART, min_size=1, max_size=8).map("/".join).filter(lambda path: not path.startswith("/"))
ANY = st.builds(lambda head, path: head + path, st.sampled_from(["", "/", "//", "C:/", "c:\\", "\\\\"]), RELATIVE)


@given(ANY)
def test_normalising_twice_changes_nothing(path: str) -> None:
    assert normalise(normalise(path)) == normalise(path)


@given(RELATIVE.filter(lambda path: "\\" not in path))
def test_a_normalised_path_means_the_same_to_the_operating_system(path: str) -> None:
    assert normalise(path).rstrip("/") == posixpath.normpath(path).rstrip("/")
    assert normalise("/" + path).rstrip("/") == posixpath.normpath("/" + path.lstrip("/")).rstrip("/")


@given(RELATIVE.filter(lambda path: ":" not in path))
def test_backslashes_mean_the_same_as_slashes(path: str) -> None:
    backward = path.replace("/", "\\")
    assert normalise(backward) == normalise(path)
    assert normalise(backward).rstrip("/") == ntpath.normpath(backward).replace("\\", "/").rstrip("/")


@given(ANY)
def test_an_allowed_path_stays_inside_and_touches_nothing_protected(path: str) -> None:
    if fault(path, allow_absolute=False) is not None:
        return
    whole = normalise(path)
    assert not is_absolute(whole)
    inside = posixpath.join("/repo", whole)
    assert posixpath.normpath(inside) == "/repo" or posixpath.normpath(inside).startswith("/repo/")
    parts = [part.lower() for part in whole.split("/")]
    assert ".git" not in parts
    assert parts[0] not in {name.lower() for name in PROTECTED}


@given(st.text(max_size=40))
def test_any_text_is_accepted_or_refused(path: str) -> None:
    message = fault(path, allow_absolute=True, root="/repo")
    assert message is None or message


@pytest.mark.parametrize(
    ("path", "spelled"),
    [
        ("src", "src"),
        ("src/", "src/"),
        ("./src//b/../a/", "src/a/"),
        (".", "."),
        ("./", "."),
        ("a/..", "."),
        ("src\\a", "src/a"),
        ("a/../../b", "../b"),
        ("/..", "/"),
        ("c:\\x\\..\\y", "C:/y"),
    ],
)
def test_spellings_of_the_same_path_are_normalised(path: str, spelled: str) -> None:
    assert normalise(path) == spelled


@pytest.mark.parametrize(
    "path", [".", "./", "src/..", "src/agents", "docs/jobs/", "agents.md.txt", "[id]/page.tsx", "a b"]
)
def test_ordinary_paths_may_be_allowed(path: str) -> None:
    assert fault(path, allow_absolute=False) is None


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("", "must not be empty"),
        ("  ", "must not be empty"),
        ("a\0b", "control character"),
        ("a\nb", "control character"),
        ("~/x", "no shell"),
        ("src/**", "is a pattern"),
        ("..", "leads out"),
        ("src/../..", "leads out"),
        ("..\\x", "leads out"),
        ("/", "absolute"),
        ("\\\\server\\share", "absolute"),
        ("D:", "absolute"),
        *[(name, "belongs to the queue") for name in PROTECTED],
        ("x/../jobs/", "belongs to the queue"),
        ("swarms/orchestrator/wishes", "belongs to the queue"),
        ("bus/", "belongs to the queue"),
        ("AGENTS/x", "belongs to the queue"),
        ("agents-config.json.bak", "belongs to the queue"),
        ("lib/.Git/hooks", "belongs to the queue"),
        ("x" * 1025, "at most 1024"),
    ],
)
def test_unsafe_paths_may_not_be_allowed(path: str, told: str) -> None:
    assert told in (fault(path, allow_absolute=False) or "")


def test_a_drive_without_its_root_is_refused_even_where_absolute_paths_are_allowed() -> None:
    assert fault("C:/x", allow_absolute=True) is None
    assert "drive" in (fault("C:x", allow_absolute=True) or "")


def test_an_absolute_path_into_the_queue_is_refused() -> None:
    assert fault("/repo/src", allow_absolute=True, root="/repo") is None
    assert fault("/repo", allow_absolute=True, root="/repo") is None
    assert fault("/other/jobs", allow_absolute=True, root="/repo") is None
    assert "(jobs)" in (fault("/repo/x/../jobs", allow_absolute=True, root="/repo") or "")
