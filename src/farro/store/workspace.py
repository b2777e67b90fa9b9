"""The Workspace port: the folders that a store without folders gives its attempts on the worker's own machine, and what
of them is posted with the result.

Which store, and what it keeps, lives in stores; who works in the folders lives in execution.

- `begin` makes `<somewhere>/<agent>/<job>/attempts/NNNN`, shaped as the file store shapes a job (DESIGN §3.5): the
  prompt, the payload and what was posted of earlier attempts are in it. Nobody else has that folder.
- `post` answers what shall be kept of an attempt: small files by their content, large ones moved into the shared
  directory, or cut and noted. It takes bounded memory, whatever the attempt wrote.
- A folder is removed when its attempt is over, and when its agent's process is dead (`sweep`).
- `look` makes a folder of the same shape for somebody who looks at a job: a copy, which ends with the process or is
  made anew when the job has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from farro.jobs.outcomes import Report
from farro.lazy_dataclass import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class PostedFiles:
    """What is kept of the files of one attempt; names are relative to its folder."""

    files: Mapping[str, bytes] = field(default_factory=dict)  # result.json and result.md or error.md among them
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # name → where it lies in the shared directory
    cut: Mapping[str, int] = field(default_factory=dict)  # name → its whole size; `files` has its beginning only


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFiles:
    """What a job's folder is made of."""

    lifecycle: bytes  # job.json
    prompt: bytes  # prompt.json
    narrative: str | None = None  # prompt.md
    payload: Mapping[str, bytes] = field(default_factory=dict)
    carried: Mapping[str, bytes] = field(default_factory=dict)  # of a job that repeats another (CarriedFiles)
    attempts: Mapping[int, PostedFiles] = field(default_factory=dict)


class Workspace(Protocol):
    def begin(self, agent_id: str, job_id: str, attempt: int, material: JobFiles) -> str:
        """The attempt's own folder."""

    def promise(
        self, agent_id: str, job_id: str, attempt: int, material: Callable[[], JobFiles]
    ) -> tuple[str, Callable[[], None]]:
        """The same folder, and what makes it: from any thread, any number of times, and never after `end`. An attempt
        that does not ask for it costs no file."""

    def post(self, folder: str, report: Report, *, good: bool) -> PostedFiles:
        """Of an attempt that ended; before it is committed. `good`: its words are result.md, else error.md."""

    def end(self, agent_id: str, job_id: str) -> None:
        """The attempt is over and committed, released or lost: its folder goes."""

    def leave(self, agent_id: str) -> None:
        """The agent ends: everything of it goes."""

    def sweep(self) -> list[str]:
        """Remove what dead agents of this machine left; answers their ids."""

    def look(self, job_id: str, version: str, material: JobFiles) -> str:
        """A folder that shows the job as it is; the same one for the same version."""

    def forget(self, job_id: str) -> None:
        """The job is removed for good: what lies of it in the shared directory goes, where this machine has that."""

    def close(self) -> None:
        """What this process made goes."""
