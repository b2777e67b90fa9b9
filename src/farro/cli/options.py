"""Options that every command has, and opening the root that they name.

What the commands do lives in their own files.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from farro.app import App
from farro.cli import terminal
from farro.cli.groups import not_empty
from farro.config import reader
from farro.config.engines import AGQ
from farro.config.reader import own_root
from farro.config.settings import Settings
from farro.log.structured import Log, grave_only
from farro.queue import admission
from farro.queue.admission import Gate, operator_name
from farro.store.port import Store

__all__ = [
    "App",
    "application",
    "asked_store",
    "common",
    "daemon",
    "gate",
    "json_option",
    "open_root",
    "operator_name",
    "option_group",
    "own_root",
    "read_root",
    "root_option",
    "starts_strictly",
    "store_option",
]

_STRICT, _STORE = "farro.strict", "farro.store"  # in the context of a command
F = TypeVar("F", bound=Callable[..., Any])
Option = Callable[[Callable[..., Any]], Callable[..., Any]]  # made by click.option or click.argument

ROOT_HELP = "The farro root; else FARRO_ROOT, else the nearest one upwards from here, else your own."


def common(command: F) -> F:
    """`--root`, `--store` and `--json`, on every command."""
    return root_option(ROOT_HELP)(store_option(json_option("Answer as JSON.")(command)))


def daemon(command: F) -> F:
    """The same for a command that goes on: its answer is its log. And `--strict`, which `starts_strictly` knows."""
    strict = click.option(
        "--strict",
        is_flag=True,
        expose_value=False,
        callback=lambda context, _, value: context.meta.update({_STRICT: value}),
        help="Refuse to start where doctor's quick checks find something, warnings too.",
    )
    return strict(root_option(ROOT_HELP)(store_option(json_option("JSON, also at a terminal.")(command))))


def option_group(name: str, group: type[Any], *options: Option) -> Callable[[F], F]:
    """Add options whose values the command gets together: as one argument `name`, an instance of the dataclass `group`.

    The dataclass has a field for each option.
    """
    fields = tuple(group.__annotations__)

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def with_group(*args: Any, **values: Any) -> Any:
            grouped = group(**{field: values.pop(field) for field in fields})
            return command(*args, **{**values, name: grouped})

        decorated: Callable[..., Any] = with_group
        for option in reversed(options):
            decorated = option(decorated)
        return decorated  # type: ignore[return-value]

    return decorate


def starts_strictly(settings: Settings, *, once: bool = False) -> bool:
    """Whether a daemon is held to doctor. One turn (`--once`) is how things are repaired: the config does not stop
    it, only whoever asks for it."""
    context = click.get_current_context(silent=True)
    asked = context is not None and bool(context.meta.get(_STRICT))
    return asked or (settings.strict_start and not once)


def root_option(text: str) -> Callable[[F], F]:
    return click.option("--root", metavar="DIR", callback=not_empty, help=text)


def store_option(command: F) -> F:
    """Where the jobs lie, instead of what the config says; `asked_store` knows it."""
    return click.option(
        "--store",
        metavar="URL",
        expose_value=False,
        callback=_keep_store,
        help='Where the jobs lie: redis://HOST:PORT/DB, or "files"; else FARRO_STORE, else as the config says.',
    )(command)


def _keep_store(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value == "":
        raise click.BadParameter("it is empty; name a store, or leave it out")
    context.meta[_STORE] = value


def asked_store() -> str | None:
    """What `--store` says; None: nothing."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_STORE)


def json_option(text: str) -> Callable[[F], F]:
    return click.option("--json", "as_json", is_flag=True, help=text)


def application() -> App:
    """Return the application that `cli.main` handed over. Only in the thread that runs the command: click's context is
    not known to others, so hand it on to them."""
    found = click.get_current_context().find_object(App)
    assert found is not None
    return found


def open_root(
    root: str | None, *, log: Log | None = None, make: bool = False, way: str = "cli"
) -> tuple[Store, Settings]:
    """The root that was named, else the nearest upwards, else the person's own; with `make` that one is made. `way`: by
    which the person comes, for the audit log."""
    path, settings = read_root(root, make=make)
    # A command brings no log of its own and ends at once; a daemon does, and goes on.
    store = application().open_store(
        path, settings, log=log or grave_only(sys.stderr), actor=operator_name(way), brief=log is None
    )
    click.get_current_context().call_on_close(store.close)
    return store, settings


def gate(settings: Settings, force: bool) -> Gate:
    """What keeps the caps for this user."""
    return Gate.of(settings, user=admission.current_user(), force=force)


def read_root(root: str | None, *, make: bool = False) -> tuple[str, Settings]:
    """Where the root is and what its config says; what the config says in vain is told on stderr."""
    path = reader.find_root(root, own=True, make=make)
    if make and not os.path.isdir(f"{path}/jobs"):
        _make_own_root(path)
    settings = reader.with_store(reader.load(path, warn=terminal.complain), asked_store())
    application().redact_secrets(settings)
    return path, settings


def _make_own_root(path: str) -> None:
    from farro.doctor import root as roots

    roots.init(path, reader.load(path))
    what = "files of running jobs" if (asked_store() or "").startswith(AGQ) else "jobs"
    terminal.complain(f"{what} are kept in {path} (no root here; `farro init` makes one)")
