"""A worktree of the repository for one call of an agent's program: it works beside the real one, and leaves a diff.

What it may write there is kept by the sandbox; running it lives in cli.

git makes the worktree and looks at it, outside the sandbox, after a program was at work in it. So git is told where its
repository is (the program may have put another `.git` there), and runs no hook, no monitor and no external diff.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from farro.ports.provider import ProviderTrouble
from farro.system import fs

FOLDER = "jobs/.worktrees"
_GIT_S = 120.0
_DIFF_LIMIT = 20 << 20
_SAFELY = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false")


@dataclass(frozen=True, kw_only=True, slots=True)
class Worktree:
    path: str
    git_dir: str  # its own, inside the repository's

    def diff(self) -> bytes:
        """What was changed in it, as git tells it; new files too."""
        place = ("--git-dir", self.git_dir, "--work-tree", self.path)
        _git(self.path, *place, "add", "--all", "--intent-to-add", ".")
        found = _git(self.path, *place, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "--binary", "HEAD")
        if len(found) > _DIFF_LIMIT:
            raise _trouble(f"the diff has {len(found)} bytes; at most {_DIFF_LIMIT} are kept")
        return found


@contextlib.contextmanager
def worktree(root: str, name: str) -> Iterator[Worktree]:
    """A fresh one at the repository's HEAD; afterwards it is gone. `name` tells calls apart."""
    home = f"{root}/{FOLDER}"
    with contextlib.suppress(FileExistsError):
        fs.mkdir(home)
    path = f"{home}/{name}"
    if fs.exists(path):  # of a worker that died in this very call
        _remove(root, path)
    _git(root, "worktree", "add", "--detach", "--quiet", path, "HEAD")
    try:
        yield Worktree(path=path, git_dir=_git(path, "rev-parse", "--absolute-git-dir").decode().strip())
    finally:
        _remove(root, path)


def _remove(root: str, path: str) -> None:
    with contextlib.suppress(OSError):
        if fs.exists(path):
            fs.remove_tree(path)
    with contextlib.suppress(ProviderTrouble):
        _git(root, "worktree", "prune")


def _git(folder: str, *words: str) -> bytes:
    try:
        done = subprocess.run(
            ["git", *_SAFELY, *words],
            cwd=folder,
            env=_environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise _trouble("git was not found: a worktree needs it; install git, or set workspace to root") from None
    except subprocess.TimeoutExpired:
        raise _trouble(f"git took longer than {_GIT_S:g} s") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().split("\n")[-1]
        raise _trouble(f"git: {said}; workspace: worktree needs a git repository with a commit")
    return done.stdout


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Without variables that point git elsewhere."""
    kept = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    return {**kept, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


def _trouble(message: str) -> ProviderTrouble:
    return ProviderTrouble(message, kind="missing", retryable=False, charged=False)
