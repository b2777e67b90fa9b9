"""Warn about what is valid in a plan but probably not meant. `farro plan lint` prints it; it never refuses a plan."""

from __future__ import annotations

import re
from collections.abc import Iterator

from farro.documents import show
from farro.plans.actions import PLACEHOLDER
from farro.plans.forms import Fault
from farro.plans.graph import together
from farro.plans.model import Plan, Step

_PIPE = frozenset({"|", "|&"})
_JOINED = frozenset({"&&", "||", ";", "&"})
_REDIRECTED = re.compile(r"(?:[12&]?>{1,2}|<{1,3})|[12&]?>{1,2}[\w./~&-][^\s=]*")
_VARIABLE = re.compile(r"\$(?:[A-Z_][A-Z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})(?:/.*)?|\$\(.*\)|`.+`", re.DOTALL)
_PATTERN = re.compile(r"[\w./-]*\*[\w./*-]*")
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh"})
_EMPTIED = re.compile(r"(?<![>&])>\|?\s*/dev/(?:stdout|stderr|fd/[12])\b|\btee\s+/dev/(?:stdout|stderr)\b")
# Programs that interpret such words themselves: no warning is needed.
_READS_SIGNS = frozenset(
    {"expr", "test", "[", "find", "echo", "printf", "awk", "sed", "grep", "jq", "sh", "bash", "zsh"}
)
_READS_VARIABLES = _READS_SIGNS | {"envsubst", "perl", "python", "python3", "env", "make", "xargs", "docker", "ssh"}
_WANTS_FILES = frozenset(
    {"ls", "rm", "cp", "mv", "cat", "wc", "head", "tail", "du", "chmod", "chown", "touch", "md5sum"}
)
_SCRIPTED = re.compile(rf"{'|'.join(sorted(_SHELLS))}|python[0-9.]*|perl|ruby|node")
_SCRIPT_FOLLOWS = re.compile(r"-[a-zA-Z]*[ce]")  # sh -c, bash -ec, perl -e
_SHELL_ONLY = {
    "cd": "changes the folder of that step alone; say `cwd` in the steps that shall run there",
    "export": "sets nothing for other steps; say `env` in the steps that need it",
    "source": "is a word of the shell, not a program; run sh -c, with the script as one argument",
    ".": "is a word of the shell, not a program; run sh -c, with the script as one argument",
    "alias": "is a word of the shell, not a program",
    "set": "is a word of the shell, not a program",
    "umask": "changes the mask of that step alone",
}


def suspicions(plan: Plan) -> Iterator[Fault]:
    """Yield each warning with its path in the normal shape, in plan order."""
    if plan.parallel > 1 and together(plan) == 1:
        alone = "there is but one step" if len(plan.steps) == 1 else "every step waits for the one before it"
        yield ("parallel",), f"{plan.parallel} is of no use: {alone}"
    for index, step in enumerate(plan.steps):
        at = ("steps", index)
        if step.tool == "unix":
            if (why := _SHELL_ONLY.get(step.command)) is not None:
                yield (*at, "command"), f"{step.command} {why}"
            if (place := _filled_in_script(step)) is not None:
                message = (
                    "each input becomes a part of this script, and may be commands; hand it over as an argument "
                    "behind it, as in sh -c 'echo \"$1\"' sh '{{input.field}}'"
                )
                yield (*at, "args", place), message
            for place, word in enumerate(step.args):
                if (why := _shell_word(step, word)) is not None:
                    yield (*at, "args", place), f"{show(word)} {why}"
        if step.retry_delay and not step.retries:
            yield (*at, "retry_delay"), "is of no use without `retries`: the step is tried once"
        if plan.timeout is not None and step.timeout is not None and step.timeout > plan.timeout:
            message = f"{step.timeout:g} s is more than the whole plan may take ({plan.timeout:g} s)"
            yield (*at, "timeout"), message


def _filled_in_script(step: Step) -> int | None:
    """Return the argument that is a script with placeholders of an action's inputs."""
    if _SCRIPTED.fullmatch(step.command.rsplit("/", 1)[-1]):
        for place, word in enumerate(step.args[1:], 1):
            if _SCRIPT_FOLLOWS.fullmatch(step.args[place - 1]) and PLACEHOLDER.search(word):
                return place
    return None


def _shell_word(step: Step, word: str) -> str | None:
    """Say why this argument does not do what it would in a shell: farro passes it unchanged."""
    command = step.command.rsplit("/", 1)[-1]
    if command in _SHELLS and (emptied := _EMPTIED.search(word)):
        instead = "tee -a" if emptied[0].startswith("tee") else ">&1 or >&2"
        return f"empties, with {emptied[0]}, what the step has said before: its output is a file; write {instead}"
    if command not in _READS_SIGNS:
        if word in _PIPE:
            return "is handed over as text, for there is no shell; make what follows a step with input_from_step"
        if word in _JOINED:
            return "is handed over as text, for there is no shell; make what follows a step of its own"
        if _REDIRECTED.fullmatch(word):
            return "is handed over as text, for there is no shell; a step's output is kept, or run sh -c"
    if command not in _READS_VARIABLES and _VARIABLE.fullmatch(word):
        return "is handed over as text, for there is no shell; write the value, or run sh -c"
    if word.startswith("~/"):
        return "is handed over as text, for there is no shell; write the whole path"
    if command in _WANTS_FILES and _PATTERN.fullmatch(word):
        return "is handed over as text, for there is no shell; name the files, or run sh -c"
    return None
