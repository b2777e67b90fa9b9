"""`farro agq`: serve the queues over RESP until a signal comes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from farro.cli.daemons import Signals, admit, end_well, log_to_stdout
from farro.cli.options import application, daemon, read_root
from farro.config.settings import Settings
from farro.errors import NotPermitted, StorageTrouble
from farro.host import process_limits
from farro.host.clock import SystemClock
from farro.jobs.ids import IdMint
from farro.queue.admission import current_user
from farro.queue.submit import SubmitPolicy

if TYPE_CHECKING:
    from farro.agq.server import AgqServer, ServerOptions
    from farro.log.structured import Log


def listens(command: Callable[..., int]) -> Callable[..., int]:
    """Add the option `--bind`, and refuse `--host` and `--port` with a hint, because other programs call it so."""

    def refuse(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            example = f"127.0.0.1:{value}" if parameter.name == "port" and value.isdecimal() else "127.0.0.1:0"
            raise click.UsageError(f"--host and --port are one option here: --bind HOST:PORT, such as --bind {example}")

    for name in ("--host", "--port"):
        command = click.option(name, hidden=True, expose_value=False, callback=refuse)(command)
    bind = click.option(
        "--bind", metavar="HOST:PORT", help="Where to listen; else as the config says. Port 0: a free one."
    )
    return bind(command)


@click.command()
@listens
@daemon
def agq(bind: str | None, root: str | None, as_json: bool) -> int:
    """Serve the queues to any Redis client: LPUSH and BRPOP of jobs, results, updates. Logs as a worker does.

    SIGTERM or Ctrl-C: connections are closed, and jobs that their clients hold go back into their queues.
    """
    import asyncio  # here, as the libraries below: the help does not need them
    import random

    signals = Signals()
    path, settings = read_root(root)
    options = _options(settings, bind)
    _allow_files(settings.agq.max_connections)
    log = log_to_stdout("agq", as_json, settings.runners)
    app = application()
    store = app.open_store(path, settings, log=log, actor="agq")
    admit(app, store, settings, "agq")
    try:
        from farro.agq import memo_jobs
        from farro.agq.server import AgqServer

        server = AgqServer(
            store=store,
            library=app.library(path, settings),
            options=options,
            log=log,
            mint=IdMint(SystemClock().now, random.SystemRandom().getrandbits).mint,
            policy=SubmitPolicy.of(path, settings, user=current_user(), spell=memo_jobs.spell),
        )
        asyncio.run(_serve(server, signals, log))
        if (
            server.stuck
        ):  # the store does not answer; the leases end with this process, and a watchdog recovers the jobs
            log("error", "agq stopped while the store did not answer", {})
            end_well()
            os._exit(1)
        log("info", "agq stopped", {})
        end_well()
    finally:
        store.close()
    return 0


def _options(settings: Settings, bind: str | None) -> ServerOptions:
    """Read the options from the config. NotPermitted: an address that other machines reach needs a key."""
    from importlib import metadata

    from farro.agq.server import ServerOptions

    host, port = address_of(settings.agq.bind if bind is None else bind)
    # AGQ_KEY is the key of another server, which this machine's workers use.
    key = os.environ.get("AGQ_SESSION_KEY") or None
    if settings.agq.key is not None:
        key = settings.agq.key.reveal(os.environ, "agq.key")
    if key is None and not is_loopback(host):
        raise NotPermitted(
            f"farro agq does not listen on {host} without a key: anyone who reaches it could run commands here. Set "
            '`agq.key` in the config to "${NAME}" and the variable NAME to the key, or bind to 127.0.0.1'
        )
    return ServerOptions(
        host=host,
        port=port,
        key=key,
        max_connections=settings.agq.max_connections,
        worker_ttl_s=settings.agq.worker_ttl_s,
        beat_s=_beat_s(settings),
        remote_store="://" in settings.store,
        max_job_bytes=settings.security.max_job_bytes,
        version=metadata.version("farro"),
    )


async def _serve(server: AgqServer, signals: Signals, log: Log) -> None:
    """Listen until a signal comes."""
    options = server.options
    try:
        host, port = await server.start()
    except OSError as error:
        raise StorageTrouble(
            f"farro agq cannot listen on {options.host}:{options.port}: {error.strerror or error}"
        ) from error
    signals.end(server.stop)
    started = {"host": host, "port": port, "key": options.key is not None, "pid": os.getpid()}
    log("info", "agq started", {**started, "workers": f"agw --store agq://{reached(host)}:{port}"})
    await server.ended()


def reached(host: str) -> str:
    """Return the host under which workers reach it: 0.0.0.0 stands for every address and is none itself."""
    import ipaddress
    import socket

    if ipaddress.ip_address(host).is_unspecified:
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is not an address such as 127.0.0.1:6380", param_hint="--bind")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    import ipaddress

    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _allow_files(connections: int) -> None:
    """Raise the limit of open files: each connection and each held job needs one. Shells often allow fewer."""
    process_limits.allow_open_files(4 * connections + 256)


def _beat_s(settings: Settings) -> float:
    """Return the heartbeat interval: several beats in the time after which the store declares an agent dead."""
    return max(0.2, min(5.0, settings.watchdog.stale_after_s / 4, settings.redis.lease_s / 4))
