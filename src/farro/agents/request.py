"""What an agent is told: its policies, the prompt, what earlier hops found, as the text of a request.

Text only: reading the files lives in material, asking lives in answering.

The prompt's own words come as they are, under headings of farro's; whatever they say, what the agent may touch is kept
by the sandbox, not by this text.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from typing import Any, BinaryIO

from farro.config.settings import RoleSettings
from farro.documents import Document
from farro.execution import task_snapshot
from farro.execution.runner import Work
from farro.execution.size_limit import SNAPSHOT
from farro.execution.tools import StepFailure
from farro.host import fs
from farro.lazy_dataclass import dataclass
from farro.plans.model import Plan
from farro.roles import answers, policy
from farro.roles import prompt as prompts
from farro.roles.task import TaskText

PAYLOAD_VARIABLE = "FARRO_PAYLOAD"  # the variable with the folder of the job's payload
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


def system_text(material: RequestMaterial) -> str:
    """The policy, and the form of the answer."""
    parts = [*(text.strip() for text in material.policies), material.instructions.strip()]
    return "\n\n".join(part for part in parts if part) + "\n"


def user_text(material: RequestMaterial) -> str:
    """The request itself."""
    sections = [
        ("Your task", material.task),
        ("What has to change", material.changes),
        ("It is a success when", material.success),
        ("Where you may write", _paths(material)),
        ("Inputs", "" if not material.inputs else json.dumps(material.inputs, indent=2, ensure_ascii=False)),
        ("What it is part of", material.background),
        ("Context", material.narrative),
        ("Files that came with the job", _payload_list(material)),
        *((f"File {one.name}", one.text) for one in material.payload if one.text is not None),
        *((f"What {one.role} found before you", one.text) for one in material.earlier),
        ("Input", material.input_text),
    ]
    return "\n\n".join(f"# {title}\n\n{text.strip()}" for title, text in sections if text.strip()) + "\n"


def repair_text(problems: Sequence[str]) -> str:
    """What an agent is told whose answer has not the form that was asked for."""
    listed = "\n".join(f"- {problem}" for problem in problems)
    return (
        f"Your answer could not be read:\n\n{listed}\n\nAnswer again, whole, in the form that was asked for, and with "
        "nothing else around it.\n"
    )


def _payload_list(material: RequestMaterial) -> str:
    """Their names. Where they lie is told to programs by the environment: it is another place in each attempt, and the
    same question must stay the same text."""
    if not material.payload:
        return ""
    names = (f"- {one.name}{': below' if one.text is not None else ''}" for one in material.payload)
    listed = "\n".join(names)
    return f"{listed}\n\nA program finds them in the folder that the variable {PAYLOAD_VARIABLE} names."


def _paths(material: RequestMaterial) -> str:
    if material.read_only:
        return "Nowhere: this role only reads."
    return "\n".join(f"- {path}" for path in material.allowed_paths)


_TEXT = 1 << 20  # bytes of prompt.md and of an input
_EARLIER = 256 << 10  # … of what one earlier hop found
_FILE = 256 << 10  # … of one file of the payload
PAYLOAD = "payload"


def gather(
    work: Work, plan: Plan, settings: RoleSettings, *, name: str, args: Sequence[str], stdin: BinaryIO
) -> RequestMaterial:
    """Everything that the step's request is made of."""
    job = job_folder(work)
    shared: dict[str, Any] = {
        "role": name,
        "policies": tuple(_policies(work.folder, policy.file_of(name, work.role))),
        "instructions": answers.instructions(name),
        "allowed_paths": plan.allowed_paths or (),
        "read_only": settings.read_only,
        "payload": tuple(_payload_files(job)),
        "input_text": _decoded(stdin.read(_TEXT + 1), "stdin"),
    }
    if not prompts.is_agent_prompt(work.prompt):
        return RequestMaterial(**shared, task="\n".join(args) or "Work on the input.")
    asked = prompts.load(Document(work.prompt, "prompt.json"))
    shared |= {
        "task": asked.rubric,
        "success": asked.success,
        "inputs": asked.inputs,
        "narrative": _narrative(job, asked.context_md),
        "earlier": tuple(_earlier(work.previous)),
        "changes": work.note,
    }
    return RequestMaterial(**{**shared, **_of_task(job, work, asked)})


def _of_task(job: str, work: Work, asked: prompts.AgentPrompt) -> dict[str, Any]:
    """What the task says of this hop, instead of what the prompt says: the prompt is the first role's alone."""
    task = task_snapshot.kept(job)
    if task is None:
        return {}
    if isinstance(task, TaskText):
        return {"background": task.text}
    step = work.step if work.step is not None else 0 if task.workflow[0].role == work.role else None
    own = work.step is None  # the first role, which the prompt was written for
    background = "\n\n".join(part for part in (task.title, task.description) if part)
    inputs = {**task.inputs, **asked.inputs}
    if step is None or task.workflow[step].role != work.role:  # sent here by a person, outside of the workflow
        return {"background": background, "inputs": inputs}
    hop = task.workflow[step]
    rubric = hop.rubric if not own or asked.rubric.strip() == hop.rubric.strip() else f"{asked.rubric}\n\n{hop.rubric}"
    return {
        "task": rubric,
        "success": hop.success or task.success or asked.success,
        "allowed_paths": hop.allowed_paths or task.allowed_paths or asked.allowed_paths,
        "background": background,
        "inputs": inputs,
    }


def job_folder(work: Work) -> str:
    return work.folder.rsplit("/", 2)[0]


def _policies(attempt: str, own: str) -> list[str]:
    found = []
    for name in ("AGENTS.md", own):
        text = _text(f"{attempt}/{SNAPSHOT}/{name}", _TEXT)
        if text is not None:
            found.append(policy.read(text, name).text)
    return found


def _narrative(job: str, context_md: str | None) -> str:
    """prompt.md, under whatever name the prompt calls it. Named and not there: the agent would work without what it
    was to read, so it does not work."""
    text = _text(f"{job}/prompt.md", _TEXT)
    if text is None and context_md is not None:
        raise StepFailure("bad_prompt", f"context_md names {context_md}, and the job has no prompt.md")
    return text or ""


def _payload_files(job: str) -> list[PayloadFile]:
    """Text comes with the words: a model over HTTP opens no file."""
    try:
        names = sorted(fs.listdir(f"{job}/{PAYLOAD}"))
    except FileNotFoundError:
        return []
    found, room = [], _TEXT
    for name in names:
        text = _if_text(f"{job}/{PAYLOAD}/{name}", min(_FILE, room))
        room -= len((text or "").encode())
        found.append(PayloadFile(name=name, text=text))
    return found


def _if_text(path: str, limit: int) -> str | None:
    """None: it is another kind of file, or too large to be told."""
    try:
        data = fs.read_bytes(path, limit)
        return None if len(data) > limit or b"\0" in data else data.decode()
    except (OSError, UnicodeDecodeError):
        return None


def _earlier(previous: Sequence[tuple[str, str]]) -> list[EarlierResult]:
    found = []
    for role, folder in previous:
        text = _text(f"{folder}/result.md", _EARLIER)
        if text:
            found.append(EarlierResult(role=role, text=text))
    return found


def _text(path: str, limit: int) -> str | None:
    """A regular file, not a link, not a pipe: one that somebody planted must not be told to a provider."""
    try:
        data = fs.read_bytes(path, limit)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ELOOP, errno.ENXIO):
            raise
        raise StepFailure("bad_prompt", f"{os.path.basename(path)} is not an ordinary file") from error
    return _decoded(data[: limit + 1], os.path.basename(path), limit)


def _decoded(data: bytes, name: str, limit: int = _TEXT) -> str:
    text = data[:limit].decode("utf-8", "replace")
    return text if len(data) <= limit else text + CUT.format(size=f"more than {limit}", path=name)
