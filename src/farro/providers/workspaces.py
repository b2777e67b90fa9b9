"""Where a provider's program works: a temporary folder, the repository, or a worktree of it with the diff in the end.

What it may write there is kept by the sandbox; running it lives in cli.

A worktree is made and looked at by git, outside the sandbox, after a program was at work in it. So git is told where
its repository is (the program may have put another `.git` there), and runs no hook, no filter of the tree's own, and no
external diff.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from farro.ports.provider import ProviderTrouble
from farro.system import fs

Kind = Literal["temp", "root", "worktree"]
WORKTREES = "jobs/.worktrees"
DIFF = "diff.patch"
_GIT_S = 120.0
_DIFF_LIMIT = 20 << 20
_SAFELY = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false")


@dataclass(frozen=True, kw_only=True, slots=True)
class Workspace:
    """A place to work. `root` is what allowed paths are relative to; `own` is writable though nobody allowed it."""

    cwd: str
    root: str
    own: tuple[str, ...] = ()


@contextlib.contextmanager
def workspace(kind: Kind, *, root: str, folder: str, name: str) -> Iterator[Workspace]:
    """The place for one call; afterwards it is gone. `folder` gets the diff of a worktree, `name` tells calls apart."""
    private = f"{folder}/work"
    fs.mkdir(private)
    try:
        if kind == "worktree":
            with _worktree(root, folder, name) as tree:
                yield Workspace(cwd=tree, root=tree, own=(private,))
        else:
            yield Workspace(cwd=private if kind == "temp" else root, root=root, own=(private,))
    finally:
        with contextlib.suppress(OSError):
            fs.remove_tree(private)


@contextlib.contextmanager
def _worktree(root: str, folder: str, name: str) -> Iterator[str]:
    home = f"{root}/{WORKTREES}"
    with contextlib.suppress(FileExistsError):
        fs.mkdir(home)
    tree = f"{home}/{name}"
    if fs.exists(tree):  # of a worker that died: the same attempt's, or it would have another name
        _remove(root, tree)
    _git(root, "worktree", "add", "--detach", "--quiet", tree, "HEAD")
    try:
        own = _git(root, "-C", tree, "rev-parse", "--absolute-git-dir").decode().strip()
        yield tree
        place = ("--git-dir", own, "--work-tree", tree)
        _git(root, *place, "add", "--all", "--intent-to-add", ".")
        words = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--binary", "HEAD")
        diff = _git(root, *place, *words)
        if len(diff) > _DIFF_LIMIT:
            raise _trouble(f"the diff has {len(diff)} bytes; at most {_DIFF_LIMIT} are kept", retryable=False)
        if diff:
            fs.write_atomic(f"{folder}/{DIFF}", diff, sync=False)
    finally:
        _remove(root, tree)


def _remove(root: str, tree: str) -> None:
    with contextlib.suppress(ProviderTrouble):
        _git(root, "worktree", "remove", "--force", "--force", tree)
    with contextlib.suppress(OSError):
        if fs.exists(tree):
            fs.remove_tree(tree)
    with contextlib.suppress(ProviderTrouble):
        _git(root, "worktree", "prune")


def _git(root: str, *words: str) -> bytes:
    try:
        done = subprocess.run(
            ["git", *_SAFELY, *words],
            cwd=root,
            env=_environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise _trouble("git was not found: a worktree needs it; install git, or set workspace to root", False) from None
    except subprocess.TimeoutExpired:
        raise _trouble(f"git {words[0]} took longer than {_GIT_S:g} s", True) from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().split("\n")[-1]
        raise _trouble(f"git {' '.join(words[:2])}: {said}; workspace: worktree needs a git repository", False)
    return done.stdout


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Without variables that point git elsewhere."""
    return {name: value for name, value in environ.items() if not name.startswith("GIT_")} | {
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C",
    }


def _trouble(message: str, retryable: bool) -> ProviderTrouble:
    return ProviderTrouble(message, kind="failed", retryable=retryable, charged=False)
