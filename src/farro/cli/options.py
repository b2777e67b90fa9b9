"""Options that every command has, and opening the root that they name.

What the commands do lives in their own files.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from farro import app, config
from farro.cli import terminal
from farro.errors import NotARoot
from farro.observe.log import Log, grave_only
from farro.operations.admission import Gate
from farro.settings import Settings
from farro.stores.files import FilesStore

F = TypeVar("F", bound=Callable[..., Any])

ROOT_HELP = "The farro root; else FARRO_ROOT, else the nearest one upwards from here, else your own."


def common(command: F) -> F:
    """`--root` and `--json`, on every command."""
    return root_option(ROOT_HELP)(json_option("Answer as JSON.")(command))


def daemon(command: F) -> F:
    """The same for a command that goes on: its answer is its log."""
    return root_option(ROOT_HELP)(json_option("JSON, also at a terminal.")(command))


def root_option(text: str) -> Callable[[F], F]:
    return click.option("--root", metavar="DIR", callback=_not_empty, help=text)


def json_option(text: str) -> Callable[[F], F]:
    return click.option("--json", "as_json", is_flag=True, help=text)


def _not_empty(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value == "":  # an unset variable in a script must not mean "wherever I happen to stand"
        raise click.BadParameter("it is empty; name a folder, or leave it out")
    return value


def open_root(root: str | None, *, log: Log | None = None, make: bool = False) -> tuple[FilesStore, Settings]:
    """The root that was named, else the nearest upwards, else the person's own; with `make` that one is made."""
    path, settings = read_root(root, make=make)
    # A command brings no log of its own and ends at once; a daemon does, and goes on.
    store = app.open_store(path, settings, log=log or grave_only(sys.stderr), actor=person(), brief=log is None)
    context = click.get_current_context(silent=True)
    if context is not None:
        context.call_on_close(store.close)
    return store, settings


def gate(settings: Settings, force: bool) -> Gate:
    """What keeps the caps for this user. Who that is, the kernel says: LOGNAME is anybody's to set."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    return Gate.of(settings, user=user, force=force)


def read_root(root: str | None, *, make: bool = False) -> tuple[str, Settings]:
    """Where the root is and what its config says; what the config says in vain is told on stderr."""
    try:
        path = config.find_root(root)
    except NotARoot:
        path = own_root()
        if root or os.environ.get("FARRO_ROOT") or not (make or os.path.isdir(f"{path}/jobs")):
            raise
        if not os.path.isdir(f"{path}/jobs"):
            _make_own_root(path)
    return path, config.load(path, warn=terminal.complain)


def own_root() -> str:
    """Where a person's jobs are kept who made no root: not in the repository that they happen to stand in."""
    state = os.environ.get("XDG_STATE_HOME", "")
    home = state if os.path.isabs(state) else os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(home, "farro")


def _make_own_root(path: str) -> None:
    from farro.operations import roots

    roots.init(path, config.load(path))
    terminal.complain(f"jobs are kept in {path} (no root here; `farro init` makes one)")


def person() -> str:
    """Who asks, as an agent's name: for hops[] and for people."""
    import getpass  # here: only the verbs that change a job ask

    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "somebody"
    return "cli-" + (re.sub(r"[^A-Za-z0-9_-]", "-", name)[:24] or "somebody")
