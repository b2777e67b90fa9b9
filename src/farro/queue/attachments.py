"""Read what is attached to an agent prompt: its narrative, payload files, and its task.

Files are opened without following links, and checks apply to the opened file, so that nothing can be swapped in between
check and read. Their bytes are copied: a hard link brings its content, and no connection to the file.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from farro import documents
from farro.config.settings import SecuritySettings
from farro.documents import Document, canonical
from farro.errors import BadDocument, InputError, Refused
from farro.execution import task_snapshot
from farro.host import fs
from farro.jobs.request import Attachments, Spelling, as_option
from farro.lazy_dataclass import replace
from farro.plans.model import ID_PATTERN
from farro.roles import task as tasks
from farro.roles.prompt import CONTEXT, FILE_NAME
from farro.store.port import Submission

MAX_NARRATIVE = 1 << 20  # as much as a prompt may have: an agent has to read it

_NOT_A_TASK = "README"


def attached(
    submission: Submission,
    document: Document,
    asked: Attachments,
    *,
    root: str,
    roles: Sequence[str],
    security: SecuritySettings,
    spell: Spelling = as_option,
    warn: Callable[[str], object],
) -> Submission:
    """Return the submission with everything that the options and the prompt name; report all errors at once. An option
    has precedence over the prompt, with a warning.

    InputError: something cannot be read. Refused: the config does not allow it.
    """
    wrong: list[str] = []
    against: list[str] = []
    task_id = None if asked.task is None else _task(asked.task, root, roles, security, spell("task"), wrong)
    room = security.max_job_bytes - len(canonical(document.data))
    narrative = _narrative(document, asked, room, wrong)
    room -= len((narrative or "").encode("utf-8", "replace"))
    files = _payload(asked.payload, room, security, wrong, against)
    if wrong:
        raise InputError("\n".join([*wrong, *against]))
    if against:
        raise Refused("\n".join(against))
    prompt: dict[str, Any] = dict(submission.prompt)
    if narrative is not None:
        prompt["context_md"] = CONTEXT
    if task_id is not None:
        if (named := task_snapshot.task_id(prompt)) not in (None, task_id):
            warn(_rendered(document, ("inputs", "task_id"), f"is {named}; {spell('task')} {task_id} replaces it"))
        prompt["inputs"] = {**prompt.get("inputs", {}), "task_id": task_id}
    return replace(submission, prompt=prompt, narrative=narrative, payload=files)


def _narrative(document: Document, asked: Attachments, room: int, wrong: list[str]) -> str | None:
    """Return the text that was given, or that of --context-md, else of the file beside the prompt that it names."""
    limit = max(0, min(room, MAX_NARRATIVE))
    if asked.narrative is not None:
        if len(asked.narrative.encode("utf-8", "replace")) > limit:
            wrong.append(f"narrative: is larger than {limit} bytes, the largest narrative allowed here")
        return asked.narrative
    named = document.data.get("context_md")
    if asked.context_md is None and not isinstance(named, str):
        return None
    if asked.context_md is not None:
        path, told = asked.context_md, f"--context-md: {asked.context_md}"
    elif asked.folder is None:
        message = (
            "names a file, but files cannot be attached this way; use `farro enqueue --prompt-json FILE`, or name the "
            "file with --context-md"
        )
        wrong.append(_rendered(document, ("context_md",), message))
        return None
    else:
        path = f"{asked.folder}/{named}"
        told = _rendered(document, ("context_md",), path)
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
    named: str,
    root: str,
    roles: Sequence[str],
    security: SecuritySettings,
    option: str,
    wrong: list[str],
) -> str | None:
    """Return the id of the task that was named: by its id, or by the path of its file with or without its ending."""
    folder, name = os.path.split(named)
    task_id = re.sub(r"\.(json|md)\Z", "", name)
    places = {os.path.realpath(f"{root}/tasks")}
    if folder and not {os.path.realpath(folder), os.path.realpath(os.path.join(root, folder))} & places:
        wrong.append(f"{option}: {named}: is not in {root}/tasks, where tasks are kept")
        return None
    if re.fullmatch(ID_PATTERN, task_id) is None or task_id == _NOT_A_TASK:
        wrong.append(f"{option}: {named}: is not a task's id: 1 to 64 of A-Z a-z 0-9 _ -, the first a letter or digit")
        return None
    files = [f"{root}/tasks/{task_id}.{ending}" for ending in ("json", "md")]
    path = next((path for path in files if os.path.lexists(path)), None)
    if path is None:
        wrong.append(f"{option}: there is no {files[0]} nor .md")
    elif (data := _contents(path, f"{option}: {path}", documents.DEFAULT.size, wrong)) is not None:
        try:
            tasks.read(data, path, name=task_id, roles=roles, allow_absolute=security.allow_absolute_paths)
        except BadDocument as bad:
            wrong.append(str(bad))
    return task_id


def _rendered(document: Document, path: tuple[str, ...], message: str) -> str:
    return document.problem(path, message).render(document.source)
