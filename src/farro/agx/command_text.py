"""Parse a typed command into one program, or several joined by pipes. No shell is involved.

Shell features beyond quotes and pipes (redirections, `&&`, substitutions) are refused with what to do instead; words
that a shell would expand (`*.txt`, `$HOME`) get a warning from lint.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from farro.errors import InputError
from farro.lazy_dataclass import dataclass

PIPE = "|"
_SPACE = " \t\n\r"
_NEXT = "steps run one after the other, and only while all goes well: add what follows as a step of its own"
_ADVICE = {
    "&&": _NEXT,
    ";": _NEXT,
    "||": "a failed step ends the plan; where failing is fine, say which `ok_exit_codes` are (`agx edit`)",
    "&": "to let steps run together set `parallel` (`agx edit`)",
    "|&": "stderr is kept apart from stdout; write | to hand stdout on",
    ">": "what a step says is kept with its job (`agx job stdout JOB`); to write a file, end the pipe with `tee FILE`",
    "<": "begin with `cat FILE |`, or pipe the file into `agx submit`",
    "(": "there are no subshells; run sh -c, with the script as one argument",
    "$(": "nothing is filled in; let one step read another's output, or run sh -c, with the script as one argument",
    "`": "nothing is filled in; let one step read another's output, or run sh -c, with the script as one argument",
}
_ADVICE[")"] = _ADVICE["("]
_SIGN = re.compile(r"\|\||\|&|\||&&|&>>?|&|;|<<?<?|>>|>&|>\||>|\(|\)")
_SIGNS = re.compile(r"(?:\d*(?:>>|>&|>|<<?<?)&?\d*|\|\||\|&|&&|&>>?|&|;)")  # an operator as a separate word


@dataclass(frozen=True, kw_only=True, slots=True)
class Typed:
    """Programs with their arguments; each reads the output of the one before it."""

    commands: tuple[tuple[str, ...], ...]
    reads_last: bool = False  # it began with a pipe: the first program reads the last existing step


def typed(words: Sequence[str], *, literal: bool = False) -> Typed:
    """Parse the words after `--`. One word with spaces is a quoted line; otherwise each word is an argument, and only
    a | between words joins programs. With `literal` all words belong to one program."""
    if literal:
        return Typed(commands=(tuple(words),))
    if len(words) == 1 and any(space in words[0] for space in _SPACE):
        return line(words[0])
    for word in words:
        if _SIGNS.fullmatch(word) is not None:
            raise _refused(word, " (--literal hands over the word itself)")
    return _joined([None if word == PIPE else word for word in words])


def line(text: str) -> Typed:
    """Parse a line, with quotes and backslashes as in a shell."""
    return _joined(_tokens(text))


def _joined(tokens: Sequence[str | None]) -> Typed:
    """`None` is a pipe."""
    commands: list[list[str]] = [[]]
    for token in tokens:
        if token is None:
            commands.append([])
        else:
            commands[-1].append(token)
    reads_last = len(commands) > 1 and not commands[0]
    if reads_last:
        del commands[0]
    for place, command in enumerate(commands):
        if not command:
            beside = "after the last |" if place == len(commands) - 1 else "between two |"
            raise InputError(f"there is no command {beside}" if len(commands) > 1 else "there is no command")
        if not command[0]:
            raise InputError("a command is the name of a program; this one is empty")
    return Typed(commands=tuple(map(tuple, commands)), reads_last=reads_last)


def _tokens(text: str) -> list[str | None]:
    found: list[str | None] = []
    word: str | None = None  # the current word; "" is a word when it was quoted
    place = 0
    while place < len(text):
        char = text[place]
        if char in _SPACE:
            if char == "\n" and text[place:].strip() and (found or word is not None):
                raise _refused(";", " (a line's end is the same)")
            if word is not None:
                found.append(word)
            word, place = None, place + 1
        elif char in "'\"":
            inside, place = _quoted(text, place)
            word = (word or "") + inside
        elif char == "\\":
            if place + 1 == len(text):
                raise InputError("the line ends with a backslash, which nothing follows")
            word, place = (word or "") + text[place + 1].replace("\n", ""), place + 2
        elif text.startswith("$(", place) or char == "`":
            raise _refused("`" if char == "`" else "$(")
        elif sign := _SIGN.match(text, place):
            if sign[0] != PIPE:
                raise _refused(sign[0])
            if word is not None:
                found.append(word)
            found.append(None)
            word, place = None, sign.end()
        else:
            word, place = (word or "") + char, place + 1
    return found if word is None else [*found, word]


def _quoted(text: str, place: int) -> tuple[str, int]:
    """Return the quoted text and the position behind it."""
    quote = text[place]
    inside, at = "", place + 1
    while at < len(text) and text[at] != quote:
        char = text[at]
        if quote == '"' and char == "\\" and text[at + 1 : at + 2] in ("\\", '"', "$", "`", "\n"):
            inside, at = inside + text[at + 1].replace("\n", ""), at + 2
            continue
        if quote == '"' and (char == "`" or text.startswith("$(", at)):
            raise _refused("`" if char == "`" else "$(", " (in '…' it is text)")
        inside, at = inside + char, at + 1
    if at == len(text):
        raise OpenQuote(f"a {quote} is not closed")
    return inside, at + 1


class OpenQuote(InputError):
    """The line ends inside quotes; more may follow."""


def _refused(sign: str, more: str = "") -> InputError:
    bare = sign.strip("0123456789")
    advice = next((_ADVICE[known] for known in (bare, bare[:2], bare[:1]) if known in _ADVICE), _ADVICE[">"])
    if bare.startswith("&>"):
        advice = _ADVICE[">"]
    return InputError(f"`{sign}` is a sign of the shell, and no shell runs a step{more}: {advice}")
