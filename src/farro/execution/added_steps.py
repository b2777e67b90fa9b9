"""Take the tasks that steps of one attempt add while it runs, and seal their folder at the end.

The folder is `tasks` inside the attempt's own, so that an attempt never runs what an earlier one added. It is made when
the first process that may add a task is started: a plan of Python functions that add nothing costs no call. If tasks
arrived with the seal, the steps that follow use a new folder (`tasks-2`), so that processes which ended steps left
behind stay shut out. Decided in docs/decisions/added-tasks-belong-to-their-attempt.md.
"""

from __future__ import annotations

import contextlib
import errno
import stat
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import Any

from farro.documents import parse_json, show
from farro.errors import BadDocument
from farro.execution.runner import already
from farro.execution.task_file import FOLDER, LIMIT, NEW, SEALED, TAKEN
from farro.host import fs, trees
from farro.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class AddedTask:
    """One task as it was taken. `data` is not checked yet; `fault`: it could not be read."""

    added_by: str
    file: str = ""  # its name relative to the attempt's folder, before any seal
    data: Any = None
    fault: str | None = None


class TaskFolder:
    """The folder of added tasks; one for each run of a plan. `open` is also called from the threads of Python tools."""

    def __init__(self, attempt_dir: str, pause: Callable[[float], None], make: Callable[[], None] = already) -> None:
        self._attempt_dir = attempt_dir
        self.make = make  # makes the attempt's own folder, if that is done late
        self._pause = pause
        self._name = "tasks"
        self._generation = 1
        self._made = False
        self._sealed = False
        self._lock = threading.Lock()
        self._taken: list[str] = []  # from the present folder
        self.files: list[str] = []  # what was taken, relative to the attempt's folder after the seal

    @property
    def made(self) -> bool:
        """Return whether any process may have added a task."""
        return self._made

    @property
    def path(self) -> str:
        """Return what a step sees as FARRO_TASKS."""
        return f"{self._attempt_dir}/{self._name}"

    def open(self) -> None:
        """Make the folder before the first process that may add a task. Not after the seal: a tool that could not be
        ended may still ask."""
        with self._lock:
            if not self._made and not self._sealed:
                self.make()
                with contextlib.suppress(FileExistsError):
                    fs.retried(lambda: fs.mkdir(self.path), self.path, self._pause)
                self._made = True

    def take(self, adders: Collection[str]) -> list[AddedTask]:
        """Take what these steps added since the last call, in order. Steps that have not succeeded may still fail."""
        return self._take(self.path, adders) if self._made else []

    def drop(self, step_id: str) -> None:
        """Delete what a failed try of that step added: the next try adds its own."""
        if self._made:
            for name in self._new(self.path):
                if _added_by(name) == step_id:
                    with contextlib.suppress(FileNotFoundError):
                        fs.unlink(f"{self.path}/{name}")

    def seal(self) -> list[AddedTask]:
        """Refuse every add from now on; return tasks that arrived before and were not taken."""
        with self._lock:
            self._sealed = True
        if not self._made:
            return []
        sealed = f"{self.path}{SEALED}"
        try:
            if trees.remove_or_seal(self.path, sealed):
                return []
        except (FileNotFoundError, NotADirectoryError):
            return []  # a step removed it, or replaced it by a file
        late = self._take(sealed)
        names = (f"{self._name}{SEALED}/{name}{TAKEN}" for name in self._taken)
        self.files += [name for name in names if _is_file(f"{self._attempt_dir}/{name}")]  # a step may have removed it
        return late

    def begin_again(self) -> None:
        """Use a new folder, for steps that arrived with the seal."""
        with self._lock:
            self._generation += 1
            self._name = f"tasks-{self._generation}"
            self._made = self._sealed = False
            self._taken = []

    def _take(self, folder: str, adders: Collection[str] | None = None) -> list[AddedTask]:
        tasks = []
        for name in self._new(folder):
            if adders is not None and _added_by(name) not in adders:
                continue
            stem = name.removesuffix(NEW)
            with contextlib.suppress(FileNotFoundError):  # the adder withdrew it: it was too late
                fs.move(f"{folder}/{name}", f"{folder}/{stem}{TAKEN}")
                self._taken.append(stem)
                tasks.append(_read(f"{folder}/{stem}{TAKEN}", f"{self._name}/{stem}"))
        return tasks

    def _new(self, folder: str) -> list[str]:
        """Return what was handed over, in order. A listing is not atomic: it may show a task and miss an earlier one
        that it needs, so it is repeated until nothing older appears."""
        found = _listed(folder)
        while found and (again := [name for name in _listed(folder) if name <= found[-1]]) != found:
            found = again
        return found


class Environment(Mapping[str, str]):
    """A step's environment for a Python tool inside the worker. The folder is made when the tool asks for it, or
    copies the environment for a process; most never do."""

    def __init__(self, make: Callable[[], Mapping[str, str]], folder: TaskFolder) -> None:
        self._make = make
        self._folder = folder

    @cached_property
    def _env(self) -> Mapping[str, str]:
        return self._make()

    def __getitem__(self, name: str) -> str:
        if name == FOLDER:
            self._folder.open()
        return self._env[name]

    def __iter__(self) -> Iterator[str]:
        self._folder.open()
        return iter(self._env)

    def __len__(self) -> int:
        return len(self._env)

    def __or__(self, other: Mapping[str, str]) -> dict[str, str]:
        return {**self, **other}


def _listed(folder: str) -> list[str]:
    try:
        return sorted(name for name in fs.listdir(folder) if name.endswith(NEW))
    except (FileNotFoundError, NotADirectoryError):
        return []  # a step removed it, or replaced it by a file


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(fs.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _added_by(name: str) -> str:
    parts = name.rpartition("/")[2].removesuffix(NEW).split("-", 2)
    return parts[2] if len(parts) == 3 else ""


def _read(path: str, file: str) -> AddedTask:
    name = path.rsplit("/", 1)[1]
    added_by = _added_by(file)
    try:
        text = fs.read_bytes(path, LIMIT)
        if len(text) > LIMIT:
            return AddedTask(added_by=added_by, file=file, fault=f"{name} is larger than {LIMIT} bytes")
        return AddedTask(added_by=added_by, file=file, data=parse_json(text, source=name).data)
    except BadDocument as error:
        return AddedTask(added_by=added_by, file=file, fault=str(error))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ELOOP, errno.EISDIR):
            raise
        return AddedTask(added_by=added_by, file=file, fault=f"{show(name)} is not a file")


def unrecorded(attempt_dir: str, *, known: Collection[str], adders: Collection[str]) -> list[AddedTask]:
    """Return tasks that these steps handed over in a finished attempt without a record: a process that they left
    running added them, and then the worker died. `known`: the files of recorded tasks."""
    tasks = []
    for folder in sorted(name for name in fs.listdir(attempt_dir) if name.split("-")[0].split(".")[0] == "tasks"):
        generation = folder.removesuffix(SEALED)
        try:
            names = sorted(fs.listdir(f"{attempt_dir}/{folder}"))
        except NotADirectoryError:
            continue
        for name in names:
            file = f"{generation}/{name.removesuffix(NEW).removesuffix(TAKEN)}"
            if name.endswith((NEW, TAKEN)) and file not in known and _added_by(file) in adders:
                tasks.append(_read(f"{attempt_dir}/{folder}/{name}", file))
    return tasks
