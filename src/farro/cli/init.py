"""`farro init`: make a folder a farro root."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from farro.cli import terminal
from farro.cli.options import json_option, root_option
from farro.cli.terminal import answer, say
from farro.config import reader
from farro.doctor import root as roots

if TYPE_CHECKING:
    from farro.agents.presets import AddedPresets

AGENTS = ("claude", "codex", "gemini")
_STORE_LINE = f"{roots.CONFIG}: store"  # in the list of made things: a line of the config, not a file


@click.command()
@click.argument("folder", required=False, metavar="[FOLDER]")
@click.option(
    "--agents",
    multiple=True,
    type=click.Choice(AGENTS),
    help="Let this program answer agent prompts; repeatable. It must be installed.",
)
@click.option(
    "--store",
    metavar="URL",
    help='Set the store in the config: redis://HOST:PORT/DB, or "files", in this folder.',
)
@root_option("The folder; else FARRO_ROOT, else this one. It is made when it does not exist.")
@json_option("Answer as JSON.")
def init(folder: str | None, agents: tuple[str, ...], store: str | None, root: str | None, as_json: bool) -> None:
    """Make a folder a farro root. Safe to repeat: what is there is kept, what is missing is made.

    With --agents the config gets a provider for each program, and every agent role that has none is answered by the
    first; reviews by the last.
    """
    if folder is not None and root is not None:
        raise click.UsageError(f"{folder} and --root {root} both say which folder; keep one of them")
    path = os.path.abspath(folder or root or os.environ.get("FARRO_ROOT") or os.getcwd())
    was_root = os.path.isdir(f"{path}/jobs")
    settings = reader.load(path, warn=terminal.complain)
    if store is not None:
        reader.with_store(settings, store)  # refuse a wrong address before anything is made
    made = roots.init(path, settings)
    if store is not None and store != settings.store:
        if (by_hand := roots.set_store(path, store)) is None:
            made.append(_STORE_LINE)
        else:
            terminal.complain(f"the config is YAML, which farro does not rewrite; put this into it: {by_hand}")
    if not agents:
        if as_json:
            answer({"root": path, "made": made})
        else:
            _say_made(path, made, was_root, store)
        return
    from farro.agents import presets

    added = presets.add(path, agents)
    reader.load(path)  # raises where the written config is wrong
    if as_json:
        told = {"made": list(added.made), "kept": list(added.kept), "by_hand": added.by_hand}
        answer({"root": path, "made": made, "agents": told})
        return
    _say_made(path, made, was_root, store)
    _say_agents(path, agents, added)


def _say_made(path: str, made: list[str], was_root: bool, store: str | None) -> None:
    missing = [name for name in made if name != _STORE_LINE]
    if not made:
        say(f"{path} is a farro root already; nothing was missing")
    elif not was_root:
        say(f"{path} is a farro root now. Queue something with: farro enqueue -- COMMAND, or --plan FILE")
    elif missing:
        named = [name for name in missing if not any(name.startswith(f"{other}/") for other in missing)]
        say(f"{path} is whole again; made {', '.join(named)}")
    if was_root and _STORE_LINE in made:
        say(f"{path}/{roots.CONFIG} says `store: {store}` now; restart what runs here")


def _say_agents(path: str, agents: tuple[str, ...], added: AddedPresets) -> None:
    from shutil import which  # noqa: TID251 - only looks

    from farro.agents.presets import PRESETS

    if added.by_hand is not None:
        say(f"the config is YAML, which farro does not rewrite; put this into it:\n\n{added.by_hand}")
    elif added.made:
        say(f"agents-config.json: added {', '.join(added.made)}")
    else:
        say("the config: nothing was missing")
    if added.kept:
        say(f"kept as they are: {', '.join(added.kept)}")
    for name in dict.fromkeys(agents):
        found = which(PRESETS[name].provider["command"][0])
        say(f"{name}: {'found at ' + found if found else 'not found on PATH; install it'}. Needs {PRESETS[name].needs}")
    say("see that it answers: farro provider-test --role SeniorEngineer; then: farro enqueue --prompt-json FILE")
