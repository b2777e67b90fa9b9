"""One job's folder: reading it, rebuilding what a crash took, writing job.json, its attempts and mirrors.

Moving the folder lives in claim, settle, hold and recover. Only the folder's owner may call what writes here (R1).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from farro.documents.encoding import encoder
from farro.errors import ClaimLost, Damaged, FarroError, StorageTrouble, UnknownSchema, Unreadable
from farro.host import fs, links
from farro.jobs import ids, transitions
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Report
from farro.jobs.states import Status
from farro.jobs.times import timestamp
from farro.lazy_dataclass import dataclass
from farro.store.files.context import Ground

LOCK = "lock"
JOB_LIMIT = 4 << 20  # job.json grows with its hops, never to this
_ATTEMPT = re.compile(r"[0-9]{4,6}")
_decode = json.JSONDecoder().decode


def read_lifecycle(folder: str) -> Lifecycle:
    """job.json as it is. FileNotFoundError when the folder or the file is gone; Damaged, UnknownSchema as they say."""
    return parse_lifecycle(_read(f"{folder}/job.json", JOB_LIMIT))


def parse_lifecycle(text: bytes) -> Lifecycle:
    if len(text) > JOB_LIMIT:
        raise Damaged(f"job.json is larger than {JOB_LIMIT} bytes")
    return Lifecycle.from_json(text)


def read_prompt(ground: Ground, folder: str) -> dict[str, Any]:
    """prompt.json. FileNotFoundError: a folder without it is debris (R7)."""
    return parse_prompt(read_prompt_text(ground, folder))


def read_prompt_text(ground: Ground, folder: str) -> bytes:
    limit = ground.policy.max_prompt_bytes
    text = _read(f"{folder}/prompt.json", limit)
    if len(text) > limit:
        raise Damaged(f"prompt.json is larger than {limit} bytes")
    return text


def parse_prompt(text: bytes) -> dict[str, Any]:
    try:
        data = _decode(text.decode())  # json.loads first finds out which encoding it is; farro's own is UTF-8
    except (ValueError, RecursionError):
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Damaged(f"prompt.json cannot be parsed: {error}") from error
    if not isinstance(data, dict):
        raise Damaged("prompt.json is not an object")
    return data


def _read(path: str, limit: int) -> bytes:
    """What is wrong with this file alone is damage of this job. As an OSError it passed for trouble of the disk: the
    worker came back to the same job for ever, and the others waited. [test_a_corrupt_job_fails_alone]"""
    try:
        return fs.read_bytes(path, limit)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM):
            raise Unreadable(f"{path.rsplit('/', 1)[1]} is no file that can be read: {error.strerror}") from error
        raise


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


def first_attempt(folder: str) -> bool:
    """Count the first attempt of a job that says it has had none. False: it has, and nothing was counted."""
    try:
        fs.mkdir(f"{folder}/attempts")
    except FileExistsError:
        return False
    fs.mkdir(attempt_folder(folder, 1))
    return True


def uncount_attempt(folder: str, attempt: int) -> None:
    """Of which nothing was begun. One whose folder is not empty counts, and so does one that cannot be removed."""
    with contextlib.suppress(OSError):
        fs.rmdir(attempt_folder(folder, attempt))
        fs.rmdir(f"{folder}/attempts")


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
    fresh = transitions.enqueued(
        job_id=job_id, role=role, now=made, routing=routing if isinstance(routing, dict) else None
    )
    attempt = highest_attempt(folder)
    claimed_at = timestamp(made) if attempt else None
    return replace(fresh, status=status, attempt=attempt, first_claimed_at=claimed_at)


def owned_lifecycle(ground: Ground, folder: str, job_id: str, role: str, status: Status) -> Lifecycle:
    """job.json of a folder that we own, rebuilt where it cannot be read; UnknownSchema and Damaged go through."""
    try:
        found = read_lifecycle(folder)
    except (UnknownSchema, Unreadable):
        raise  # what stands there cannot be replaced by a file
    except (FileNotFoundError, Damaged) as error:
        ground.log("warning", "job.json rebuilt", {"job_id": job_id, "why": str(error)})
        return rebuilt(ground, folder, job_id, role, status)
    return found if found.job_id == job_id else replace(found, job_id=job_id)


def write_lifecycle(ground: Ground, folder: str, text: bytes, *, sync: bool) -> None:
    """Replace job.json. `sync`: the old one says what nothing else says, and must not be lost with the new one."""
    path = f"{folder}/job.json"
    fs.retried(lambda: fs.swap_in(path, text, sync=sync and ground.policy.durable), path, ground.clock.sleep)


@dataclass(kw_only=True, slots=True)
class Result:
    """What an attempt leaves, as bytes: result.json with its hash, and result.md or error.md."""

    body: bytes
    sha256: str
    name: str
    markdown: bytes
    named: tuple[str, ...]  # files of the attempt that the result names

    @classmethod
    def of(cls, report: Report, *, good: bool) -> Result:
        body = _encode(report.result).encode("utf-8", "replace") + b"\n"
        name = "result.md" if good else "error.md"
        markdown = report.markdown.encode("utf-8", "replace")
        sha256 = _sha256()(body).hexdigest()
        return cls(body=body, sha256=sha256, name=name, markdown=markdown, named=report.files)

    def small(self, home: str, limit: int) -> dict[str, bytes] | None:
        """All of it with the files that it names; None when that is more than `limit` bytes."""
        found = {"result.json": self.body, self.name: self.markdown}
        left = limit - len(self.body) - len(self.markdown)
        for name in self.named:
            size = fs.lstat(f"{home}/{name}").st_size
            left -= size
            if left < 0:
                return None
            found[name] = fs.read_bytes(f"{home}/{name}", size) if size else b""
        return found

    def durable(self, folder: str, home: str) -> list[str]:
        """What must be on the disk before the decision (a result that is decided is there whole): the files, the
        attempt's folder and its name."""
        named = [f"{home}/{name}" for name in self.named]
        folders = set()
        for path in named:  # every folder between: out/a/b/c.txt is lost with the name of out/a
            while (path := path.rsplit("/", 1)[0]).startswith(f"{home}/"):
                folders.add(path)
        return [f"{home}/result.json", f"{home}/{self.name}", *named, *sorted(folders), home, f"{folder}/attempts"]


_encode = encoder()


@functools.cache
def _sha256() -> Callable[[bytes], Any]:
    from hashlib import sha256  # here: who only looks at folders does not pay for it

    return sha256


def write_result(ground: Ground, home: str, result: Result, *, again: bool) -> None:
    """The attempt's result files: new names in a folder that is this attempt's alone. `again`: an earlier try of the
    same commit may have left some of them."""
    if again:
        for name in ("result.json", "result.md", "error.md"):  # of the other kind too: the mirror must not show it
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(f"{home}/{name}")
    fs.retried(lambda: _put(f"{home}/result.json", result.body), home, ground.clock.sleep)
    fs.retried(lambda: _put(f"{home}/{result.name}", result.markdown), home, ground.clock.sleep)


def _put(path: str, data: bytes) -> None:
    try:
        fs.create(path, data)
    except FileExistsError:  # a step wrote a file of that name: the attempt's result is farro's
        fs.write_atomic(path, data, sync=False)
    except OSError:
        with contextlib.suppress(OSError):  # half of it: the next try makes it anew
            fs.unlink(path)
        raise


def refresh_mirrors(folder: str, attempt: int) -> None:
    """The top-level result.md or error.md, as the decided attempt says (SPEC-1 §9: the latest attempt wins).

    Hard links: the mirror is complete when it appears. An older result.md stays when a later attempt failed.
    """
    home = attempt_folder(folder, attempt)
    if fs.exists(f"{home}/result.md"):
        links.stand(f"{home}/result.md", f"{folder}/result.md")
        with contextlib.suppress(FileNotFoundError):
            if fs.exists(f"{folder}/error.md"):
                fs.unlink(f"{folder}/error.md")
    elif fs.exists(f"{home}/error.md"):
        links.stand(f"{home}/error.md", f"{folder}/error.md")


def reconcile_mirrors(folder: str) -> None:
    """Where both mirrors stand, the highest attempt that left a report says which (SPEC-1 §9)."""
    if fs.exists(f"{folder}/result.md") and fs.exists(f"{folder}/error.md"):
        for attempt in range(highest_attempt(folder), 0, -1):
            home = attempt_folder(folder, attempt)
            if fs.exists(f"{home}/result.md") or fs.exists(f"{home}/error.md"):
                refresh_mirrors(folder, attempt)
                return


def first_mirror(folder: str, attempt: int, name: str) -> None:
    """The same for the report that this attempt has just written, where there is none from before."""
    links.stand(f"{attempt_folder(folder, attempt)}/{name}", f"{folder}/{name}")


def drop_lock(folder: str) -> None:
    """Remove the claim's lock, if it is there, before the folder goes to a shared place (RELIABILITY 7)."""
    try:  # noqa: SIM105 - every job comes by here, and `suppress` is three calls
        fs.unlink(f"{folder}/{LOCK}")
    except FileNotFoundError:
        pass


def meaning(error: OSError, folder: str, job_id: str) -> FarroError:
    """What an error of an owner's work means (R7).

    ENOENT with the folder gone is the fence: somebody moved it, nothing was written elsewhere. ENOENT with the folder
    still there is not: the attempt's own files were removed. Tests: test_a_fenced_agent_cannot_commit,
    test_enoent_with_the_source_still_there_is_not_a_fence.
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        if not fs.exists(folder):
            return ClaimLost(f"{job_id}: taken from this agent (recovered or killed); nothing was written")
        return Damaged(f"{job_id}: {error.filename} is gone from the job's own folder")
    if isinstance(error, FileExistsError):
        return Damaged(f"{job_id}: {error.filename} is in the way in the job's own folder")
    return StorageTrouble(f"{job_id}: {error.filename}: {error.strerror}; the job is untouched")


@contextlib.contextmanager
def fenced(folder: str, job_id: str) -> Iterator[None]:
    """Around an owner's work: errors are what they mean."""
    try:
        yield
    except OSError as error:
        raise meaning(error, folder, job_id) from error
