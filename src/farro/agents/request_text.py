"""What an agent is told: its policies, the prompt, what earlier hops found, as the text of a request.

Text only: reading the files lives in material, asking lives in answering.

The prompt's own words come as they are, under headings of farro's; whatever they say, what the agent may touch is kept
by the sandbox, not by this text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from farro.lazy_dataclass import dataclass

PAYLOAD = "FARRO_PAYLOAD"  # the variable with the folder of the job's payload
CUT = "\n[… cut: the whole is {size} bytes, in {path}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierResult:
    """What an earlier hop left."""

    role: str
    text: str  # its result.md


@dataclass(frozen=True, kw_only=True, slots=True)
class PayloadFile:
    """A file of the job's payload."""

    name: str
    text: str | None  # None: it is not text, or there was no room for it


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestMaterial:
    """All that a request is made of."""

    role: str
    policies: tuple[str, ...]  # AGENTS.md and AGENTS-ROLE.md, without their headers
    instructions: str  # the form of the answer
    task: str  # the rubric, or what a plan's agent step says
    success: str = ""
    allowed_paths: tuple[str, ...] = ()
    read_only: bool = False
    inputs: Any = None
    narrative: str = ""  # prompt.md
    payload: tuple[PayloadFile, ...] = ()
    earlier: Sequence[EarlierResult] = ()
    input_text: str = ""  # what the step before said
    background: str = ""  # the task that this is a step of
    changes: str = ""  # why it came back: a review's findings, a person's words


def system(material: RequestMaterial) -> str:
    """The policy, and the form of the answer."""
    parts = [*(text.strip() for text in material.policies), material.instructions.strip()]
    return "\n\n".join(part for part in parts if part) + "\n"


def user(material: RequestMaterial) -> str:
    """The request itself."""
    sections = [
        ("Your task", material.task),
        ("What has to change", material.changes),
        ("It is a success when", material.success),
        ("Where you may write", _paths(material)),
        ("Inputs", "" if not material.inputs else json.dumps(material.inputs, indent=2, ensure_ascii=False)),
        ("What it is part of", material.background),
        ("Context", material.narrative),
        ("Files that came with the job", _payload(material)),
        *((f"File {one.name}", one.text) for one in material.payload if one.text is not None),
        *((f"What {one.role} found before you", one.text) for one in material.earlier),
        ("Input", material.input_text),
    ]
    return "\n\n".join(f"# {title}\n\n{text.strip()}" for title, text in sections if text.strip()) + "\n"


def repair(problems: Sequence[str]) -> str:
    """What an agent is told whose answer has not the form that was asked for."""
    listed = "\n".join(f"- {problem}" for problem in problems)
    return (
        f"Your answer could not be read:\n\n{listed}\n\nAnswer again, whole, in the form that was asked for, and with "
        "nothing else around it.\n"
    )


def _payload(material: RequestMaterial) -> str:
    """Their names. Where they lie is told to programs by the environment: it is another place in each attempt, and the
    same question must stay the same text."""
    if not material.payload:
        return ""
    names = (f"- {one.name}{': below' if one.text is not None else ''}" for one in material.payload)
    listed = "\n".join(names)
    return f"{listed}\n\nA program finds them in the folder that the variable {PAYLOAD} names."


def _paths(material: RequestMaterial) -> str:
    if material.read_only:
        return "Nowhere: this role only reads."
    return "\n".join(f"- {path}" for path in material.allowed_paths)
