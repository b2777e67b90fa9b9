"""Parse a typed command: words, quotes and pipes. Other shell features are refused with advice."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.agx import command_text
from farro.errors import InputError

TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=20)


def commands(text: str) -> list[list[str]]:
    return [list(command) for command in command_text.line(text).commands]


def test_a_pipe_is_several_commands() -> None:
    assert commands("sort names.txt | uniq -c|head -1") == [["sort", "names.txt"], ["uniq", "-c"], ["head", "-1"]]


def test_quotes_and_backslashes_are_read_as_a_shell_reads_them() -> None:
    assert commands(r"""grep 'a b' "c \"d\" \$e" f\ g '' "" x'y'"z" """) == [
        ["grep", "a b", 'c "d" $e', "f g", "", "", "xyz"]
    ]


def test_operators_inside_quotes_are_text() -> None:
    assert commands("grep '|' \">\" '&&' '$(x)' \\;") == [["grep", "|", ">", "&&", "$(x)", ";"]]


def test_a_line_that_begins_with_a_pipe_reads_the_step_before_it() -> None:
    read = command_text.line("| head -3")
    assert read.reads_last
    assert read.commands == (("head", "-3"),)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("make && make test", "a step of its own"),
        ("make; make test", "a step of its own"),
        ("make\nmake test", "a step of its own"),
        ("make || true", "ok_exit_codes"),
        ("make &", "parallel"),
        ("sort a > b", "tee FILE"),
        ("sort a >> b", "tee FILE"),
        ("sort a 2>/dev/null", "tee FILE"),
        ("sort a &> b", "tee FILE"),
        ("sort < a", "cat FILE"),
        ("cat <<EOF", "cat FILE"),
        ("echo $(date)", "sh -c"),
        ('echo "$(date)"', "sh -c"),
        ("echo `date`", "sh -c"),
        ("(cd x)", "sh -c"),
        ("a |& b", "stderr"),
    ],
)
def test_shell_features_are_refused_with_advice(text: str, advice: str) -> None:
    with pytest.raises(InputError) as refused:
        command_text.line(text)
    assert advice in str(refused.value)


@pytest.mark.parametrize("text", ["", "|", "a |", "a | | b", "''", "   "])
def test_missing_command_is_reported(text: str) -> None:
    with pytest.raises(InputError):
        command_text.line(text)


@pytest.mark.parametrize("text", ["echo 'a", 'echo "a', "echo a\\"])
def test_unclosed_quote_or_escape_is_reported(text: str) -> None:
    with pytest.raises(InputError):
        command_text.line(text)


def test_words_from_a_real_shell_are_not_parsed_again() -> None:
    """The shell has parsed the quotes already, so operators inside a word are text."""
    assert command_text.typed(["grep", "-c", "a > b", "*.txt"]).commands == (("grep", "-c", "a > b", "*.txt"),)
    assert command_text.typed(["sort", "|", "uniq"]).commands == (("sort",), ("uniq",))


def test_operator_as_a_separate_word_is_refused_unless_literal() -> None:
    with pytest.raises(InputError, match="--literal"):
        command_text.typed(["echo", ">"])
    assert command_text.typed(["echo", ">", "|"], literal=True).commands == (("echo", ">", "|"),)


@given(st.lists(TEXT.filter(lambda word: word.strip() != ""), min_size=1, max_size=5))
def test_quoting_round_trips(typed: list[str]) -> None:
    assert commands(shlex.join(typed)) == [typed]


@given(st.text(max_size=60))
def test_any_text_yields_commands_or_a_refusal(text: str) -> None:
    try:
        read = command_text.line(text)
    except InputError:
        return
    assert read.commands
    assert all(command and command[0] for command in read.commands)
