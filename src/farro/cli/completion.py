"""`farro completion`, and the names that Tab offers: jobs, roles, schedules, swarms, files.

Finding names must be quick and must not fail: with a wrong config, or without a root, nothing is offered.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import chain, islice

import click
from click.shell_completion import CompletionItem, get_completion_class

from farro.cli.options import common
from farro.cli.terminal import reply
from farro.config import reader
from farro.errors import FarroError
from farro.jobs import ids

OFFERED = 200  # names; a person reads no more
LOOKED_AT = 20_000  # names: Tab must not read a queue of a million
_JOBS = {"job", "jobs", "named", "job_id", "job_ids", "after", "after_any"}
_FOLDERS = {"root", "folder", "cwd"}


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common
@click.pass_context
def completion(context: click.Context, shell: str, root: str | None, as_json: bool) -> None:
    """Print a script that makes Tab complete commands, options, job ids and roles.

    \b
    bash   put into ~/.bashrc:   eval "$(farro completion bash)"
    zsh    put into ~/.zshrc:    eval "$(farro completion zsh)"
    fish   farro completion fish > ~/.config/fish/completions/farro.fish
    """
    program = context.find_root().info_name or "farro"
    made = get_completion_class(shell)
    assert made is not None
    variable = f"_{program}_COMPLETE".replace("-", "_").upper()
    # Not `source()`, which starts a bash to ask for its version.
    whole = made(context.find_root().command, {}, program, variable)
    script = whole.source_template % whole.source_vars()
    reply(as_json, {"shell": shell, "script": script}, script)


def equip(command: click.Command) -> None:
    """Give every parameter of a command its completion, chosen by the name of the parameter or of its value."""
    for parameter in command.params:
        name, value = (parameter.name or "").lower(), parameter.metavar or ""
        if parameter._custom_shell_complete is not None or isinstance(parameter.type, click.Choice):
            continue
        if "--job" in parameter.opts:
            parameter._custom_shell_complete = _named_jobs
        elif name in _JOBS:
            parameter._custom_shell_complete = _jobs
        elif name in ("role", "roles"):
            parameter._custom_shell_complete = _roles
        elif name in _FOLDERS:
            parameter._custom_shell_complete = _folders
        elif "FILE" in value:
            parameter._custom_shell_complete = _jobs_or_file if "JOB" in value else _some_file
        elif value == "SCHEDULE":
            parameter._custom_shell_complete = _schedules
        elif value.strip("[]") == "SWARM" and command.name != "create":  # a new swarm needs a new name
            parameter._custom_shell_complete = _swarms
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            equip(inner)


def _jobs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the names of job folders, unfinished ones first; no job is opened."""
    root = _root(context)
    if root is None:
        return []
    known = chain(_names(f"{root}/jobs/.names"), _job_names(root))
    names = (name for name in islice(known, LOOKED_AT) if name.startswith(incomplete) and ids.is_job_id(name))
    return [CompletionItem(name) for name in islice(names, OFFERED)]


def _named_jobs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    root = _root(context)
    found = [] if root is None else sorted(islice(_names(f"{root}/jobs/.names"), LOOKED_AT))
    return [CompletionItem(name) for name in found if name.startswith(incomplete)][:OFFERED]


def _job_names(root: str) -> Iterator[str]:
    roles = [f"{root}/agents/{name}" for name in _names(f"{root}/agents")]
    for role in roles:
        for agent in _names(f"{role}/in-progress"):
            yield from _names(f"{role}/in-progress/{agent}")
    yield from _names(f"{root}/jobs/stale")
    for role in roles:
        yield from _names(f"{role}/incoming")
    yield from _names(f"{root}/agents/Manager/waiting")
    for role in roles:
        for ending in ("failed", "killed", "succeeded"):
            yield from _names(f"{role}/completed/{ending}")


def _roles(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    root = _root(context)
    found = [] if root is None else sorted(_names(f"{root}/agents"))
    return [CompletionItem(name) for name in found if name.startswith(incomplete) and ids.ROLE.fullmatch(name)]


def _schedules(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    root = _root(context)
    found = [] if root is None else sorted({name.rsplit(".", 1)[0] for name in _names(f"{root}/schedules")})
    return [CompletionItem(name) for name in found if name.startswith(incomplete)]


def _swarms(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer all swarms that were ever created: only their files tell which were removed, and none is opened."""
    root = _root(context)
    known = [] if root is None else sorted(_names(f"{root}/swarms"))
    found = [name for name in known if os.path.exists(f"{root}/swarms/{name}/desired.json")]
    return [CompletionItem(name) for name in found if name.startswith(incomplete)][:OFFERED]


def _folders(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def _some_file(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def _jobs_or_file(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [*_jobs(context, parameter, incomplete), *_some_file(context, parameter, incomplete)]


def _root(context: click.Context) -> str | None:
    with contextlib.suppress(FarroError, OSError):
        return reader.find_root(context.params.get("root"), own=True)
    return None


def _names(folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                yield entry.name
