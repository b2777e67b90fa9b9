"""Queue one agent prompt with its attachments (`farro enqueue --prompt-json`): narrative, payload files, and its task.

Files are opened without following links, and checks apply to the opened file, so that nothing can be swapped in between
check and read. Their bytes are copied: a hard link brings its content, and no connection to the file.
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
from farro.queue import submit
from farro.queue.admission import Gate, enqueue_admitted
from farro.queue.agent_rules import Contract
from farro.queue.options import SubmitOptions
from farro.roles import prompt
from farro.roles import task as tasks
from farro.roles.prompt import CONTEXT, FILE_NAME
from farro.store.port import Store, Submission
from farro.worker import started_tasks

MAX_NARRATIVE = 1 << 20  # as much as a prompt may have: an agent has to read it

_NOT_A_TASK = "README"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachments:
    """The attachments of a prompt."""

    narrative: str | None = None
    payload: dict[str, bytes] = field(default_factory=dict)
    task_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AttachmentOptions:
    """The files and texts that the submitter attaches to a prompt."""

    folder: str | None = None  # of the prompt's file; None: it was not read from a file
    context_md: str | None = None  # path of the narrative
    narrative: str | None = None  # the narrative itself, of a caller without a file
    payload: Sequence[str] = ()  # paths
    task: str | None = None  # id or path


def collect(
    document: Document, asked: AttachmentOptions, *, root: str, roles: Sequence[str], security: SecuritySettings
) -> Attachments:
    """Read everything that the options and the prompt name, and report all errors at once.

    InputError: something cannot be read. Refused: the config does not allow it.
    """
    wrong: list[str] = []
    against: list[str] = []
    task_id = None if asked.task is None else _task(document, asked.task, root, roles, security, wrong)
    room = security.max_job_bytes - len(canonical(document.data))
    narrative = _narrative(document, asked.folder, asked.context_md, room, wrong)
    room -= len((narrative or "").encode())
    files = _payload(asked.payload, room, security, wrong, against)
    if wrong:
        raise InputError("\n".join([*wrong, *against]))
    if against:
        raise Refused("\n".join(against))
    return Attachments(narrative=narrative, payload=files, task_id=task_id)


def with_attachments(submission: Submission, with_: Attachments) -> Submission:
    """Return the submission with the attachments in it."""
    prompt: dict[str, Any] = dict(submission.prompt)
    if with_.narrative is not None:
        prompt["context_md"] = CONTEXT
    if with_.task_id is not None:
        prompt["inputs"] = {**prompt.get("inputs", {}), "task_id": with_.task_id}
    return replace(submission, prompt=prompt, narrative=with_.narrative, payload=with_.payload)


def _narrative(
    document: Document, folder: str | None, context_md: str | None, room: int, wrong: list[str]
) -> str | None:
    """Return the text of --context-md, else of the file beside the prompt that it names."""
    named = document.data.get("context_md")
    if context_md is None and not isinstance(named, str):
        return None
    if context_md is not None:
        path, told = context_md, f"--context-md: {context_md}"
    elif folder is None:
        message = "names a file, but a prompt from standard input has no folder; name the file with --context-md"
        wrong.append(_rendered(document, ("context_md",), message))
        return None
    else:
        path, told = f"{folder}/{named}", _rendered(document, ("context_md",), f"{folder}/{named}")
    limit = max(0, min(room, MAX_NARRATIVE))
    data = _contents(path, told, limit, wrong)
    if data is None:
        return None
    if len(data) > limit:
        wrong.append(f"{told}: is larger than {limit} bytes, the largest narrative allowed here")
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        wrong.append(f"{told}: is not UTF-8 text")
        return None


def _payload(
    paths: Sequence[str], room: int, security: SecuritySettings, wrong: list[str], against: list[str]
) -> dict[str, bytes]:
    """Read the payload files, keyed by file name."""
    found: dict[str, bytes] = {}
    endings = tuple(ending.lower() for ending in security.payload_allowlist)
    for path in paths:
        told, name = f"--payload: {path}", os.path.basename(path)
        if re.fullmatch(FILE_NAME, name) is None or name.startswith("_"):
            wrong.append(f"{told}: is not a plain file name of A-Z a-z 0-9 . _ -; rename it")
        elif name in found:
            wrong.append(f"{told}: another payload file is also called {name}; rename one")
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
    """Read at most `limit` bytes and a little; None: an error was added to `wrong`."""
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
    """Return the id of the task that --task names: an id, or the path of its file with or without its ending."""
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
    named_before = inputs.get("task_id", task_id) if isinstance(inputs, dict) else task_id
    if named_before != task_id:
        at = ("inputs", "task_id")
        wrong.append(_rendered(document, at, f"is {documents.show(named_before)}, but --task says {task_id}"))
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


def enqueue(
    store: Store,
    document: Document,
    *,
    role: str | None,
    job_id: str | None,
    options: SubmitOptions,
    gate: Gate,
    contract: Contract,
    security: SecuritySettings,
    root: str,
    attach: AttachmentOptions,
) -> str:
    """Queue the prompt and return the job's id. Everything is checked before anything is written."""
    known = sorted(store.roles())
    prompt.load(document, roles=known, allow_absolute=contract.allow_absolute, root=contract.root)
    (wanted,) = submit.submissions(
        store,
        [document],
        role=role,
        job_id=job_id,
        source=document.source,
        options=options,
        contract=replace(contract, with_files=True),
    )
    try:
        found = collect(document, attach, root=root, roles=known, security=security)
    except Refused:
        store.note("payload_refused", role=wanted.role, user=gate.user)
        raise
    if attach.narrative is not None:
        if len(attach.narrative.encode("utf-8", "replace")) > MAX_NARRATIVE:
            raise InputError(f"the narrative is longer than {MAX_NARRATIVE} bytes")
        found = replace(found, narrative=attach.narrative)
    job = enqueue_admitted(store, [with_attachments(wanted, found)], gate)[0]
    if found.task_id is not None:
        started_tasks.mark(root, found.task_id, job)
    return job
