"""Create the demo's repository: a failing test, a task, and four programs that answer for the roles.

Its files are copied from repository/.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from farro.config.settings import Settings
from farro.doctor import root as roots
from farro.errors import InputError
from farro.host import fs, trees
from farro.lazy_dataclass import dataclass

JOB = "discount"
ROLES = {"Architect": "architect", "SeniorEngineer": "engineer", "CodeReviewer": "reviewer", "DocWriter": "writer"}
_READ_ONLY = ("Architect", "CodeReviewer")
_HERE = f"{os.path.dirname(os.path.abspath(__file__))}/repository"
_GIT_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TestRun:
    """The result of the repository's tests."""

    passed: bool
    said: str  # the last two lines


def make(root: str, *, python: str, environ: Mapping[str, str]) -> None:
    """Create a repository with one commit, which is a farro root, too."""
    for path in _files(_HERE):
        trees.make_folders(os.path.dirname(f"{root}/{path}"))
        fs.write_atomic(f"{root}/{path}", fs.read_bytes(f"{_HERE}/{path}"), sync=False)
    git(root, environ, "init", "--quiet")
    roots.init(root, Settings())
    fs.write_atomic(f"{root}/{roots.CONFIG}", roots.as_text(config(python)).encode(), sync=False)
    git(root, environ, "add", "--all")
    author = ("-c", "user.name=farro", "-c", "user.email=farro@example.invalid", "-c", "commit.gpgsign=false")
    git(root, environ, *author, "commit", "--quiet", "--message", "A shop, and a test that fails")


def config(python: str) -> dict[str, object]:
    """Return the config: four programs of kind cli, one for each role; those that judge may not write."""
    first = roots.first_config()
    program = {"kind": "cli", "workspace": "root", "answer_field": "result", "cost_field": "cost_usd", "call_usd": 0.05}
    return {
        **first,
        "providers": {name: {**program, "command": [python, "programs/agents.py", name]} for name in ROLES.values()},
        "roles": {
            role: {"provider": name, **({"read_only": True} if role in _READ_ONLY else {})}
            for role, name in ROLES.items()
        },
        "watchdog": {"every_s": 0.5},
        "budgets": {"job_usd": 1},
    }


def run_tests(root: str, *, python: str, environ: Mapping[str, str]) -> TestRun:
    """Run the repository's own tests."""
    env = {**environ, "PYTHONPATH": "src", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [python, "-m", "unittest", "discover", "-s", "tests"],
        cwd=root,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_GIT_S,
    )
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return TestRun(passed=done.returncode == 0, said=": ".join(lines[-2:]))


def diff(root: str, environ: Mapping[str, str]) -> str:
    return git(root, environ, "diff", "--no-color", "--no-ext-diff", "HEAD")


def git(root: str, environ: Mapping[str, str], *words: str) -> str:
    """Run git without the user's settings and hooks, and outside of the repository that the demo was started in."""
    env = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    env |= {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": os.path.dirname(root),
    }
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=root,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_GIT_S,
        )
    except FileNotFoundError:
        raise InputError("the demo works in a scratch git repository, and git was not found; install it") from None
    if done.returncode != 0:
        raise InputError(f"git {words[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _files(folder: str) -> Sequence[str]:
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        found += [os.path.relpath(f"{place}/{name}", folder) for name in sorted(names)]
    return found
