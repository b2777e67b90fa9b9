"""Answer Tab without click, whose import takes longer than everything else: names of commands and of jobs.

Only plain lines are answered here, in the form of click's own answers; any other one is left to click.
[test_a_plain_line_is_completed_as_click_completes_it]
"""

from __future__ import annotations

import os
import sys
from itertools import islice

from farro.cli.commands import COMMANDS, HELP
from farro.cli.offered_names import OFFERED, job_names
from farro.config import root_search

TYPE_CHECKING = False  # not imported from typing, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Mapping

# The commands whose first argument is a job.
_LOOK = frozenset(("show", "logs", "wait", "watch", "explain", "history", "costs"))
_STEER = frozenset(("kill", "retry", "requeue", "force-complete", "approve", "refuse", "edit", "route"))
OF_A_JOB = _LOOK | _STEER


def run() -> int | None:
    """Print the completions that a shell asks for and return the exit code; None where that is left to click."""
    shell = os.environ["_FARRO_COMPLETE"].removesuffix("_complete")
    asked = _asked(shell, os.environ)
    found = None if asked is None else _found(*asked)
    if found is None:
        return None
    sys.stdout.write("\n".join(_line(shell, name, text) for name, text in found.items()) + "\n")
    return 0


def _asked(shell: str, environ: Mapping[str, str]) -> tuple[list[str], str] | None:
    """Return the words before the cursor, and the one that is being written; None for a line that is not plain."""
    line, cursor = environ.get("COMP_WORDS", ""), environ.get("COMP_CWORD", "")
    if any(character in line for character in "'\"\\"):
        return None
    words = line.split()
    if shell == "fish":
        before = words[1:]
        return (before[:-1] if cursor and before and before[-1] == cursor else before), cursor
    if shell not in ("bash", "zsh") or not cursor.isdecimal() or int(cursor) < 1:
        return None
    at = int(cursor)
    return words[1:at], words[at] if at < len(words) else ""


def _found(before: list[str], begun: str) -> Mapping[str, str] | None:
    """Return the words that may follow, and what they do, where that is known here."""
    if begun.startswith("-"):
        return None
    if not before:
        return {name: HELP[name] for name in COMMANDS if name.startswith(begun)}
    if len(before) > 1 or before[0] not in OF_A_JOB:
        return None
    try:
        root = root_search.search(None, own=True)
    except OSError:  # the current folder is gone
        root = None
    jobs = () if root is None else (name for name in job_names(root) if name.startswith(begun))
    return dict.fromkeys(islice(jobs, OFFERED), "")


def _line(shell: str, name: str, text: str) -> str:
    if shell == "zsh":
        return f"plain\n{name}\n{text or '_'}"
    return f"plain,{name}\t{text}" if shell == "fish" and text else f"plain,{name}"
