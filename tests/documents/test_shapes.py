"""Check data against dataclasses. The tests of plans and settings cover their own messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.documents import render_path
from farro.documents.constraints import AnyCase, Argument, Bounds, Matching, Size
from farro.documents.shapes import check


@dataclass(frozen=True, kw_only=True)
class Inner:
    count: int
    names: tuple[str, ...] = ()
    env: dict[Annotated[str, Matching(r"[A-Z]+", "a name")], int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: tuple[Inner, ...] = ()
    few: Annotated[tuple[int, ...], Size(at_least=1, at_most=2)] = (0,)
    ratio: Annotated[float, Bounds(more_than=0, at_most=1)] = 0.5
    maybe: Annotated[int, Bounds(at_least=0)] | None = 1
    mode: Literal["on", "off", "auto"] = "on"
    level: Annotated[Literal["high", "low"], AnyCase()] = "low"
    path: Annotated[str, Argument(filled=True)] = "x"
    flag: bool = False
    anything: Any = None
    some: bool | tuple[Annotated[str, Matching(r"[a-z]+", "a name")], ...] = False


@dataclass(frozen=True, kw_only=True)
class Open:
    takes_more: ClassVar[bool] = True

    known: str = ""


def said(data: Any, shape: type = Outer) -> list[str]:
    return [f"{render_path(fault.path)}: {fault.message}" for fault in check(shape, data).faults]


def test_right_data_becomes_the_dataclass() -> None:
    data = {
        "inner": [{"count": 1, "names": ["a"], "env": {"A": 1}}],
        "few": [1, 2],
        "ratio": 1,
        "maybe": None,
        "mode": "auto",
        "level": "HIGH",
        "path": "/",
        "flag": True,
        "anything": [{"x": None}],
    }
    checked = check(Outer, data)
    assert checked.faults == []
    assert checked.value == Outer(
        inner=(Inner(count=1, names=("a",), env={"A": 1}),),
        few=(1, 2),
        ratio=1.0,
        maybe=None,
        mode="auto",
        level="high",
        path="/",
        flag=True,
        anything=[{"x": None}],
    )
    assert isinstance(checked.value.ratio, float)


def test_a_missing_member_gets_its_default() -> None:
    assert check(Outer, {}).value == Outer()


@pytest.mark.parametrize(
    ("data", "problems"),
    [
        (7, [": must be an object, not the number 7"]),
        (
            {"extra": 1, "inner": [{"count": "1", "nams": []}, {"names": [1, None]}, 7]},
            [
                "extra: is not a known field; known: inner, few, ratio, maybe, mode, level, path, flag, anything, some",
                "inner[0].count: must be a whole number, not text",
                "inner[0].nams: is not a known field; did you mean names?",
                "inner[1].names[0]: must be text, not the number 1",
                "inner[1].names[1]: must be text, not null",
                "inner[1].count: is required",
                "inner[2]: must be an object, not the number 7",
            ],
        ),
        ({"inner": [{"count": True}]}, ["inner[0].count: must be a whole number, not true"]),
        ({"inner": [{"count": 1.0}]}, ["inner[0].count: must be a whole number, not the number 1.0"]),
        (
            {"inner": [{"count": 1, "env": {"a": "x", "B": 1}}]},
            ["inner[0].env.a: is not a name; it must match [A-Z]+", "inner[0].env.a: must be a whole number, not text"],
        ),
        ({"some": 1}, ["some: must be true, false or a list, not the number 1"]),
        ({"some": ["a", "B"]}, ["some[1]: is not a name; it must match [a-z]+"]),
        ({"few": []}, ["few: must have at least 1; it has 0"]),
        ({"few": ["a", "b", "c"]}, ["few: may have at most 2; it has 3"]),
        ({"few": ["a"]}, ["few[0]: must be a whole number, not text"]),
        ({"few": "ab"}, ["few: must be a list, not text"]),
        ({"ratio": 0}, ["ratio: must be more than 0, not 0"]),
        ({"ratio": float("nan")}, ["ratio: must be a finite number"]),
        ({"ratio": float("-inf")}, ["ratio: must be a finite number"]),
        ({"ratio": 10**400}, ["ratio: must be a finite number"]),
        ({"ratio": False}, ["ratio: must be a number, not false"]),
        ({"maybe": -1}, ["maybe: must be at least 0, not -1"]),
        ({"maybe": "1"}, ["maybe: must be a whole number, not text"]),
        ({"mode": "ON"}, ["mode: must be 'on', 'off' or 'auto', not another word"]),
        ({"mode": ["on"]}, ["mode: must be 'on', 'off' or 'auto', not a list"]),
        ({"level": "medium"}, ["level: must be 'high' or 'low', not another word"]),
        ({"level": 1}, ["level: must be 'high' or 'low', not the number 1"]),
        ({"path": ""}, ["path: must not be empty"]),
        ({"path": "a\0"}, ["path: holds a NUL, which no argument, variable or path can carry; take it out"]),
        ({"flag": 1}, ["flag: must be true or false, not the number 1"]),
        ({"flag": None}, ["flag: must be true or false, not null"]),
    ],
)
def test_all_faults_are_reported_together_in_the_order_of_the_data(data: Any, problems: list[str]) -> None:
    assert said(data) == problems


def test_unknown_members_alone_leave_a_value_and_are_marked() -> None:
    checked = check(Outer, {"flag": True, "flog": 1, "inner": [{"count": 1, "cuont": 2}]})
    assert checked.value == Outer(flag=True, inner=(Inner(count=1),))
    assert [(render_path(fault.path), fault.unknown, fault.key) for fault in checked.faults] == [
        ("flog", True, True),
        ("inner[0].cuont", True, True),
    ]
    assert check(Outer, {"flag": 1, "flog": 1}).value is None


def test_unknown_members_beyond_the_limit_get_no_hint() -> None:
    faults = check(Outer, {f"member-{number}": 0 for number in range(100_000)}).faults
    assert len(faults) == 100_000
    assert faults[-1].message == "is not a known field"


def test_a_shape_that_takes_more_leaves_the_rest_alone() -> None:
    checked = check(Open, {"known": "a", "anything": [1]})
    assert (checked.value, checked.faults) == (Open(known="a"), [])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
NAMES = ["inner", "few", "ratio", "maybe", "mode", "level", "path", "flag", "anything", "count", "names", "env", "zz"]


@given(VALUES | st.dictionaries(st.sampled_from(NAMES), VALUES | st.dictionaries(st.sampled_from(NAMES), VALUES)))
def test_any_data_is_a_value_or_has_a_fault(data: Any) -> None:
    checked = check(Outer, data)
    assert (checked.value is None) == any(not fault.unknown for fault in checked.faults)


@dataclass(frozen=True, kw_only=True)
class Odd:
    many: set[str] = field(default_factory=set)


def test_an_annotation_that_cannot_be_checked_is_an_error_of_the_program() -> None:
    with pytest.raises(TypeError, match="not an annotation that a document can be checked against"):
        check(Odd, {})
