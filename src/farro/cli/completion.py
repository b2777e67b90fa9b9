"""`farro completion`, and the names that Tab offers: jobs, roles, schedules, swarms, files.

Finding names must be quick and must not fail: with a wrong config, or without a root, nothing is offered.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
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


Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _offering(names: Callable[[str], Iterable[str]]) -> Completion:
    """Complete with names that `names` finds in the root."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        root = _root(context)
        found = () if root is None else (name for name in names(root) if name.startswith(incomplete))
        return [CompletionItem(name) for name in islice(found, OFFERED)]

    return complete


def _path(kind: str) -> Completion:
    """Let the shell complete the name of a file or a folder."""
    return lambda context, parameter, incomplete: [CompletionItem(incomplete, type=kind)]


def equip(command: click.Command) -> None:
    """Give every parameter of a command its completion, chosen by the name of the parameter or of its value."""
    for parameter in command.params:
        if parameter._custom_shell_complete is None and not isinstance(parameter.type, click.Choice):
            parameter._custom_shell_complete = _completion_of(command, parameter)
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            equip(inner)


def _completion_of(command: click.Command, parameter: click.Parameter) -> Completion | None:
    name, value = (parameter.name or "").lower(), parameter.metavar or ""
    jobs, file = _offering(_jobs), _path("file")
    if "--job" in parameter.opts:
        return _offering(lambda root: sorted(islice(_names(f"{root}/jobs/.names"), LOOKED_AT)))
    if name in _JOBS:
        return jobs
    if name in ("role", "roles"):
        return _offering(lambda root: sorted(name for name in _names(f"{root}/agents") if ids.ROLE.fullmatch(name)))
    if name in _FOLDERS:
        return _path("dir")
    if "FILE" in value and "JOB" in value:
        return lambda *given: [*jobs(*given), *file(*given)]
    if "FILE" in value:
        return file
    if value == "SCHEDULE":
        return _offering(lambda root: sorted({name.rsplit(".", 1)[0] for name in _names(f"{root}/schedules")}))
    if value.strip("[]") == "SWARM" and command.name != "create":  # a new swarm needs a new name
        return _offering(_swarms)
    return None


def _jobs(root: str) -> Iterator[str]:
    """Yield the names of job folders, unfinished ones first; no job is opened."""
    known = chain(_names(f"{root}/jobs/.names"), _job_names(root))
    return (name for name in islice(known, LOOKED_AT) if ids.is_job_id(name))


def _swarms(root: str) -> list[str]:
    """Return all swarms that were ever created: only their files tell which were removed, and none is opened."""
    return [name for name in sorted(_names(f"{root}/swarms")) if os.path.exists(f"{root}/swarms/{name}/desired.json")]


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


def _root(context: click.Context) -> str | None:
    with contextlib.suppress(FarroError, OSError):
        return reader.find_root(context.params.get("root"), own=True)
    return None


def _names(folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                yield entry.name
