"""Build the text of an agent step's request: policies, prompt, payload, task, results of earlier hops.

Files are opened beneath the job without following links, and are cut at a limit. Texts of the prompt come unchanged
under farro's headings; whatever they say, the sandbox limits what the agent may touch.
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

PAYLOAD_VARIABLE = "FARRO_PAYLOAD"  # the variable that holds the folder of the job's payload
CUT = "\n[… cut: the whole is {size} bytes, in {path}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierResult:
    """The result of an earlier hop."""

    role: str
    text: str  # its result.md


@dataclass(frozen=True, kw_only=True, slots=True)
class PayloadFile:
    """A file of the job's payload."""

    name: str
    text: str | None  # None: not a text, or too large


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestMaterial:
    """Everything that a request is made of."""

    role: str
    policies: tuple[str, ...]  # AGENTS.md and AGENTS-ROLE.md, without their headers
    instructions: str  # the expected form of the answer
    task: str  # the rubric, or the arguments of a plan's agent step
    success: str = ""
    allowed_paths: tuple[str, ...] = ()
    read_only: bool = False
    inputs: Any = None
    narrative: str = ""  # prompt.md
    payload: tuple[PayloadFile, ...] = ()
    earlier: Sequence[EarlierResult] = ()
    input_text: str = ""  # the output of the step before
    background: str = ""  # the task of the workflow
    changes: str = ""  # why the job came back: a review's findings, or a person's note


def system_text(material: RequestMaterial) -> str:
    """Return the system message: the policies and the form of the answer."""
    parts = [*(text.strip() for text in material.policies), material.instructions.strip()]
    return "\n\n".join(part for part in parts if part) + "\n"


def user_text(material: RequestMaterial) -> str:
    """Return the user message."""
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
    """Return the message that asks again after an answer of the wrong form."""
    listed = "\n".join(f"- {problem}" for problem in problems)
    return (
        f"Your answer could not be read:\n\n{listed}\n\nAnswer again, whole, in the form that was asked for, and with "
        "nothing else around it.\n"
    )


def _payload_list(material: RequestMaterial) -> str:
    """List the names of the payload's files.

    Programs learn their folder from the environment: it differs between attempts, and the same question must stay the
    same text.
    """
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
_EARLIER = 256 << 10  # bytes of one earlier result
_FILE = 256 << 10  # bytes of one file of the payload
PAYLOAD = "payload"


def gather(
    work: Work, plan: Plan, settings: RoleSettings, *, name: str, args: Sequence[str], stdin: BinaryIO
) -> RequestMaterial:
    """Collect everything that the step's request is made of."""
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
    """Return what the task says about this hop; it replaces the prompt, which is for the first role only."""
    task = task_snapshot.kept(job)
    if task is None:
        return {}
    if isinstance(task, TaskText):
        return {"background": task.text}
    step = work.step if work.step is not None else 0 if task.workflow[0].role == work.role else None
    own = work.step is None  # the first role, for which the prompt was written
    background = "\n\n".join(part for part in (task.title, task.description) if part)
    inputs = {**task.inputs, **asked.inputs}
    if step is None or task.workflow[step].role != work.role:  # a person sent it here, outside of the workflow
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
    """Read prompt.md, under whatever name the prompt calls it.

    If the prompt names it and it is missing, the step fails: the agent would work without what it should read.
    """
    text = _text(f"{job}/prompt.md", _TEXT)
    if text is None and context_md is not None:
        raise StepFailure("bad_prompt", f"context_md names {context_md}, and the job has no prompt.md")
    return text or ""


def _payload_files(job: str) -> list[PayloadFile]:
    """Read the payload's files. Text goes into the request, because a model over HTTP opens no files."""
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
    """Return the text of a file; None if it is not a text, or too large."""
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
    """Read a regular file. A link or a pipe that a job planted must not be sent to a provider."""
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
