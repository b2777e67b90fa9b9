"""Options that every command has, and opening the root that they name.

What the commands do lives in their own files.
"""

from __future__ import annotations

import getpass
import json
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from farro import app, config
from farro.observe.log import Log
from farro.settings import Settings
from farro.stores.files import FilesStore

F = TypeVar("F", bound=Callable[..., Any])


def common(command: F) -> F:
    """`--root` and `--json`, on every command."""
    command = click.option("--json", "as_json", is_flag=True, help="Answer as JSON.")(command)
    return click.option(
        "--root", metavar="DIR", help="The farro root; else FARRO_ROOT, else the nearest one upwards from here."
    )(command)


def open_root(root: str | None, *, log: Log | None = None) -> tuple[FilesStore, Settings]:
    path = config.find_root(root)
    settings = config.load(path)
    return app.open_store(path, settings, log=log), settings


def person() -> str:
    """Who asks, as an agent's name: for hops[] and for people."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "somebody"
    return "cli-" + (re.sub(r"[^A-Za-z0-9_-]", "-", name)[:24] or "somebody")


def answer(data: Any) -> None:
    """JSON on stdout, one document."""
    sys.stdout.write(json.dumps(data, default=str, ensure_ascii=False) + "\n")
