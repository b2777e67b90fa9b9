"""What comes with an agent prompt: its narrative, the files of its payload, and the task that it belongs to.

The prompt's own rules live in roles.prompt, queueing in submit, the names inside a job in the store.

Files are opened without following links and judged by what was opened, so that nothing can be put in their place
between the look and the reading. Their bytes are copied: a hard link brings its content, and no tie to the file.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from farro import documents
from farro.config.settings import SecuritySettings
from farro.documents import Document, canonical
from farro.errors import BadDocument, InputError, Refused
from farro.host import fs
from farro.lazy_dataclass import dataclass, field
from farro.plans.model import ID_PATTERN
from farro.roles import task as tasks
from farro.roles.prompt import CONTEXT, FILE_NAME
from farro.store.port import Submission

MAX_NARRATIVE = 1 << 20  # as much as a prompt may have: an agent is to read it

_NOT_A_TASK = "README"


@dataclass(frozen=True, kw_only=True, slots=True)
class Enclosures:
    narrative: str | None = None
    payload: dict[str, bytes] = field(default_factory=dict)
    task_id: str | None = None


def collect(
    document: Document,
    *,
    folder: str | None,
    context_md: str | None,
    payload: Sequence[str],
    task: str | None,
    root: str,
    roles: Sequence[str],
    security: SecuritySettings,
) -> Enclosures:
    """Everything that the options and the prompt name. InputError: something cannot be taken; Refused: the config does
    not allow it. All of it is told at once. `folder`: where the prompt's file lies; None: it came from elsewhere."""
    wrong: list[str] = []
    against: list[str] = []
    task_id = None if task is None else _task(document, task, root, roles, security, wrong)
    room = security.max_job_bytes - len(canonical(document.data))
    narrative = _narrative(document, folder, context_md, room, wrong)
    room -= len((narrative or "").encode())
    files = _payload(payload, room, security, wrong, against)
    if wrong:
        raise InputError("\n".join([*wrong, *against]))
    if against:
        raise Refused("\n".join(against))
    return Enclosures(narrative=narrative, payload=files, task_id=task_id)


def enclosed(submission: Submission, with_: Enclosures) -> Submission:
    """The submission with what comes along."""
    prompt: dict[str, Any] = dict(submission.prompt)
    if with_.narrative is not None:
        prompt["context_md"] = CONTEXT
    if with_.task_id is not None:
        prompt["inputs"] = {**prompt.get("inputs", {}), "task_id": with_.task_id}
    return replace(submission, prompt=prompt, narrative=with_.narrative, payload=with_.payload)


def _narrative(
    document: Document, folder: str | None, context_md: str | None, room: int, wrong: list[str]
) -> str | None:
    """The file of --context-md, else the one beside the prompt that it names."""
    named = document.data.get("context_md")
    if context_md is None and not isinstance(named, str):
        return None
    if context_md is not None:
        path, told = context_md, f"--context-md: {context_md}"
    elif folder is None:
        message = "names a file, and a prompt from standard input lies beside none; name it with --context-md"
        wrong.append(_rendered(document, ("context_md",), message))
        return None
    else:
        path, told = f"{folder}/{named}", _rendered(document, ("context_md",), f"{folder}/{named}")
    limit = max(0, min(room, MAX_NARRATIVE))
    data = _contents(path, told, limit, wrong)
    if data is None:
        return None
    if len(data) > limit:
        wrong.append(f"{told}: is larger than {limit} bytes, the most that a narrative may have here")
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        wrong.append(f"{told}: is not UTF-8 text")
        return None


def _payload(
    paths: Sequence[str], room: int, security: SecuritySettings, wrong: list[str], against: list[str]
) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    endings = tuple(ending.lower() for ending in security.payload_allowlist)
    for path in paths:
        told, name = f"--payload: {path}", os.path.basename(path)
        if re.fullmatch(FILE_NAME, name) is None or name.startswith("_"):
            wrong.append(f"{told}: is not a plain file name of A-Z a-z 0-9 . _ -; rename it")
        elif name in found:
            wrong.append(f"{told}: another file of the payload is called {name}, too; rename one")
        elif not name.lower().endswith(endings):
            against.append(f"{told}: its ending is not allowed; security.payload_allowlist has {', '.join(endings)}")
        elif (data := _contents(path, told, max(room, 0), wrong)) is not None:
            found[name] = data
            room -= len(data)
            if room < 0:
                message = f"a job may have {security.max_job_bytes} bytes in all (security.max_job_bytes)"
                against.append(f"{told}: is too large: {message}")
                break
    return found


def _contents(path: str, told: str, limit: int, wrong: list[str]) -> bytes | None:
    try:
        return fs.read_bytes(path, limit)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        number = error.errno if isinstance(error, OSError) else None
        if number == errno.ELOOP:
            why = "is a link; name the file itself"
        elif number == errno.EINVAL:
            why = "is not a regular file"
        else:
            why = f"cannot be read: {error.strerror if isinstance(error, OSError) else error}"
        wrong.append(f"{told}: {why}")
        return None


def _task(
    document: Document, named: str, root: str, roles: Sequence[str], security: SecuritySettings, wrong: list[str]
) -> str | None:
    """The id of the task that --task names: an id, or the path of its file with or without the ending."""
    folder, name = os.path.split(named)
    task_id = re.sub(r"\.(json|md)\Z", "", name)
    places = {os.path.realpath(f"{root}/tasks")}
    if folder and not {os.path.realpath(folder), os.path.realpath(os.path.join(root, folder))} & places:
        wrong.append(f"--task: {named}: is not in {root}/tasks, where tasks are kept")
        return None
    if re.fullmatch(ID_PATTERN, task_id) is None or task_id == _NOT_A_TASK:
        wrong.append(f"--task: {named}: is not a task's id: 1 to 64 of A-Z a-z 0-9 _ -, the first a letter or digit")
        return None
    inputs = document.data.get("inputs")
    told_before = inputs.get("task_id", task_id) if isinstance(inputs, dict) else task_id
    if told_before != task_id:
        at = ("inputs", "task_id")
        wrong.append(_rendered(document, at, f"is {documents.show(told_before)}, but --task says {task_id}"))
    files = [f"{root}/tasks/{task_id}.{ending}" for ending in ("json", "md")]
    path = next((path for path in files if os.path.lexists(path)), None)
    if path is None:
        wrong.append(f"--task: there is no {files[0]} nor .md")
    elif (data := _contents(path, f"--task: {path}", documents.DEFAULT.size, wrong)) is not None:
        try:
            tasks.read(data, path, name=task_id, roles=roles, allow_absolute=security.allow_absolute_paths)
        except BadDocument as bad:
            wrong.append(str(bad))
    return task_id


def _rendered(document: Document, path: tuple[str, ...], message: str) -> str:
    return document.problem(path, message).render(document.source)
