"""What `farro run` and `farro enqueue` share: a command after `--`, and the options that say how a job shall be run.

And what is piped in. What the options mean lives in operations.submit.
"""

from __future__ import annotations

import os
import re
import select
import stat
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from farro.cli.terminal import note
from farro.errors import InputError
from farro.host.clock_port import Clock
from farro.jobs.start_times import FORMS, parse_start
from farro.jobs.times import parse_duration
from farro.plans.priority import PRIORITIES
from farro.queue.options import SubmitOptions

F = TypeVar("F", bound=Callable[..., Any])

COMMAND = "farro.command"  # in click's meta: what stood after `--`, None without one
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
MAX_DELAY_S = 3650 * 86_400.0
_PATIENCE_S = 2.0  # before it is said that standard input has not ended


class WithCommand(click.Command):
    """A command that takes another after `--`. Click drops the `--`, and then a file cannot be told from a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[COMMAND] = None
        if "--" in args:
            place = args.index("--")
            args, ctx.meta[COMMAND] = args[:place], tuple(args[place + 1 :])
            if not ctx.meta[COMMAND]:
                raise click.UsageError(f"there is no command after --; for example: farro {ctx.info_name} -- make test")
        return super().parse_args(ctx, args)


def how_to_run(command: F) -> F:
    """The options of a job that starts now or later."""
    for option in reversed(
        [
            click.option("--role", metavar="ROLE", help="The queue; else the plan's `role`, else Runner."),
            click.option(
                "--tag", "tags", multiple=True, metavar="TAG", help="Only a worker that offers it; repeatable."
            ),
            click.option("--priority", type=click.Choice(PRIORITIES), help="P0 first, P3 last; else P2."),
            click.option("--timeout", metavar="DURATION", help="End it after so long, such as 90s, 10m or 2h."),
            click.option("--cwd", metavar="DIR", help="Where the command runs; else this folder."),
            click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="For its environment; repeatable."),
        ]
    ):
        command = option(command)
    return command


def submit_options(
    *,
    tags: tuple[str, ...],
    priority: str | None,
    timeout: str | None,
    cwd: str | None,
    env: tuple[str, ...],
    after: tuple[str, ...] = (),
    after_any: tuple[str, ...] = (),
    not_before: datetime | None = None,
    typed: bool,
) -> SubmitOptions:
    """What the options ask for. A command that was typed at a prompt runs where it was typed."""
    where = os.path.abspath(cwd) if cwd is not None else os.getcwd() if typed else None
    if where is not None and not os.path.isdir(where):
        raise InputError(f"--cwd: {cwd} is not a folder")
    return SubmitOptions(
        tags=tags,
        priority=priority,
        timeout_s=None if timeout is None else _timeout_s(timeout),
        cwd=where,
        env=pairs(env),
        after=named_jobs("--after", after),
        after_any=named_jobs("--after-any", after_any),
        not_before=not_before,
    )


def start_time(delay: str | None, at: str | None, clock: Clock) -> datetime | None:
    if delay is not None and at is not None:
        raise click.UsageError("--delay and --at both say when it starts; keep one of them")
    try:
        if delay is not None:
            delay_s = parse_duration(delay)
            if delay_s > MAX_DELAY_S:
                raise ValueError(f"{delay} is more than ten years, the longest delay that farro takes")
            return clock.now() + timedelta(seconds=delay_s)
        if at is not None:
            return parse_start(at, clock.now(), lambda moment: moment.astimezone())
    except ValueError as error:
        raise InputError(f"{'--at' if delay is None else '--delay'}: {error}") from error
    return None


AT_HELP = f"Not before that time: {FORMS}. Local unless it names a zone."


def _timeout_s(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise InputError(f"--timeout: {error}") from error
    if not 0 < seconds <= 365 * 86_400:
        raise InputError(f"--timeout: {text} is not between an instant and a year")
    return seconds


def pairs(env: tuple[str, ...]) -> dict[str, str]:
    return dict(_pair(item) for item in env)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or _VARIABLE.fullmatch(name) is None:
        raise InputError(f"--env: {text!r} is not NAME=VALUE, where a NAME is of letters, digits and _")
    return name, value


def named_jobs(option: str, given: tuple[str, ...]) -> tuple[str, ...]:
    """Ids, however they were given: `--after A --after B`, `--after A,B`, or the lines that a shell put into one. A
    place without a name is a variable that was empty: to go on without it would be to start too early."""
    found: dict[str, None] = {}
    for item in given:
        for part in item.split(","):
            if not part.split():
                where = "is empty" if not item.strip() else f"{item!r} has a comma with no name beside it"
                raise InputError(
                    f"{option}: {where}; name a job there (`farro ls` lists them), or leave the option out"
                )
            found.update(dict.fromkeys(part.split()))
    return tuple(found)


def piped(limit: int) -> bytes | None:
    """What was piped or redirected into the program; None: nothing was. A terminal, and what is no stream of bytes that
    ends (a socket, /dev/null), is left alone."""
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # there is none
        return None
    if not (stat.S_ISFIFO(kind) or stat.S_ISREG(kind)):
        return None
    if not select.select([sys.stdin], [], [], _PATIENCE_S)[0]:
        note("waiting for the end of standard input; --no-input leaves it alone")
    data = sys.stdin.buffer.read(limit + 1)
    if len(data) > limit:
        raise InputError(
            f"standard input is more than {limit} bytes, the most that a job may bring (security.max_job_bytes); put "
            "it into a file that the workers can read, and name that"
        )
    return data or None
