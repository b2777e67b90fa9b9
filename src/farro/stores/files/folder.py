"""One job's folder: reading it, rebuilding what a crash took, writing job.json, its attempts and mirrors.

Moving the folder lives in claim, settle, hold and recover. Only the folder's owner may call what writes here (R1).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from farro.errors import ClaimLost, Damaged, StorageTrouble, UnknownSchema
from farro.kernel import ids, moves
from farro.kernel.envelope import Lifecycle
from farro.kernel.moments import timestamp
from farro.kernel.outcome import Report
from farro.kernel.states import Status
from farro.stores.files.ground import Ground
from farro.system import fs

LOCK = "lock"
JOB_LIMIT = 4 << 20  # job.json grows with its hops, never to this
_ATTEMPT = re.compile(r"[0-9]{4,6}")


def read_lifecycle(folder: str) -> Lifecycle:
    """job.json as it is. FileNotFoundError when the folder or the file is gone; Damaged, UnknownSchema as they say."""
    text = fs.read_bytes(f"{folder}/job.json", JOB_LIMIT)
    if len(text) > JOB_LIMIT:
        raise Damaged(f"{folder}/job.json is larger than {JOB_LIMIT} bytes")
    return Lifecycle.from_json(text)


def read_prompt(ground: Ground, folder: str) -> dict[str, Any]:
    """prompt.json. FileNotFoundError: a folder without it is debris (R7)."""
    limit = ground.policy.max_prompt_bytes
    text = fs.read_bytes(f"{folder}/prompt.json", limit)
    if len(text) > limit:
        raise Damaged(f"{folder}/prompt.json is larger than {limit} bytes")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{folder}/prompt.json cannot be parsed: {error}") from error
    if not isinstance(data, dict):
        raise Damaged(f"{folder}/prompt.json is not an object")
    return data


def prompt_if_any(ground: Ground, folder: str) -> dict[str, Any] | None:
    """For what can do without: the order in a queue. Whoever claims the job says what is wrong with it."""
    try:
        return read_prompt(ground, folder)
    except (Damaged, OSError):
        return None


def highest_attempt(folder: str) -> int:
    """The attempts so far: the folders are the counter (R6)."""
    try:
        names = fs.listdir(f"{folder}/attempts")
    except FileNotFoundError:
        return 0
    return max((int(name) for name in names if _ATTEMPT.fullmatch(name)), default=0)


def attempt_folder(folder: str, attempt: int) -> str:
    return f"{folder}/attempts/{attempt:04d}"


def begin_attempt(folder: str, highest: int) -> int:
    """Count an attempt before its work starts (R6). Test: test_an_attempt_is_counted_before_work_starts."""
    if highest == 0:
        with contextlib.suppress(FileExistsError):
            fs.mkdir(f"{folder}/attempts")
    fs.mkdir(attempt_folder(folder, highest + 1))
    return highest + 1


def rebuilt(ground: Ground, folder: str, job_id: str, role: str, status: Status) -> Lifecycle:
    """A lifecycle for a job whose job.json is gone or unreadable: from the path, the prompt and the attempts.

    FileNotFoundError or Damaged when there is no prompt to rebuild it from.
    """
    prompt = read_prompt(ground, folder)
    made = datetime.fromtimestamp(fs.lstat(f"{folder}/prompt.json").st_mtime, UTC)
    routing = prompt.get("routing")
    if not role:  # a place where jobs of every role lie: the prompt may know
        named = prompt.get("role")
        role = named if isinstance(named, str) and ids.ROLE.fullmatch(named) else "Runner"
    fresh = moves.enqueued(job_id=job_id, role=role, now=made, routing=routing if isinstance(routing, dict) else None)
    attempt = highest_attempt(folder)
    claimed_at = timestamp(made) if attempt else None
    return replace(fresh, status=status, attempt=attempt, first_claimed_at=claimed_at)


def owned_lifecycle(ground: Ground, folder: str, job_id: str, role: str, status: Status) -> Lifecycle:
    """job.json of a folder that we own, rebuilt where it cannot be read; UnknownSchema and Damaged go through."""
    try:
        found = read_lifecycle(folder)
    except UnknownSchema:
        raise
    except (FileNotFoundError, Damaged) as error:
        ground.log("warning", "job.json rebuilt", {"job_id": job_id, "why": str(error)})
        return rebuilt(ground, folder, job_id, role, status)
    return found if found.job_id == job_id else replace(found, job_id=job_id)


def write_lifecycle(ground: Ground, folder: str, lifecycle: Lifecycle, *, sync: bool) -> None:
    fs.write_atomic(
        f"{folder}/job.json", lifecycle.to_json(), sync=sync and ground.policy.durable, pause=ground.clock.sleep
    )


def write_report(ground: Ground, folder: str, attempt: int, report: Report, *, good: bool) -> tuple[str, list[str]]:
    """The attempt's result files. Answers result.json's hash, and everything that must be on the disk before the
    decision (a result that is decided is there whole): the files, the attempt's folder and its name."""
    home = attempt_folder(folder, attempt)
    body = _result_bytes(report.result)
    markdown = f"{home}/{'result.md' if good else 'error.md'}"
    fs.write_atomic(f"{home}/result.json", body, sync=False, pause=ground.clock.sleep)
    fs.write_atomic(markdown, report.markdown.encode("utf-8", "replace"), sync=False, pause=ground.clock.sleep)
    other = f"{home}/{'error.md' if good else 'result.md'}"
    if fs.exists(other):
        fs.unlink(other)  # of a commit that failed half-way, before it decided: the mirror must not show it
    named = [f"{home}/{name}" for name in report.files]
    folders = set()
    for path in named:  # every folder between the file and the attempt's: out/a/b/c.txt is lost with the name of out/a
        while (path := path.rsplit("/", 1)[0]).startswith(f"{home}/"):
            folders.add(path)
    durable = [f"{home}/result.json", markdown, *named, *sorted(folders), home, f"{folder}/attempts"]
    return hashlib.sha256(body).hexdigest(), durable


def _result_bytes(result: Mapping[str, Any]) -> bytes:
    return json.dumps(result, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"


def refresh_mirrors(folder: str, attempt: int) -> None:
    """The top-level result.md or error.md, as the decided attempt says (SPEC-1 §9: the latest attempt wins).

    Hard links: the mirror is complete when it appears. An older result.md stays when a later attempt failed.
    """
    home = attempt_folder(folder, attempt)
    if fs.exists(f"{home}/result.md"):
        _mirror(f"{home}/result.md", f"{folder}/result.md")
        with contextlib.suppress(FileNotFoundError):
            if fs.exists(f"{folder}/error.md"):
                fs.unlink(f"{folder}/error.md")
    elif fs.exists(f"{home}/error.md"):
        _mirror(f"{home}/error.md", f"{folder}/error.md")


def _mirror(source: str, path: str) -> None:
    try:
        fs.link(source, path)
    except FileExistsError:
        if fs.lstat(source).st_ino == fs.lstat(path).st_ino:
            return
        name = fs.temporary(path.rsplit("/", 1)[0])
        fs.link(source, name)
        fs.replace(name, path)


def drop_lock(folder: str) -> None:
    """Remove the claim's lock, if it is there, before the folder goes to a shared place (RELIABILITY 7)."""
    if fs.readlink(f"{folder}/{LOCK}") is not None:
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(f"{folder}/{LOCK}")


@contextlib.contextmanager
def fenced(folder: str, job_id: str) -> Iterator[None]:
    """Turn the errors of an owner's work into what they mean (R7).

    ENOENT with the folder gone is the fence: somebody moved it, nothing was written elsewhere. ENOENT with the folder
    still there is not: the attempt's own files were removed. Tests: test_a_fenced_agent_cannot_commit,
    test_enoent_with_the_source_still_there_is_not_a_fence.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        if not fs.exists(folder):
            raise ClaimLost(f"{job_id}: taken from this agent (recovered or killed); nothing was written") from error
        raise Damaged(f"{job_id}: {error.filename} is gone from the job's own folder") from error
    except FileExistsError as error:
        raise Damaged(f"{job_id}: {error.filename} is in the way in the job's own folder") from error
    except OSError as error:
        raise StorageTrouble(f"{job_id}: {error.filename}: {error.strerror}; the job is untouched") from error
