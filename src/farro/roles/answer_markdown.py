"""Answers as Markdown: the result.md that a person reads.

The answers themselves live in `answers`. Their words are Markdown already; diffs and other people's text are fenced.
"""

from __future__ import annotations

import re
from typing import assert_never

from farro.roles.answers import Analysis, CodeChange, Documents, FreeText, Review, ReviewFinding, RoleAnswer


def markdown(role: str, answer: RoleAnswer) -> str:
    """The answer of that role, with a headline of its own."""
    match answer:
        case Analysis():
            parts = [f"# {role}: analysis", answer.analysis]
            for number, draft in enumerate(answer.prompts, start=1):
                onward = draft.routing.next or "Manager"
                parts += [
                    f"## {number}. {draft.role}",
                    draft.rubric,
                    f"- Done when: {_line(draft.success)}\n- May write: {', '.join(map(_code, draft.allowed_paths))}\n"
                    f"- Then: {onward}",
                ]
        case CodeChange():
            parts = [f"# {role}: change", answer.summary]
            if answer.tests:
                parts += ["## Tests", answer.tests]
            if answer.patch:
                parts += ["## Patch", _fenced(answer.patch, "diff")]
        case Review():
            verdict = "approved" if answer.verdict == "approve" else "changes requested"
            parts = [f"# {role}: {verdict}", *([answer.summary] if answer.summary else [])]
            if answer.findings:
                parts += ["## Findings", "\n".join(map(_finding, answer.findings))]
        case Documents():
            parts = [f"# {role}: documents", answer.summary]
            for document in answer.documents:
                parts.append(f"## {_code(document.path)}")
                parts.append("Written in place." if document.text is None else _fenced(document.text, "markdown"))
        case FreeText():
            parts = [answer.text]
        case _:
            assert_never(answer)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _finding(finding: ReviewFinding) -> str:
    place = "" if finding.path is None else finding.path if finding.line is None else f"{finding.path}:{finding.line}"
    head = " ".join(
        part for part in (f"**{finding.severity}**" if finding.severity else "", place and _code(place)) if part
    )
    message = finding.message.strip().replace("\n", "\n  ")
    return f"- {head}: {message}" if head else f"- {message}"


def _line(text: str) -> str:
    return " ".join(text.split())


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"


def _fenced(text: str, word: str) -> str:
    """In a fence that is longer than any in the text."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{word}\n{text.rstrip(chr(10))}\n{fence}"
