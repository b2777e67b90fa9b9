"""One job's folder: read it, rebuild what a crash destroyed, write job.json, attempts and mirrors.

Only the agent that owns the folder may call the functions that write (R1).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from farro.documents.json_text import encoder
from farro.errors import ClaimLost, Damaged, FarroError, UnknownSchema, Unreadable
from farro.host import fs, links
from farro.jobs import ids, moves
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Report
from farro.jobs.states import Status
from farro.jobs.times import timestamp
from farro.lazy_dataclass import dataclass, replace
from farro.store.files.context import FilesContext

LOCK = "lock"
JOB_LIMIT = 4 << 20  # bytes; job.json grows with its hops, but never this large
_ATTEMPT = re.compile(r"[0-9]{4,6}")
_decode = json.JSONDecoder().decode


def read_lifecycle(folder: str) -> Lifecycle:
    """Read job.json. FileNotFoundError: the folder or the file is gone. Damaged or UnknownSchema: it cannot be used."""
    return parse_lifecycle(_read(f"{folder}/job.json", JOB_LIMIT))


def parse_lifecycle(text: bytes) -> Lifecycle:
    if len(text) > JOB_LIMIT:
        raise Damaged(f"job.json is larger than {JOB_LIMIT} bytes")
    return Lifecycle.from_json(text)


def read_prompt(context: FilesContext, folder: str) -> dict[str, Any]:
    """Read prompt.json. FileNotFoundError: a folder without it is debris (R7)."""
    return parse_prompt(read_prompt_text(context, folder))


def read_prompt_text(context: FilesContext, folder: str) -> bytes:
    limit = context.policy.max_prompt_bytes
    text = _read(f"{folder}/prompt.json", limit)
    if len(text) > limit:
        raise Damaged(f"prompt.json is larger than {limit} bytes")
    return text


def parse_prompt(text: bytes) -> dict[str, Any]:
    try:
        data = _decode(text.decode())  # faster than json.loads, which first detects the encoding
    except (ValueError, RecursionError):
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Damaged(f"prompt.json cannot be parsed: {error}") from error
    if not isinstance(data, dict):
        raise Damaged("prompt.json is not an object")
    return data


def _read(path: str, limit: int) -> bytes:
    """Read a file; report an error that concerns this file alone as damage of this job. An OSError would count as
    trouble of the disk: the worker would retry this job for ever while the others wait.
    [test_a_corrupt_job_fails_alone]"""
    try:
        return fs.read_bytes(path, limit)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM):
            raise Unreadable(f"{path.rsplit('/', 1)[1]} is not a readable file: {error.strerror}") from error
        raise


def prompt_if_any(context: FilesContext, folder: str) -> dict[str, Any] | None:
    """Return the prompt, or None if it cannot be read. Used to order a queue, which tolerates a missing or invalid
    file; the agent that claims the job reports the error."""
    try:
        return read_prompt(context, folder)
    except (Damaged, OSError):
        return None


def highest_attempt(folder: str) -> int:
    """Return the number of attempts so far. The attempt folders are the counter (R6)."""
    try:
        names = fs.listdir(f"{folder}/attempts")
    except FileNotFoundError:
        return 0
    return max((int(name) for name in names if _ATTEMPT.fullmatch(name)), default=0)


def attempt_folder(folder: str, attempt: int) -> str:
    return f"{folder}/attempts/{attempt:04d}"


def begin_attempt(folder: str) -> int:
    """Count an attempt before its work starts (R6). [test_an_attempt_is_counted_before_work_starts]"""
    highest = highest_attempt(folder)
    if highest == 0:
        with contextlib.suppress(FileExistsError):
            fs.mkdir(f"{folder}/attempts")
    fs.mkdir(attempt_folder(folder, highest + 1))
    return highest + 1


def uncount_attempt(folder: str, attempt: int) -> None:
    """Undo the count of an attempt that was not started. It stays if its folder is not empty or cannot be removed."""
    with contextlib.suppress(OSError):
        fs.rmdir(attempt_folder(folder, attempt))
        fs.rmdir(f"{folder}/attempts")


def rebuilt(context: FilesContext, folder: str, job_id: str, role: str, status: Status) -> Lifecycle:
    """Rebuild the lifecycle of a job whose job.json is gone or unreadable, from the path, the prompt and the attempts.

    FileNotFoundError or Damaged: there is no prompt to rebuild it from.
    """
    prompt = read_prompt(context, folder)
    made = datetime.fromtimestamp(fs.lstat(f"{folder}/prompt.json").st_mtime, UTC)
    routing = prompt.get("routing")
    if not role:  # a place for jobs of every role: the prompt may name the role
        named = prompt.get("role")
        role = named if isinstance(named, str) and ids.ROLE.fullmatch(named) else "Runner"
    lifecycle = moves.enqueued(
        job_id=job_id, role=role, now=made, routing=routing if isinstance(routing, dict) else None
    )
    attempt = highest_attempt(folder)
    claimed_at = timestamp(made) if attempt else None
    return replace(lifecycle, status=status, attempt=attempt, first_claimed_at=claimed_at)


def owned_lifecycle(context: FilesContext, folder: str, job_id: str, role: str, status: Status) -> Lifecycle:
    """Read job.json of a folder that we own; rebuild it if it cannot be parsed. Raises UnknownSchema, and Damaged where
    it cannot be rebuilt."""
    try:
        found = read_lifecycle(folder)
    except (UnknownSchema, Unreadable):
        raise  # whatever is in its place cannot be replaced by a file
    except (FileNotFoundError, Damaged) as error:
        context.log("warning", "job.json rebuilt", {"job_id": job_id, "why": str(error)})
        return rebuilt(context, folder, job_id, role, status)
    return found if found.job_id == job_id else replace(found, job_id=job_id)


def write_lifecycle(context: FilesContext, folder: str, text: bytes, *, sync: bool) -> None:
    """Replace job.json. `sync`: the old file holds information found nowhere else, and a power cut must not lose it
    together with the new one."""
    path = f"{folder}/job.json"
    fs.retried(lambda: fs.swap_in(path, text, sync=sync and context.policy.durable), path, context.clock.sleep)


@dataclass(kw_only=True, slots=True)
class ResultFiles:
    """The result of an attempt as bytes: result.json with its hash, and result.md or error.md."""

    body: bytes
    sha256: str
    name: str
    markdown: bytes
    named: tuple[str, ...]  # further files of the attempt that the result refers to

    @classmethod
    def of(cls, report: Report, *, good: bool) -> ResultFiles:
        body = _encode(report.result).encode("utf-8", "replace") + b"\n"
        name = "result.md" if good else "error.md"
        markdown = report.markdown.encode("utf-8", "replace")
        sha256 = _sha256()(body).hexdigest()
        return cls(body=body, sha256=sha256, name=name, markdown=markdown, named=report.files)

    def small(self, home: str, limit: int) -> dict[str, bytes] | None:
        """Return all files of the result by name; None when they are larger than `limit` bytes together."""
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
        """Return the paths to sync before the decision, so that a decided result is complete: the files, the attempt's
        folder and the folder that holds its name."""
        named = [f"{home}/{name}" for name in self.named]
        folders = set()
        for path in named:  # every folder in between: out/a/b/c.txt is lost with the name of out/a
            while (path := path.rsplit("/", 1)[0]).startswith(f"{home}/"):
                folders.add(path)
        return [f"{home}/result.json", f"{home}/{self.name}", *named, *sorted(folders), home, f"{folder}/attempts"]


_encode = encoder()


@functools.cache
def _sha256() -> Callable[[bytes], Any]:
    from hashlib import sha256  # imported here: commands that only read folders do not need it

    return sha256


def write_result(context: FilesContext, home: str, result: ResultFiles, *, again: bool) -> None:
    """Write the attempt's result files, as new names in a folder that only this attempt uses. `again`: an earlier try
    of the same commit may have left some of them."""
    if again:
        for name in ("result.json", "result.md", "error.md"):  # the other kind too, or the mirror would show it
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(f"{home}/{name}")
    fs.retried(lambda: _put(f"{home}/result.json", result.body), home, context.clock.sleep)
    fs.retried(lambda: _put(f"{home}/{result.name}", result.markdown), home, context.clock.sleep)


def _put(path: str, data: bytes) -> None:
    try:
        fs.create(path, data)
    except FileExistsError:  # a step wrote a file of that name; this name belongs to farro
        fs.write_atomic(path, data, sync=False)
    except OSError:
        with contextlib.suppress(OSError):  # it may be incomplete; the next try writes it again
            fs.unlink(path)
        raise


def refresh_mirrors(folder: str, attempt: int) -> None:
    """Link the decided attempt's result.md or error.md into the job's folder (SPEC-1 §9: the latest attempt wins).

    Mirrors are hard links, so that each is complete when it appears. An older result.md stays when a later attempt
    failed.
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
    """Make the mirrors agree with the attempts, also where a person or a program put a file (SPEC-1 §9).

    result.md is that of the latest success, error.md that of the latest failure after it; a mirror without an attempt
    is removed. [test_planted_mirrors_are_replaced_by_those_of_the_attempts]
    """
    if not (fs.exists(f"{folder}/result.md") or fs.exists(f"{folder}/error.md")):
        return
    highest = highest_attempt(folder)
    good = _latest(folder, "result.md", highest, 0)
    for name, attempt in (("result.md", good), ("error.md", _latest(folder, "error.md", highest, good))):
        if attempt:
            links.stand(f"{attempt_folder(folder, attempt)}/{name}", f"{folder}/{name}")
        else:
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(f"{folder}/{name}")


def _latest(folder: str, name: str, highest: int, above: int) -> int:
    """Return the latest attempt after `above` that has the file; 0: none."""
    attempts = range(highest, above, -1)
    return next((attempt for attempt in attempts if fs.exists(f"{attempt_folder(folder, attempt)}/{name}")), 0)


def mirror_text(context: FilesContext, folder: str, text: str) -> None:
    """Make this text the result.md of a job that succeeded without an attempt's report."""
    fs.write_atomic(f"{folder}/result.md", text.encode("utf-8", "replace"), sync=context.policy.durable)
    with contextlib.suppress(FileNotFoundError):
        fs.unlink(f"{folder}/error.md")


def drop_lock(folder: str) -> None:
    """Remove the claim's lock, if there is one, before the folder moves to a shared place (RELIABILITY 7)."""
    try:  # noqa: SIM105 - runs for every job, and `suppress` costs three calls
        fs.unlink(f"{folder}/{LOCK}")
    except FileNotFoundError:
        pass


def translate_error(error: OSError, folder: str, job_id: str) -> FarroError:
    """Translate an operating-system error in the owner's work on a job (R7).

    ENOENT with the folder gone is the fence: another agent moved it, and nothing was written elsewhere. ENOENT with the
    folder still there is not: the attempt's own files were removed. [test_a_fenced_agent_cannot_commit,
    test_enoent_with_the_source_still_there_is_not_a_fence]
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        if not fs.exists(folder):
            return ClaimLost(
                f"{job_id} no longer belongs to this agent: it was recovered or killed; nothing was written"
            )
        return Damaged(f"{job_id}: {error.filename} is gone from the job's own folder")
    if isinstance(error, FileExistsError):
        return Damaged(f"{job_id}: {error.filename} is in the way in the job's own folder")
    return fs.trouble_for(error)(f"{job_id}: {error.filename}: {error.strerror}; the job is untouched")


@contextlib.contextmanager
def translated_errors(folder: str, job_id: str) -> Iterator[None]:
    """Translate the operating-system errors of the enclosed work on a job that we own."""
    try:
        yield
    except OSError as error:
        raise translate_error(error, folder, job_id) from error
