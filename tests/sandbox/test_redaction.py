"""Redact the values of secrets, in all their encodings, from texts, bytes, streams, files, logs and tracebacks.

tests/flows/test_canary.py checks that no part of a running farro writes a secret.
"""

from __future__ import annotations

import base64
import html
import io
import json
import os
import subprocess
import sys
import textwrap
import urllib.parse
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from farro.config.settings import ProviderSettings, Settings
from farro.log import structured as logs
from farro.sandbox.redaction import Redactor, secret_variables

KEY = 'sk-Ab/c+d"e\\f g&h<ü>=%1'
REDACTOR = Redactor({"OPENAI_API_KEY": KEY})
MARK = "[redacted:OPENAI_API_KEY]"


@pytest.mark.parametrize(
    "form",
    [
        KEY,
        json.dumps(KEY)[1:-1],
        json.dumps(KEY, ensure_ascii=False)[1:-1],
        json.dumps(json.dumps(KEY)[1:-1])[1:-1],
        json.dumps(KEY)[1:-1].replace("/", "\\/"),
        urllib.parse.quote(KEY),
        urllib.parse.quote(KEY, safe=""),
        urllib.parse.quote_plus(KEY),
        urllib.parse.quote(KEY, safe="").replace("%2F", "%2f").replace("%2B", "%2b"),
        html.escape(KEY),
        repr(KEY)[1:-1],
        base64.b64encode(KEY.encode()).decode(),
        base64.urlsafe_b64encode(KEY.encode()).decode(),
        base64.urlsafe_b64encode(KEY.encode()).decode().rstrip("="),
    ],
)
def test_every_encoding_of_a_secret_is_redacted(form: str) -> None:
    if form.startswith("sk-Ab%2f"):  # no encoder mixes both spellings
        form = "".join(f"%{one[:2].lower()}{one[2:]}" if n else one for n, one in enumerate(form.split("%")))
    assert REDACTOR.text(f"before {form} after") == f"before {MARK} after"
    assert REDACTOR.data(f"<{form}>".encode()) == f"<{MARK}>".encode()


@pytest.mark.parametrize("before", ["", "u", "us", "use", "user:", "me@example.org:"])
@pytest.mark.parametrize("after", ["", "x", "xy", "xyz"])
def test_a_value_inside_of_base64_is_found(before: str, after: str) -> None:
    """As in `Authorization: Basic …`. At most the bits that it shares with its neighbours remain."""
    key = "0123456789abcdefghijk"
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        told = Redactor({"K": key}).data(b"Basic " + encode(f"{before}{key}{after}".encode()))
        left = told.removeprefix(b"Basic ").replace(b"[redacted:K]", b" ")
        assert b"[redacted:K]" in told
        assert all(key[n : n + 4] not in str(_decoded(part)) for part in left.split() for n in range(len(key) - 4))


def _decoded(part: bytes) -> bytes:
    part = part.rstrip(b"=")
    part = part[: len(part) - (len(part) % 4 == 1)]  # six bits alone are no byte
    return base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_")


def test_short_values_and_other_texts_are_left_alone() -> None:
    redactor = Redactor({"A": "12345", "B": ""})
    assert not redactor
    assert redactor.text("12345") == "12345"
    data = os.urandom(1000)
    assert REDACTOR.data(data) is data


def test_the_longest_secret_is_redacted_first_and_overlaps_are_merged() -> None:
    redactor = Redactor({"SHORT": "secret", "LONG": "secret-of-mine", "OTHER": "mine-and-yours"})
    assert redactor.text("secret-of-mine") == "[redacted:LONG]"
    assert redactor.text("a secret here") == "a [redacted:SHORT] here"
    assert redactor.text("secret-of-mine-and-yours!") == "[redacted:LONG]!"
    assert redactor.text("secretsecret") == "[redacted:SHORT]" * 2


def test_a_secret_that_the_mark_would_spell_is_found_too() -> None:
    for value in ("redacted", "[redacted:NAME]", "abc[redacted", "******"):
        redactor = Redactor({"NAME": value, "x": "123456"})
        clean = redactor.text(f"abc{value}abc123456{value}")
        assert value not in clean
        assert "123456" not in clean


def test_the_lines_of_a_private_key_are_secret_too() -> None:
    lines = ("MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", "BKcwggSjAgEAAoIBAQC7")
    key = "\n".join(["-----BEGIN PRIVATE KEY-----", *lines, "-----END PRIVATE KEY-----", ""])
    redactor = Redactor({"PEM": key})
    assert redactor.text(key) == "[redacted:PEM]"
    assert redactor.text(f"it has {lines[0]} in it") == "it has [redacted:PEM] in it"
    assert redactor.text("-----BEGIN PRIVATE KEY-----") == "-----BEGIN PRIVATE KEY-----"


def test_a_tree_of_data_is_redacted_names_included() -> None:
    assert REDACTOR.tree({KEY: [1, None, {"a": f"x{KEY}"}], "b": (True, "fine")}) == {
        MARK: [1, None, {"a": f"x{MARK}"}],
        "b": [True, "fine"],
    }


# Use few characters, so that secrets overlap themselves, each other and the text around them.
scarce = st.text("ab/\n", min_size=6, max_size=12)
texts = st.lists(st.sampled_from([*"ab/\n"]) | scarce, max_size=30).map("".join)


@given(values=st.lists(scarce, min_size=1, max_size=3), data=st.data(), around=texts)
def test_no_secret_is_left_in_any_surrounding_text(values: list[str], data: st.DataObject, around: str) -> None:
    redactor = Redactor({f"N{n}": value for n, value in enumerate(values)})
    text = around + data.draw(st.sampled_from(values)) + data.draw(texts)
    clean = redactor.text(text)
    assert not any(value in clean for value in values)
    assert redactor.text(clean) == clean


@given(values=st.lists(scarce, min_size=1, max_size=3), text=texts, cuts=st.lists(st.integers(0, 40), max_size=60))
def test_a_stream_cut_anywhere_is_redacted_like_the_whole_text(values: list[str], text: str, cuts: list[int]) -> None:
    redactor = Redactor({f"N{n}": value for n, value in enumerate(values)})
    whole = (text + values[0] + text).encode()
    out: list[bytes] = []
    stream = redactor.stream(out.append)
    rest = whole
    for cut in cuts:
        stream.write(rest[:cut])
        rest = rest[cut:]
    stream.write(rest)
    stream.close()
    assert b"".join(out) == redactor.data(whole)


def test_a_stream_holds_back_no_more_than_a_secret_may_have() -> None:
    out = io.BytesIO()
    stream = Redactor({"A": "aaaaaaaa"}).stream(out.write)
    for _ in range(1000):
        stream.write(b"a" * 100)
        assert len(stream._held) < 100
    stream.write(b"b")
    stream.close()
    assert out.getvalue() == b"[redacted:A]b"


@given(text=st.text())
def test_text_without_a_secret_is_not_changed(text: str) -> None:
    assume("sk-" not in text)
    assert REDACTOR.text(text) == text


# --- logs, errors and tracebacks ---


@pytest.fixture
def redacting() -> Iterator[None]:
    logs.redact_with(REDACTOR.text)
    yield
    logs.redact_with(None)


@pytest.mark.usefixtures("redacting")
@pytest.mark.parametrize("short", [False, True], ids=["json", "text"])
def test_no_log_line_contains_a_secret(short: bool) -> None:
    stream = io.StringIO()
    log = logs.lines("w", lambda: datetime.now(UTC), stream, short=short)
    log("error", f"401: {KEY}", {"job_id": KEY, "event": {"why": [KEY]}, "traceback": f'File "x"\n  {KEY!r}'})
    assert "redacted:OPENAI_API_KEY" in stream.getvalue()
    assert "sk-Ab" not in stream.getvalue()
    if not short:
        assert json.loads(stream.getvalue())["message"] == f"401: {MARK}"


@pytest.mark.usefixtures("redacting")
def test_no_error_message_contains_a_secret() -> None:
    stream = io.StringIO()
    logs.grave_only(stream)("error", f"401: {KEY}", {})
    assert stream.getvalue() == f"farro: 401: {MARK}\n"


def test_no_traceback_contains_a_secret() -> None:
    code = """
        import sys, threading
        from farro.sandbox.redaction import Redactor, guard_tracebacks
        guard_tracebacks(Redactor({"KEY": "canary-0123456789"}))
        def fail():
            raise ValueError("no: canary-0123456789")
        class Late:
            def __del__(self):
                fail()
        thread = threading.Thread(target=fail)
        thread.start(); thread.join()
        Late()
        fail()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "canary" not in done.stdout + done.stderr
    assert done.stderr.count("ValueError: no: [redacted:KEY]") == 3


def test_the_values_of_secret_variables_are_redacted_if_set() -> None:
    redactor = Redactor.of_variables(("A_KEY", "B_TOKEN"), {"A_KEY": "0123456789\n", "OTHER": "abcdefghij"})
    assert redactor.text("0123456789 abcdefghij 0123456789\n") == "[redacted:A_KEY] abcdefghij [redacted:A_KEY]"
    assert not Redactor.of_variables(("A_KEY",), {})


@pytest.mark.parametrize(
    ("provider", "wanted"),
    [
        (ProviderSettings(kind="cli", command=("x",), environment=("A_TOKEN", "HOME")), {"A_TOKEN"}),
        (ProviderSettings(kind="cli", command=("x",), environment=("ACME_*",)), {"ACME_KEY"}),
        (ProviderSettings(kind="openai"), {"OPENAI_API_KEY"}),
        (ProviderSettings(kind="openai", base_url="http://127.0.0.1/v1"), set()),
    ],
)
def test_variables_given_to_a_provider_are_secret(provider: ProviderSettings, wanted: set[str]) -> None:
    """Only variables that a provider gets are secret: others may hold common words, even if they are named keys."""
    environ = dict.fromkeys(("A_TOKEN", "B_TOKEN", "ACME_KEY", "ACME_MODE", "OPENAI_API_KEY", "HOME"), "x")
    assert set(secret_variables(Settings(providers={"p": provider}), environ)) == wanted
