"""`farro.open`: open a named root, or the one that the commands would find."""

from __future__ import annotations

import os
import warnings

from farro.api.queue import Queue
from farro.config import reader
from farro.doctor import root as roots
from farro.errors import InputError
from farro.execution import function_calls


def open(root: str | os.PathLike[str] | None = None, *, make: bool = False, store: str | None = None) -> Queue:  # noqa: A001 - as gzip.open
    """Open the queue of a root: the named one, else FARRO_ROOT, else the nearest upwards from the working folder, else
    the user's own. Raise NotARoot when there is none; with `make` it is made, as `farro init` does. `store`: where the
    jobs are kept, redis://HOST:PORT/DB or "files"; default: FARRO_STORE, else the config's."""
    given = _named_root() if root is None else os.fspath(root)
    if given == "":
        raise InputError("root: it is empty; name a folder, or leave it out")
    found = None if given is None or not make else os.path.abspath(given)
    path = found or reader.find_root(given, own=True, make=make)
    settings = reader.load(path, warn=lambda text: warnings.warn(text, stacklevel=4))
    if make and not os.path.isdir(f"{path}/jobs"):
        roots.init(path, settings)
    return Queue(path, reader.with_store(settings, store))


_defaults: dict[str, Queue] = {}


def default() -> Queue:
    """Return the queue of tasks that name none. It is opened once and kept."""
    named = _named_root()
    place = named or os.getcwd()
    queue = _defaults.get(place)
    if queue is None or queue.closed:
        root = reader.find_root(named, own=True)
        queue = _defaults.get(root)
        if queue is None or queue.closed:
            queue = open(root)
        _defaults[place] = _defaults[root] = queue
    return queue


def _named_root() -> str | None:
    """Return FARRO_ROOT. Inside a task it is the step's own: a task may run on a thread of a worker, whose environment
    differs."""
    call = function_calls.current()
    return (os.environ if call is None else call.env).get("FARRO_ROOT")
