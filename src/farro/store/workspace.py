"""The Workspace port: attempt folders on the worker's machine, for stores that keep no folders, and the files that are
posted from them with the result.

- `begin` makes `<base>/<agent>/<job>/attempts/NNNN`, laid out like a job of the file store (DESIGN §3.5), with the
  prompt, the payload and the posted files of earlier attempts. Only this attempt uses the folder.
- `post` returns the files of an attempt to keep: small ones by content, large ones moved into the shared directory, or
  cut and noted. It uses bounded memory, whatever the attempt wrote.
- A folder is removed when its attempt has ended, and when its agent's process is dead (`sweep`).
- `look` makes a folder of the same layout for reading: a copy that is removed with the process and made again when the
  job has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from farro.jobs.outcomes import Report
from farro.lazy_dataclass import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class PostedFiles:
    """The kept files of one attempt; names are relative to its folder."""

    files: Mapping[str, bytes] = field(default_factory=dict)  # result.json and result.md or error.md among them
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # name → its place in the shared directory
    cut: Mapping[str, int] = field(default_factory=dict)  # name → full size; `files` has only the beginning


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFiles:
    """The content of a job's folder."""

    lifecycle: bytes  # job.json
    prompt: bytes  # prompt.json
    narrative: str | None = None  # prompt.md
    payload: Mapping[str, bytes] = field(default_factory=dict)
    carried: Mapping[str, bytes] = field(
        default_factory=dict
    )  # taken over from the job that this one repeats (CarriedFiles)
    attempts: Mapping[int, PostedFiles] = field(default_factory=dict)


class Workspace(Protocol):
    def begin(self, agent_id: str, job_id: str, attempt: int, material: JobFiles) -> str:
        """Make the attempt's own folder and return its path."""

    def promise(
        self, agent_id: str, job_id: str, attempt: int, material: Callable[[], JobFiles]
    ) -> tuple[str, Callable[[], None]]:
        """Return the path of the attempt's folder and a function that makes it, callable from any thread and any number
        of times; it does nothing after `end`. An attempt that never needs the folder writes no file."""

    def post(self, folder: str, report: Report, *, good: bool) -> PostedFiles:
        """Collect the files of an attempt that ended, before it is committed. `good`: the report is result.md, else
        error.md."""

    def end(self, agent_id: str, job_id: str) -> None:
        """Remove the folder of an attempt that was committed, released or lost."""

    def leave(self, agent_id: str) -> None:
        """Remove all folders of an agent that ends."""

    def sweep(self) -> list[str]:
        """Remove the folders of dead agents of this machine. Returns their ids."""

    def look(self, job_id: str, version: str, material: JobFiles) -> str:
        """Make a folder with the job's present content; the same folder for the same version."""

    def forget(self, job_id: str) -> None:
        """Remove the files of a deleted job from the shared directory, where this machine has access to it."""

    def close(self) -> None:
        """Remove everything that this process made."""
