"""Give a program its own git worktree for one call, and return what it changed as a diff.

git creates and reads the worktree outside the sandbox, after a program has worked in it. Therefore git is told where
its repository is, and runs no hook, no monitor and no external diff. A repository that the program created inside has
its own config, which may name programs, and git would ask it for changes: every such `.git` is removed before git
looks. [test_git_runs_nothing_that_a_program_left_in_its_worktree]
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping

from farro.agents.providers.port import SLICE_S, ProviderTrouble
from farro.agents.providers.programs import ALWAYS, ProgramOutput, named, own_mark
from farro.host import fs, processes, trees
from farro.host.processes import Launch, NotStarted
from farro.lazy_dataclass import dataclass

FOLDER = "jobs/.worktrees"
_GIT_S = 120.0
_LIMIT = 20 << 20  # bytes of a diff
_ENVIRONMENT = (*ALWAYS, "HOME", "XDG_CONFIG_HOME", "USER", "LOGNAME", "TMPDIR")  # for git's own config; no secrets
_OWN = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
_SAFELY = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false"),
    *("-c", "submodule.recurse=false", "-c", "diff.ignoreSubmodules=all"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Git:
    """Runs git for one call of a program: as one of its job's processes, with none of the worker's secrets."""

    environ: Mapping[str, str]  # the worker's environment
    marks: Mapping[str, str]  # variables that mark every process of the step
    folder: str  # for its output files

    def __call__(self, cwd: str, *words: str, most: int = 1 << 20) -> bytes:
        """Run git and return its output. Waits in slices, so that an exception raised in this thread is noticed."""
        with ProgramOutput(self.folder) as output:
            git = Launch(
                argv=("git", *_SAFELY, *words),
                stdin=None,
                stdout=output.answer,
                stderr=output.errors,
                cwd=cwd,
                env={**named(self.environ, _ENVIRONMENT), **self.marks, **_OWN},
            )
            process = processes.start(git)
            if isinstance(process, NotStarted):
                raise _trouble(f"{process.message}: a worktree needs git; install it, or set workspace to root")
            try:
                output.forget_names()
                until_s = time.monotonic() + _GIT_S
                while (ended := process.wait(SLICE_S)) is None:
                    if output.too_long(most):
                        break
                    if time.monotonic() >= until_s:
                        raise _trouble(f"git took longer than {_GIT_S:g} s")
            finally:
                if process.exit is None:
                    process.end(own_mark(self.marks), grace_s=0)
            if output.too_long(most):
                raise _trouble(f"the diff has more than {most} bytes")
            if ended is None or ended.code != 0:
                said = output.last_words().strip().split("\n")[-1]
                raise _trouble(f"git: {said}; workspace: worktree needs a git repository with a commit")
            return output.data(most)


@dataclass(frozen=True, kw_only=True, slots=True)
class Worktree:
    """A worktree in use."""

    root: str  # the folder in it that corresponds to the root
    top: str
    git_dir: str  # the worktree's git folder, inside the repository's
    git: Git

    def diff(self) -> bytes:
        """Return what changed in the worktree as a git diff, new files included."""
        _forget_repositories(self.top)
        place = ("--git-dir", self.git_dir, "--work-tree", self.top)
        self.git(self.top, *place, "add", "--all", "--intent-to-add", ".")
        how = ("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=all", "--binary")
        return self.git(self.top, *place, "diff", *how, "HEAD", most=_LIMIT)


@contextlib.contextmanager
def open_worktree(git: Git, root: str, job: str, call: str) -> Iterator[Worktree]:
    """Make a worktree at the repository's HEAD, and remove it afterwards. `call` distinguishes those of one job."""
    home = f"{root}/{FOLDER}"
    with contextlib.suppress(FileExistsError):
        fs.mkdir(home)
    _forget_dead(git, root, job, call)
    path = f"{home}/{job}.{call}"
    inside = git(root, "rev-parse", "--show-prefix").decode("utf-8", "surrogateescape").rstrip("\n").rstrip("/")
    try:
        git(root, "worktree", "add", "--detach", "--quiet", path, "HEAD")
        place = f"{path}/{inside}" if inside else path
        if not os.path.isdir(place):
            raise _trouble(f"the last commit has no folder {inside}, which is this root: commit something in it")
        git_dir = git(path, "rev-parse", "--absolute-git-dir").decode("utf-8", "surrogateescape").rstrip("\n")
        yield Worktree(root=place, top=path, git_dir=git_dir, git=git)
    finally:
        _remove(git, root, path)


def _forget_dead(git: Git, root: str, job: str, call: str) -> None:
    """Remove the worktrees that were left by killed attempts of this job or by an earlier run of this call."""
    for name in fs.listdir(f"{root}/{FOLDER}"):
        owner, _, other = name.partition(".")
        if owner == job and (other == call or other.partition(".")[0] != call.partition(".")[0]):
            _remove(git, root, f"{root}/{FOLDER}/{name}")


def _forget_repositories(top: str) -> None:
    """Remove each `.git` below the top, in any case: on some disks .GIT is the same name."""
    for folder, folders, files in os.walk(top, topdown=True):
        if folder == top:
            continue
        for name in [name for name in (*folders, *files) if name.lower() == ".git"]:
            path = f"{folder}/{name}"
            if name in folders and not os.path.islink(path):
                trees.remove_tree(path)
                folders.remove(name)
            else:
                fs.unlink(path)


def _remove(git: Git, root: str, path: str) -> None:
    with contextlib.suppress(OSError):
        if fs.exists(path):
            trees.remove_tree(path)
    with contextlib.suppress(ProviderTrouble):
        git(root, "worktree", "prune")


def _trouble(message: str) -> ProviderTrouble:
    return ProviderTrouble(message, kind="failed", retryable=False, charged=False)
