"""Options that `farro run`, `farro enqueue` and `agx submit` share: how and when a job runs, its command, its input."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from farro.cli.options import application, option_group
from farro.cli.terminal import note
from farro.errors import InputError
from farro.jobs.request import JobRequest
from farro.jobs.start_times import FORMS
from farro.lazy_dataclass import dataclass
from farro.plans.forms import is_agent_prompt
from farro.plans.metadata import PRIORITIES

if TYPE_CHECKING:
    from farro.config.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

COMMAND = "farro.command"  # in click's meta: the words after `--`; None without `--`
_NOTICE_AFTER_S = 2.0  # how long to wait for standard input before a note is printed


class WithCommand(click.Command):
    """A command that takes another after `--`. Click drops the `--`, and then a file looks like a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[COMMAND] = None
        if "--" in args:
            place = args.index("--")
            args, ctx.meta[COMMAND] = args[:place], tuple(args[place + 1 :])
            if not ctx.meta[COMMAND]:
                raise click.UsageError(f"there is no command after --; for example: farro {ctx.info_name} -- make test")
        return super().parse_args(ctx, args)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOptions:
    """How a job runs: where, with which environment, for how long, and which workers may take it."""

    role: str | None
    tags: tuple[str, ...]
    priority: str | None
    timeout: str | None
    cwd: str | None
    env: tuple[str, ...]
    check_tools: bool

    def request(self, *, job_id: str | None, start: StartOptions | None = None, force: bool = False) -> JobRequest:
        """Decode the options; `queue.submit` checks them. A command that was typed here runs in this folder."""
        return JobRequest(
            id=job_id,
            role=self.role,
            tags=self.tags,
            priority=self.priority,
            timeout=self.timeout,
            folder=os.getcwd(),
            cwd=self.cwd,
            env=pairs(self.env),
            delay=None if start is None else start.delay,
            at=None if start is None else start.at,
            after=() if start is None else named_jobs("--after", start.after),
            after_any=() if start is None else named_jobs("--after-any", start.after_any),
            force=force,
        )

    def check(self, prompts: Iterable[Any], settings: Settings) -> None:
        """With --check-tools, refuse plans whose steps would fail on this machine for lack of a program."""
        if not self.check_tools:
            return
        from farro.documents import render_path
        from farro.plans.loading import load_data
        from farro.queue.plan_check import missing_tools

        context = application().plan_context(settings)
        for prompt in prompts:
            if not is_agent_prompt(prompt):
                for path, message in missing_tools(load_data(prompt, "the plan"), context):
                    raise InputError(f"{render_path(path)}: {message}. Nothing was queued")


def job_options(command: F) -> F:
    """Add the options of `JobOptions`; the command gets them as `job`."""
    return option_group(
        "job",
        JobOptions,
        click.option("--role", metavar="ROLE", help="The queue; default: the plan's `role`, else Runner."),
        click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only a worker that offers it; repeatable."),
        click.option("--priority", type=click.Choice(PRIORITIES), help="P0 runs first, P3 last; default: P2."),
        click.option("--timeout", metavar="DURATION", help="End it after this time, such as 90s, 10m or 2h."),
        click.option("--cwd", metavar="DIR", help="Where the command runs; default: this folder."),
        click.option("--env", multiple=True, metavar="NAME=VALUE", help="Set a variable for it; repeatable."),
        click.option("--check-tools", is_flag=True, help="Refuse it if this machine lacks a program of its steps."),
    )(command)


@dataclass(frozen=True, kw_only=True, slots=True)
class StartOptions:
    """When a job starts: at a time, after a delay, after other jobs."""

    delay: str | None
    at: str | None
    after: tuple[str, ...]
    after_any: tuple[str, ...]


def start_options(command: F) -> F:
    """Add the options of `StartOptions`; the command gets them as `start`."""
    return option_group(
        "start",
        StartOptions,
        click.option("--delay", metavar="DURATION", help="Start no sooner than this from now, such as 10m, 2h or 1d."),
        click.option("--at", metavar="TIME", help=f"Start no sooner than this: {FORMS}. Local unless it names a zone."),
        click.option("--after", multiple=True, metavar="JOB", help="Start when that job has succeeded; repeatable."),
        click.option(
            "--after-any", multiple=True, metavar="JOB", help="Start when that job has ended, well or not; repeatable."
        ),
    )(command)


def pairs(env: tuple[str, ...]) -> dict[str, str]:
    return dict(_pair(item) for item in env)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--env: {text!r} is not NAME=VALUE, where NAME consists of letters, digits and _")
    return name, value


def named_jobs(option: str, given: tuple[str, ...]) -> tuple[str, ...]:
    """Split job ids given as `--after A --after B`, `--after A,B`, or as lines that a shell put into one word.

    Refuse an empty name: it comes from an empty variable, and ignoring it would start the job too early.
    """
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


def piped_input(limit: int) -> bytes | None:
    """Read what is piped or redirected into the program; None where nothing is. A terminal is left alone, and so is a
    stdin that is not a finite stream of bytes (a socket, /dev/null)."""
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # there is no stdin
        return None
    if not (stat.S_ISFIFO(kind) or stat.S_ISREG(kind)):
        return None
    if not select.select([sys.stdin], [], [], _NOTICE_AFTER_S)[0]:
        note("waiting for the end of standard input; --no-input leaves it alone")
    data = sys.stdin.buffer.read(limit + 1)
    if len(data) > limit:
        raise InputError(
            f"standard input is more than {limit} bytes, the most that a job may bring (security.max_job_bytes); put "
            "it into a file that the workers can read, and name that"
        )
    return data or None
