"""`farro completion`, and the names that Tab offers: jobs, roles, schedules, swarms, files.

Finding names must be quick and must not fail: with a wrong config, or without a root, nothing is offered.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from itertools import islice

import click
from click.shell_completion import CompletionItem, get_completion_class

from farro.cli.offered_names import LOOKED_AT, OFFERED, job_names, names
from farro.cli.options import common
from farro.cli.terminal import reply
from farro.config import reader
from farro.errors import FarroError
from farro.jobs import ids

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


def _offering(find: Callable[[str], Iterable[str]]) -> Completion:
    """Complete with names that `find` finds in the root."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        root = _root(context)
        found = () if root is None else (name for name in find(root) if name.startswith(incomplete))
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
    jobs, file = _offering(job_names), _path("file")
    if "--job" in parameter.opts:
        return _offering(lambda root: sorted(islice(names(f"{root}/jobs/.names"), LOOKED_AT)))
    if name in _JOBS:
        return jobs
    if name in ("role", "roles"):
        return _offering(lambda root: sorted(name for name in names(f"{root}/agents") if ids.ROLE.fullmatch(name)))
    if name in _FOLDERS:
        return _path("dir")
    if "FILE" in value and "JOB" in value:
        return lambda *given: [*jobs(*given), *file(*given)]
    if "FILE" in value:
        return file
    if value == "SCHEDULE":
        return _offering(lambda root: sorted({name.rsplit(".", 1)[0] for name in names(f"{root}/schedules")}))
    if value.strip("[]") == "SWARM" and command.name != "create":  # a new swarm needs a new name
        return _offering(_swarms)
    return None


def _swarms(root: str) -> list[str]:
    """Return all swarms that were ever created: only their files tell which were removed, and none is opened."""
    return [name for name in sorted(names(f"{root}/swarms")) if os.path.exists(f"{root}/swarms/{name}/desired.json")]


def _root(context: click.Context) -> str | None:
    with contextlib.suppress(FarroError, OSError):
        return reader.find_root(context.params.get("root"), own=True)
    return None
