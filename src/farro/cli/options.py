"""Options that every command has, and opening the root that they name."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from farro.app import App as App
from farro.cli import terminal
from farro.config import reader
from farro.config.reader import own_root as own_root
from farro.config.settings import AGQ, Settings
from farro.errors import NotARoot
from farro.jobs.request import as_option
from farro.log.structured import Log, grave_only
from farro.queue import admission
from farro.queue.admission import Gate
from farro.queue.admission import operator_name as operator_name
from farro.store.port import Store

if TYPE_CHECKING:
    import click

    from farro.queue.submit import SubmitPolicy

_STRICT, _STORE, _UNCHECKED = "farro.strict", "farro.store", "farro.unchecked"  # in click's context
F = TypeVar("F", bound=Callable[..., Any])
Option = Callable[[Callable[..., Any]], Callable[..., Any]]  # made by click.option or click.argument


class PlainCall:
    """What a command works with that runs without click (cli.plain): in the place of click's context."""

    def __init__(self, store: str | None) -> None:
        self.app = App()
        self.store = store
        self.opened: list[Store] = []


plain_call: PlainCall | None = None

ROOT_HELP = "The farro root; default: FARRO_ROOT, else the nearest one upwards from here, else your own."


def common(command: F) -> F:
    """Add `--root`, `--store` and `--json`."""
    return root_option(ROOT_HELP)(store_option(json_option("Answer as JSON.")(command)))


def daemon(command: F) -> F:
    """Add the same options to a daemon, whose answer is its log, and those that `starts_strictly` and `unchecked`
    read."""
    import click

    strict = click.option(
        "--strict",
        is_flag=True,
        expose_value=False,
        callback=lambda context, _, value: context.meta.update({_STRICT: value}),
        help="Refuse to start where doctor's quick checks find something, warnings too.",
    )
    return strict(no_checks(root_option(ROOT_HELP)(store_option(json_option("JSON, also at a terminal.")(command)))))


def no_checks(command: F) -> F:
    """Add `--no-checks`, which `unchecked` reads."""
    import click

    return click.option(
        "--no-checks",
        is_flag=True,
        expose_value=False,
        callback=lambda context, _, value: context.meta.update({_UNCHECKED: value}),
        help="Start even where doctor's gates fail; the audit log says so.",
    )(command)


def unchecked() -> bool:
    """Tell whether `--no-checks` was given."""
    import click

    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_UNCHECKED))


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
    """Tell whether a daemon must pass doctor's quick checks. With `--once`, which repairs a root, only --strict
    asks for them, not the config."""
    import click

    context = click.get_current_context(silent=True)
    asked = context is not None and bool(context.meta.get(_STRICT))
    return asked or (settings.strict_start and not once)


def not_empty(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty --root."""
    if value == "":  # an unset variable in a script must not mean the working folder
        import click

        raise click.BadParameter("it is empty; name a folder, or leave it out")
    return value


def root_option(text: str) -> Callable[[F], F]:
    import click

    return click.option("--root", metavar="DIR", callback=not_empty, help=text)


def store_option(command: F) -> F:
    """Add `--store`, which replaces the config's; `asked_store` returns it."""
    import click

    return click.option(
        "--store",
        metavar="URL",
        expose_value=False,
        callback=_keep_store,
        help='The store of the jobs: redis://HOST:PORT/DB, or "files"; default: FARRO_STORE, else the config\'s.',
    )(command)


def _keep_store(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value == "":
        import click

        raise click.BadParameter("it is empty; name a store, or leave it out")
    context.meta[_STORE] = value


def asked_store() -> str | None:
    """Return the value of `--store`; None without one."""
    if plain_call is not None:
        return plain_call.store
    import click

    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_STORE)


def json_option(text: str) -> Callable[[F], F]:
    import click

    return click.option("--json", "as_json", is_flag=True, help=text)


def application() -> App:
    """Return the application that `cli.main` handed over. Only in the thread that runs the command: click's context is
    not known to others, so hand it on to them."""
    if plain_call is not None:
        return plain_call.app
    import click

    found = click.get_current_context().find_object(App)
    assert found is not None
    return found


def open_root(
    root: str | None, *, log: Log | None = None, make: bool = False, way: str = "cli"
) -> tuple[Store, Settings]:
    """Open the named root, else the nearest upwards, else the user's own, which `make` makes. `way`: how the user
    came in (cli, mcp, …), for the audit log."""
    path, settings = read_root(root, make=make)
    # A daemon brings its log; a command without one ends at once.
    store = application().open_store(
        path, settings, log=log or grave_only(sys.stderr), actor=operator_name(way), brief=log is None
    )
    if plain_call is not None:
        plain_call.opened.append(store)
    else:
        import click

        click.get_current_context().call_on_close(store.close)
    return store, settings


def open_job(root: str | None, job: str) -> tuple[Store, str]:
    """Open the root and return its store and the id of the job that `job` names."""
    from farro.queue import find_job

    store, _ = open_root(root)
    return store, find_job.resolve(store, job)


def gate(settings: Settings, force: bool) -> Gate:
    """Make the gate that enforces the caps for this user."""
    return Gate.of(settings, user=admission.current_user(), force=force)


def policy(store: Store, settings: Settings) -> SubmitPolicy:
    """Return the rules for what this user submits."""
    from farro.queue.submit import SubmitPolicy

    return SubmitPolicy.of(store.root, settings, user=admission.current_user(), spell=as_option, warn=terminal.complain)


def read_root(root: str | None, *, make: bool = False) -> tuple[str, Settings]:
    """Find the root and read its config; print keys that have no effect on stderr."""
    path = reader.find_root(root, own=True, make=make)
    if make and not os.path.isdir(f"{path}/jobs"):
        _make_own_root(path)
    settings = reader.with_store(reader.load(path, warn=terminal.complain), asked_store())
    application().redact_secrets(settings)
    return path, settings


def read_root_or_here(root: str | None) -> tuple[str, Settings]:
    """Read the root's config; without any root return the working folder and the default config."""
    try:
        return read_root(root)
    except NotARoot:
        if root or os.environ.get("FARRO_ROOT"):
            raise
        return os.getcwd(), Settings()


def _make_own_root(path: str) -> None:
    from farro.doctor import root as roots

    roots.init(path, reader.load(path))
    what = "files of running jobs" if (asked_store() or "").startswith(AGQ) else "jobs"
    terminal.complain(f"{what} are kept in {path} (no root here; `farro init` makes one)")


def program() -> tuple[str, ...]:
    """Return the command that starts farro. -P: a `farro` in the working folder must not shadow this one."""
    return (os.path.abspath(sys.executable), "-P", "-m", "farro")
