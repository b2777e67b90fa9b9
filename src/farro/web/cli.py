"""`farro web`: serve the dashboard and the HTTP API until a signal ends it; `--link` prints a sign-in link."""

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
from farro.cli.daemons import Signals, admit, end_well, log_to_stdout
from farro.cli.options import (
    App,
    application,
    asked_store,
    daemon,
    gate,
    operator_name,
    program,
    read_root,
)
from farro.cli.terminal import answer, note, say
from farro.config.settings import Settings
from farro.doctor import report
from farro.doctor.report import Examination
from farro.errors import FarroError, NotPermitted, StorageTrouble
from farro.log.structured import Log
from farro.swarm import service as swarms
from farro.web import access_keys

FINISHED = 2_000  # finished jobs that doctor opens: a page waits for the result


@click.command()
@listens
@click.option("--link", is_flag=True, help="Print a new link for a server that runs already, and exit.")
@click.option("--service", is_flag=True, hidden=True, help="For `farro up`: any port where its own is taken, no link.")
@daemon
def web(bind: str | None, link: bool, service: bool, root: str | None, as_json: bool) -> int:
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
    host, port = address_of(settings.web.bind if bind is None else bind)
    server_module, app = _server_module(), application()
    with _open_application(app, path, settings, log, host) as application_:
        server = server_module.WebServer(application_, log)
        listening = _bind(server_module, host, port, any_port=service)
        address = listening.getsockname()
        url = access_keys.address(address[0], address[1])
        fields = {"host": address[0], "port": address[1], "token": settings.web.token is not None, "pid": os.getpid()}
        with access_keys.announce(path, url, time.time_ns()):
            log("info", "web started", fields)
            signals.end(server.stop)
            if not service:  # a service writes stderr into its log, and the link signs a browser in
                note(f"open this once: {access_keys.link(url, access_keys.new_code(path, secrets.token_bytes))}")
            asyncio.run(server.run(listening))
            log("info", "web stopped", {})
            end_well()
    return 0


@contextmanager
def _open_application(app: App, path: str, settings: Settings, log: Log, host: str) -> Iterator[Any]:
    token = None if settings.web.token is None else settings.web.token.reveal(os.environ, "web.token")
    if token is None and not is_loopback(host):
        raise NotPermitted(
            f"farro web does not listen on {host} without a token: anyone who reaches it could run commands here. Set "
            '`web.token` in the config to "${NAME}" and the variable NAME to the token, or bind to 127.0.0.1'
        )
    store_url = asked_store()
    store = app.open_store(path, settings, log=log, actor=operator_name("web"))
    admit(app, store, settings, "web")
    try:
        yield app.web(
            store,
            settings,
            log=log,
            token=token,
            beyond=not is_loopback(host),
            person=operator_name("web"),
            gate=lambda force: gate(settings, force),
            examine=lambda: _examine(app, path, store_url),
            orchestrate=lambda: _ensure_orchestrator(path),
        )
    finally:
        store.close()


def _bind(server_module: ModuleType, host: str, port: int, *, any_port: bool) -> socket.socket:
    for number in (port, 0) if any_port else (port,):
        try:
            application_: socket.socket = server_module.bind(host, number)
            return application_
        except (OSError, socket.gaierror) as error:
            if number != 0 and any_port and getattr(error, "errno", None) == errno.EADDRINUSE:
                continue
            raise StorageTrouble(f"farro web cannot listen on {host}:{port}: {error.strerror or error}") from error
    raise AssertionError("unreachable")


def _link(path: str, url: str | None, as_json: bool) -> int:
    """Print a sign-in link. `url`: the address that the user gave, instead of the announced one."""
    application_ = sign_in_link(path, url)
    if application_ is None:  # no link at all is better than one to another root's server
        raise FarroError(f"no web runs here ({path}); `farro up` or `farro web` starts it, and prints a link")
    if as_json:
        answer({"link": application_})
    else:
        say(application_)
    return 0


def sign_in_link(path: str, url: str | None = None) -> str | None:
    """Create a link that signs in one browser once; None: no server of this root runs. `url` replaces its address."""
    known = access_keys.live_server(path)
    if known is None:
        return None
    return access_keys.link(url or known, access_keys.new_code(path, secrets.token_bytes))


def _ensure_orchestrator(path: str) -> None:
    """Start an orchestrator, which carries out the commands of swarms, unless one runs."""
    swarms.ensure_orchestrator(path, program())


def _examine(app: App, path: str, store_url: str | None) -> Examination:
    return report.examine(app.checks(path, finished=FINISHED, store=store_url), strict=False, root=path)


def _server_module() -> ModuleType:
    try:
        from farro.web import server as server_module
    except ImportError as error:
        raise FarroError(f"farro web needs {error.name}; install it with: pip install 'farro[web]'") from error
    return server_module
