"""Ask a person whether the agent of a running job may do something.

    jobs/.homes/<job>/<role>/<step>/permissions/<n>.json     a question
    jobs/.homes/<job>/<role>/<step>/permissions/<n>.answer   what holds: a person's word, or that nobody answered

An answer is made once, by a move that fails if there is one: whoever comes second learns that. The folder is moved away
before it is removed, so that nobody answers a question that is asked no more.

What a crash leaves: a question of an attempt that has ended. It is not shown, and the next call removes it.
[test_a_question_of_a_dead_attempt_is_not_shown]
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

from farro.agents.session_folder import folders_of_job
from farro.errors import IllegalTransition
from farro.host import fs, trees
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.store.port import JobView

FOLDER = "permissions"  # beside the home of the agent
_LIMIT = 1 << 20
_MOST_SHOWN = 4000  # characters of a question


@dataclass(frozen=True, kw_only=True, slots=True)
class Permission:
    """A question of an agent that nobody has answered."""

    path: str  # of its file, without the suffix
    role: str
    asked_at: str
    question: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PermissionBox:
    """Asks the questions of one call's agent. It belongs to the process that has claimed the job."""

    folder: str  # of the step's sessions
    role: str
    now: Callable[[], str]
    redact: Callable[[str], str]

    def __enter__(self) -> PermissionBox:
        self._clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def ask(self, question: str) -> str:
        """Put a question before people, and return its path."""
        home = f"{self.folder}/{FOLDER}"
        with contextlib.suppress(FileExistsError):
            fs.mkdir_private(home)
        number = sum(name.endswith(".json") for name in fs.listdir(home)) + 1
        path = f"{home}/{number:04d}"
        asked = {"role": self.role, "asked_at": self.now(), "question": self.redact(question)[:_MOST_SHOWN]}
        fs.write_atomic(f"{path}.json", json.dumps(asked, ensure_ascii=False).encode("utf-8", "replace"), sync=False)
        return path

    def answer(self, path: str) -> bool | None:
        """Return what holds; None: there is no answer yet."""
        try:
            return json.loads(fs.read_bytes(f"{path}.answer", _LIMIT))["allowed"] is True
        except FileNotFoundError:
            return None

    def give_up(self, path: str) -> bool:
        """Answer in place of a person who did not, and return what holds."""
        return False if _answered(path, allowed=False, by="nobody") else self.answer(path) is True

    def _clear(self) -> None:
        gone = fs.temporary(self.folder)
        with contextlib.suppress(FileNotFoundError):
            fs.move(f"{self.folder}/{FOLDER}", gone)
            trees.remove_tree(gone)


def open_permissions(root: str, view: JobView) -> Iterator[Permission]:
    """Yield what the agents of a job wait for, if its attempt runs on this machine."""
    if view.status is not Status.IN_PROGRESS:
        return
    for _, _, folder in folders_of_job(root, view.job_id):
        with contextlib.suppress(OSError, ValueError, TypeError):
            for name in sorted(fs.listdir(f"{folder.path}/{FOLDER}")):
                path = f"{folder.path}/{FOLDER}/{name.removesuffix('.json')}"
                if name.endswith(".json") and not fs.exists(f"{path}.answer"):
                    yield Permission(path=path, **json.loads(fs.read_bytes(f"{path}.json", _LIMIT)))


def answer_permission(permission: Permission, *, allowed: bool, by: str) -> None:
    """Record a person's answer. IllegalTransition: there is one, or the agent waits no longer."""
    if not _answered(permission.path, allowed=allowed, by=by):
        raise IllegalTransition("the agent does not wait for that permission any more; nothing was changed")


def _answered(path: str, *, allowed: bool, by: str) -> bool:
    folder = path.rpartition("/")[0]
    staged = fs.temporary(folder)
    try:
        fs.create(staged, json.dumps({"allowed": allowed, "by": by}).encode())
        fs.move(staged, f"{path}.answer")
    except FileExistsError:
        fs.unlink(staged)
        return False
    except FileNotFoundError:
        return False
    return True
