"""`farro web`: the dashboard and the HTTP API on a port, until a signal ends it; `--link` prints a link to sign in.

What it serves lives in fronts.http; its token and links, in operations.web_access.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import click

from farro.agq.cli import address_of, is_loopback, listens
from farro.cli.background import program
from farro.cli.daemon_process import Signals, admit, end_well, log_to_stdout
from farro.cli.options import App, application, asked_store, daemon, gate, operator_name, read_root, starts_strictly
from farro.cli.terminal import answer, note, say
from farro.config.settings import Settings
from farro.doctor import report
from farro.doctor.report import Examination
from farro.errors import FarroError, NotPermitted, StorageTrouble
from farro.lazy_dataclass import dataclass
from farro.log.structured import Log
from farro.swarm import service as swarms
from farro.web import access_keys

FINISHED = 2_000  # finished jobs that doctor opens: a page waits for it


@click.command()
@listens
@click.option("--link", is_flag=True, help="Print a new link for a server that runs already, and exit.")
@daemon
def web(bind: str | None, link: bool, root: str | None, as_json: bool) -> int:
    """Serve the dashboard and the HTTP API. Prints a link that signs a browser in, once; logs as a worker does.

    Programs send the token of the config (web.token), or the one in jobs/.web/token: Authorization: Bearer TOKEN.
    SIGTERM or Ctrl-C: answers that are on their way are finished, streams are closed.
    """
    signals = None if link else Signals()
    path, settings = read_root(root)
    if link:
        return _link(path, None if bind is None else access_keys.address(*address_of(bind)), as_json)
    assert signals is not None
    log = log_to_stdout("web", as_json, settings.runners)
    with served(application(), path, settings, log, bind=bind) as here:
        signals.end(here.server.stop)
        note(f"open this once: {here.link()}")  # in no log
        asyncio.run(here.server.run(here.listening))
        log("info", "web stopped", {})
        end_well()
    return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """A server that listens, and has not begun to answer."""

    root: str
    url: str
    server: Any
    listening: socket.socket

    def link(self) -> str:
        return access_keys.link(self.url, access_keys.code(self.root, secrets.token_bytes))


@contextmanager
def served(
    app: App, path: str, settings: Settings, log: Log, *, bind: str | None = None, any_port: bool = False
) -> Iterator[Served]:
    """For `farro web` and for the member of a swarm. `any_port`: where that one is taken, another."""
    host, port = address_of(settings.web.bind if bind is None else bind)
    token = None if settings.web.token is None else settings.web.token.reveal(os.environ, "web.token")
    if token is None and not is_loopback(host):
        raise NotPermitted(
            f"farro web does not listen on {host} without a token: anyone who reaches it could run commands here. Set "
            '`web.token` in the config to "${NAME}" and the variable NAME to the token, or bind to 127.0.0.1'
        )
    serving, store_url = _library(), asked_store()
    store = app.open_store(path, settings, log=log, actor=operator_name("web"))
    admit(app, store, "web", strict=starts_strictly(settings))
    try:
        made = app.web(
            store,
            settings,
            log=log,
            token=token,
            beyond=not is_loopback(host),
            person=operator_name("web"),
            gate=lambda force: gate(settings, force),
            examine=lambda: _examined(app, path, store_url),
            orchestrate=lambda: _orchestrate(path),
        )
        server = serving.Serving(made, log)
        listening = _listening(serving, host, port, any_port=any_port)
        there = listening.getsockname()
        url = access_keys.address(there[0], there[1])
        told = {"host": there[0], "port": there[1], "token": token is not None, "pid": os.getpid()}
        with access_keys.announced(path, url, time.time_ns()):
            log("info", "web started", told)
            yield Served(root=path, url=url, server=server, listening=listening)
    finally:
        store.close()


def _listening(serving: ModuleType, host: str, port: int, *, any_port: bool) -> socket.socket:
    for number in (port, 0) if any_port else (port,):
        try:
            made: socket.socket = serving.bind(host, number)
            return made
        except (OSError, socket.gaierror) as error:
            if number != 0 and any_port and getattr(error, "errno", None) == errno.EADDRINUSE:
                continue
            raise StorageTrouble(f"farro web cannot listen on {host}:{port}: {error.strerror or error}") from error
    raise AssertionError("unreachable")


def _link(path: str, url: str | None, as_json: bool) -> int:
    """`url`: where a person says that it is reached."""
    made = sign_in_link(path, url)
    if made is None:  # a link to somebody else's server, or to nobody, would be taken for one to this root's
        raise FarroError(f"no web runs here ({path}); `farro up` or `farro web` starts it, and prints a link")
    if as_json:
        answer({"link": made})
    else:
        say(made)
    return 0


def sign_in_link(path: str, url: str | None = None) -> str | None:
    """Make a link that signs a browser in once; None where no web runs here. `url`: used instead of its own address."""
    known = access_keys.living(path)
    if known is None:
        return None
    return access_keys.link(url or known, access_keys.code(path, secrets.token_bytes))


def _orchestrate(path: str) -> None:
    """Somebody must carry out what is asked of swarms."""
    swarms.ensure_orchestrator(path, program())


def _examined(app: App, path: str, store_url: str | None) -> Examination:
    return report.examine(app.checks(path, finished=FINISHED, store=store_url), strict=False, root=path)


def _library() -> ModuleType:
    try:
        from farro.web import server as serving
    except ImportError as error:
        raise FarroError(f"farro web needs {error.name}; install it with: pip install 'farro[web]'") from error
    return serving
