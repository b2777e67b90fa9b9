"""Parse documents, and refuse bad ones with the place of the error. `test_plans` covers plans."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farro.documents import (
    MAX_PROBLEMS,
    Limits,
    canonical,
    parse,
    parse_json,
    parse_ndjson,
    parse_yaml,
    render_path,
)
from farro.errors import BadDocument

TEXT = st.text(st.characters(exclude_categories=("Cs",)))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
WORDS = (
    r"""{ } [ ] : , " ' \u \U d800 FFFFFFFF - ? &a *a !t % | > # 1e999 NaN 0 a --- << = %YAML %TAG 1. ! 2001-01-01"""
)
GARBAGE = st.lists(
    st.sampled_from(
        [word.encode() for word in (*WORDS.split(), "\n", " ", "\t", "\u2028", "\0", "\ufeff")] + [b"\xff"]
    ),
    max_size=20,
).map(b"".join)


def refused(text: bytes, parser: Callable[..., Any] = parse_json, **options: Any) -> str:
    with pytest.raises(BadDocument) as caught:
        parser(text, source="f", **options)
    return str(caught.value)


# --- what parses


@given(JSON, st.sampled_from([None, 1]), st.booleans())
def test_any_json_value_parses_to_itself(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    parsed = parse_json(text, source="f").data
    assert canonical(parsed) == canonical(value)


@given(JSON)
def test_every_member_is_found_where_its_text_stands(value: Any) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False)
    document = parse_json(text.encode(), source="f")
    lines = text.split("\n")
    todo: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while todo:
        path, member = todo.pop()
        place = document.locate(path)
        assert place is not None
        rest = "\n".join([lines[place[0] - 1][place[1] - 1 :], *lines[place[0] :]])
        # -0.0 and 0.0 are equal but written apart: compare the spelling.
        assert canonical(json.JSONDecoder().raw_decode(rest)[0]) == canonical(member)
        members = member.items() if isinstance(member, dict) else enumerate(member) if isinstance(member, list) else ()
        todo += [((*path, name), inner) for name, inner in members]


@given(st.dictionaries(TEXT, JSON, max_size=6), st.randoms(use_true_random=False))
def test_canonical_text_does_not_depend_on_the_order_of_keys(value: dict[str, Any], random: Any) -> None:
    names = list(value)
    random.shuffle(names)
    assert canonical({name: value[name] for name in names}) == canonical(value)


def test_canonical_text_is_compact_sorted_utf8() -> None:
    assert canonical({"b": [1, 2.5, None], "a": "é"}) == '{"a":"é","b":[1,2.5,null]}'.encode()
    with pytest.raises(ValueError):
        canonical(float("nan"))


@given(JSON)
def test_yaml_reads_json_without_escapes_as_json_does(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    if text.isascii() and text.isprintable() and "\\" not in text and len(text) < 1000:
        assert parse_yaml(text.encode(), source="f").data == parse_json(text.encode(), source="f").data


def test_the_ending_of_the_name_chooses_the_language() -> None:
    assert parse(b"a: 1\n", "plan.yaml").data == parse(b"a: 1\n", "PLAN.YML").data == {"a": 1}
    assert parse(b'{"a": 1}', "plan.json").data == parse(b'{"a": 1}', "-").data == {"a": 1}


def test_a_surrogate_pair_is_one_character() -> None:
    assert parse_json(rb'"\ud83d\ude00"', source="f").data == "\U0001f600"


def test_long_digits_in_a_string_are_only_text() -> None:
    assert parse_json(b'["' + b"9" * 5000 + b'", 12]', source="f").data == ["9" * 5000, 12]


def test_brackets_and_commas_in_strings_count_for_nothing() -> None:
    limits = Limits(depth=1, nodes=2)
    assert parse_json(b'["[[[[,,,,{{{{\\"[,"]', source="f", limits=limits).data == ['[[[[,,,,{{{{"[,']


@given(JSON)
def test_the_caps_on_depth_and_nodes_are_exact(value: Any) -> None:
    def measure(member: Any) -> tuple[int, int]:
        if not isinstance(member, (list, dict)):
            return 0, 1
        inner = [measure(each) for each in (member.values() if isinstance(member, dict) else member)]
        return 1 + max((depth for depth, _ in inner), default=0), 1 + sum(nodes for _, nodes in inner)

    depth, nodes = measure(value)
    text = json.dumps(value).encode()
    parse_json(text, source="f", limits=Limits(depth=depth, nodes=nodes))
    if depth:
        assert f"nested deeper than {depth - 1} levels" in refused(text, limits=Limits(depth=depth - 1))
    assert f"more than {nodes - 1} values" in refused(text, limits=Limits(nodes=nodes - 1))


def test_yaml_gives_plain_data_with_places() -> None:
    document = parse_yaml(b"a:\n  - x: 1\n    y: 'no'\n  - [true, null, 1.5, no, 2e3]\n", source="f")
    assert document.data == {"a": [{"x": 1, "y": "no"}, [True, None, 1.5, "no", 2000.0]]}
    assert document.locate(("a", 0, "y")) == (3, 8)
    assert document.locate(("a", 0, "y"), key=True) == (3, 5)
    assert document.locate(("a", 1, 1)) == (4, 12)
    assert document.locate(("a", 2)) is None


def test_ndjson_counts_the_lines_of_the_file() -> None:
    documents = parse_ndjson(b'{"a": 1}\r\n\n  \n{"a": [2,\t3]}', "f")
    assert [document.data for document in documents] == [{"a": 1}, {"a": [2, 3]}]
    assert documents[1].locate(("a", 1)) == (4, 11)


def test_ndjson_refuses_all_bad_lines_at_once() -> None:
    assert refused(b'{"a": 1, "a": 2}\n{}\n[NaN]\n', lambda text, source: parse_ndjson(text, source)) == (
        "f:1:10: a: this key is in the object twice; keep one\n"
        "f:3:2: [0]: NaN is not JSON; write a number, a string or null"
    )


# --- what is refused, and where


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "f:1:1: not JSON: the document is empty"),
        (b"{\n  1}", "f:2:3: not JSON: expecting property name enclosed in double quotes"),
        (
            b"[1] 2",
            "f:1:5: not JSON: extra data; one document ends before this, "
            "and one file holds one; a document a line is NDJSON, .ndjson",
        ),
        (b'["a\nb"]', "f:1:4: not JSON: invalid control character; a line break in text is written \\n, a tab \\t"),
        (b"\xef\xbb\xbf{}", "f:1:1: begins with a byte order mark; save it as UTF-8 without BOM"),
        ('{"é": "'.encode() + b'\xff"}', "f:1:8: byte 0xff is not UTF-8 here"),
        (b'["\xed\xa0\x80"]', "f:1:3: byte 0xed is not UTF-8 here"),
        ("[1]".encode("utf-16"), "f:1:1: byte 0xff is not UTF-8 here"),
        (b'{"a": {"b": 1,\n "b": 2}}', "f:2:2: a.b: this key is in the object twice; keep one"),
        (b'{"a": 1, "\\u0061": 2}', "f:1:10: a: this key is in the object twice; keep one"),
        (b'{"a": {"b": 1}, "a": {"b": 2}}', "f:1:17: a: this key is in the object twice; keep one"),
        (b'{"a": NaN}', "f:1:7: a: NaN is not JSON; write a number, a string or null"),
        (b"[0, -Infinity]", "f:1:5: [1]: -Infinity is not JSON; write a number, a string or null"),
        (b"[0,\n1e999]", "f:2:1: [1]: this number is too large for a float"),
        (b"[" + b"7" * 641 + b"]", "f:1:2: [0]: an integer of 641 digits; at most 640 are read"),
        (
            rb'{"a": ["\ud800x"]}',
            "f:1:8: a[0]: half of a surrogate pair is not a character; write the character itself",
        ),
        (
            rb'{"\udc00": 1}',
            r'f:1:2: ["\udc00"]: half of a surrogate pair is not a character; write the character itself',
        ),
        (b"[" * 65 + b"]" * 65, "f:1:65: nested deeper than 64 levels"),
        (b"[" * 1_000_000, "f:1:65: nested deeper than 64 levels"),
        (b"[" + b"0," * 100_000 + b"0]", "f:1:200000: [99999]: more than 100000 values"),
        (b" " * (1 << 20) + b"1", "f: 1048577 bytes; at most 1048576 are read"),
        (b'{"\\u001b[31m": NaN}', r'f:1:16: ["\u001b[31m"]: NaN is not JSON; write a number, a string or null'),
    ],
)
def test_bad_json_is_refused_with_its_place(text: bytes, message: str) -> None:
    assert refused(text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"# nothing\n", "f:1:1: not YAML: the document is empty"),
        (b"a: [1\n", "f:2:1: a[1]: not YAML: expected ',' or ']', but got '<stream end>'"),
        (b"a: 1\nb: \x01\n", "f:2:4: not YAML: the character U+0001 is not allowed"),
        (b'a: "\\UFFFFFFFF"\n', "f:1:1: a: not YAML: it cannot be read from here on"),
        (b"a: 1\na: 2\n", "f:2:1: a: this key is in the mapping twice; keep one"),
        (b"a: &x 1\n", "f:1:4: a: anchors and aliases are not read; write the value out"),
        (b"a: *x\n", "f:1:4: a: anchors and aliases are not read; write the value out"),
        (b"a: !!str 1\n", "f:1:4: a: tags are not read; write the plain value"),
        (b"a: !!binary aGk=\n", "f:1:4: a: tags are not read; write the plain value"),
        (b"<<: {a: 1}\n", 'f:1:1: ["<<"]: merge keys are not read; write the members out'),
        (b"1: a\n", 'f:1:1: ["1"]: a key must be text; quote it'),
        (b"? [a]\n: b\n", 'f:1:3: ["?"]: a key must be text; quote it'),
        (b"a: 2001-01-01\n", 'f:1:4: a: "2001-01-01" is a date in YAML; quote it to have text'),
        (b"- .inf\n", 'f:1:3: [0]: ".inf" is not a finite number'),
        (b"- 1e999\n", "f:1:3: [0]: this number is too large for a float"),
        (b"- 0755\n", 'f:1:3: [0]: "0755" is octal to some readers and decimal to others; quote it to have text'),
        (b"- " + b"7" * 641, "f:1:3: [0]: an integer of 641 digits; at most 640 are read"),
        (
            b'- "\\ud800"\n',
            "f:1:3: [0]: half of a surrogate pair is not a character; write the character itself",
        ),
        (b"--- 1\n--- 2\n", "f:2:1: a second document begins here; one file holds one"),
        (b"[" * 1000, "f:1:65: nested deeper than 64 levels"),
        (b" " * (1 << 18) + b"1", "f: 262145 bytes; at most 262144 are read"),
        (b"a: \xff", "f:1:4: byte 0xff is not UTF-8 here"),
    ],
)
def test_bad_yaml_is_refused_with_its_place(text: bytes, message: str) -> None:
    assert refused(text, parse_yaml) == message


def test_too_many_yaml_values_are_refused_with_their_place() -> None:
    assert refused(b"[1, 2, 3]", parse_yaml, limits=Limits(nodes=3)) == "f:1:8: [2]: more than 3 values"


def test_faults_are_reported_in_text_order_up_to_a_limit() -> None:
    text = b"{" + b",\n".join(b'"a": NaN' for _ in range(MAX_PROBLEMS)) + b"}"
    lines = refused(text).split("\n")
    assert lines[:3] == [
        "f:1:7: a: NaN is not JSON; write a number, a string or null",
        "f:2:1: a: this key is in the object twice; keep one",
        "f:2:6: a: NaN is not JSON; write a number, a string or null",
    ]
    assert len(lines) == MAX_PROBLEMS + 1
    assert lines[-1] == f"f: and {MAX_PROBLEMS - 1} more problems"


def test_an_unterminated_string_of_escaped_quotes_is_refused_in_one_pass() -> None:
    # With quadratic scanning this test would take minutes.
    assert refused(b"[" * 65 + b'"' + b'\\"' * 500_000) == "f:1:65: nested deeper than 64 levels"


def verdict(text: bytes, source: str) -> BadDocument | None:
    try:
        parse_ndjson(text, source) if source == "f.ndjson" else parse(text, source)
    except BadDocument as bad:
        return bad
    return None


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=60) | GARBAGE, st.sampled_from(["f.json", "f.yaml", "f.ndjson"]))
def test_garbage_is_refused_in_plain_lines_and_nothing_else_is_raised(text: bytes, source: str) -> None:
    bad = verdict(text, source)
    for problem in bad.problems if bad else ():
        assert problem.render(source).isprintable()  # no control character of the text reaches a terminal
        assert problem.line is not None


# --- how paths are written


def test_paths_are_written_as_people_do() -> None:
    assert render_path(("steps", 2, "env", "a b", "c-d")) == 'steps[2].env["a b"].c-d'
    assert render_path((0, "a")) == "[0].a"
    assert render_path(()) == ""


def test_importing_documents_loads_no_ruamel() -> None:
    code = "import sys, farro.documents, farro.plans.metadata; print({'ruamel.yaml'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
