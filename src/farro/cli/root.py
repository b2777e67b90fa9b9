"""`farro init`, `doctor`, `policy`: make a root, check it and its machine, and pin its policies."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from farro.cli.main import Hinting
from farro.cli.options import application, asked_store, common, json_option, read_root, root_option
from farro.cli.terminal import answer, complain, draws, say, table
from farro.config import reader
from farro.doctor import policy_lock, report
from farro.doctor import root as roots
from farro.doctor.checks import counted
from farro.doctor.report import CheckResult, Examination
from farro.errors import InputError, NotARoot

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
    if agents and folder in AGENTS and not os.path.exists(folder):
        raise click.UsageError(f"repeat the option for each program: --agents {agents[0]} --agents {folder}")
    path = os.path.abspath(folder or root or os.environ.get("FARRO_ROOT") or os.getcwd())
    was_root = os.path.isdir(f"{path}/jobs")
    settings = reader.load(path, warn=complain)
    if store is not None:
        reader.with_store(settings, store)  # refuse a wrong address before anything is made
    made = roots.init(path, settings)
    if store is not None and store != settings.store:
        if (by_hand := roots.set_store(path, store)) is None:
            made.append(_STORE_LINE)
        else:
            complain(f"the config is YAML, which farro does not rewrite; put this into it: {by_hand}")
    if not agents:
        if as_json:
            answer({"root": path, "made": made})
        else:
            _say_made(path, made, was_root, store)
        return
    from farro.agents import presets

    added = presets.add(path, agents, os.environ)
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

    from farro.agents.presets import preset

    if added.by_hand is not None:
        say(f"the config is YAML, which farro does not rewrite; put this into it:\n\n{added.by_hand}")
    elif added.made:
        say(f"agents-config.json: added {', '.join(added.made)}")
    else:
        say("the config: nothing was missing")
    if added.kept:
        say(f"kept as they are: {', '.join(added.kept)}")
    for name in dict.fromkeys(agents):
        found, needs = which(name), preset(name, os.environ).needs
        say(f"{name}: {'found at ' + found if found else 'not found on PATH; install it'}. Needs {needs}")
    say("see that it answers: farro provider-test --role SeniorEngineer; then: farro enqueue --prompt-json FILE")


_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}
FINISHED = 20_000


@click.command()
@click.option("--strict", is_flag=True, help="Fail on warnings too.")
@click.option(
    "--conformance",
    is_flag=True,
    help="Also compare with policy.lock.json and SPEC-1's profile, and print its checklist.",
)
@click.option("--all", "whole", is_flag=True, help=f"Open every finished job, not only {FINISHED:,} of them.")
@common
def doctor(strict: bool, conformance: bool, whole: bool, root: str | None, as_json: bool) -> int:
    """Check the root, its config, filesystem, log, jobs, and what agents need; print the commands that repair it.

    Changes nothing. Exit code 0: all is well, warnings aside; 1: something failed (with --strict: or warned).
    """
    path = reader.find_root(root, own=True)
    opened = None if whole else FINISHED
    checks = application().checks(path, finished=opened, conformance=conformance, store=asked_store())
    told = report.examine(checks, strict=strict, root=path, named=not _found_by_itself(path))
    items = report.checklist(told) if conformance else None
    if as_json:
        document = {
            "root": path,
            "strict": strict,
            "passed": told.passed,
            "checks": [result.to_json() for result in told.results],
        }
        answer(document if items is None else {**document, "checklist": items})
        return 0 if told.passed else 1
    _say_findings(told)
    if items is not None:
        say("\nConformance checklist (STRICT-MVP v1.0)")
        for item in items:
            open_ones = f"  (see {', '.join(item['open'][:6])})" if item["open"] else ""
            say(f"[{'x' if item['done'] else ' '}] {item['item']}{open_ones}")
    say(f"\n{_summary(told, path)}")
    return 0 if told.passed else 1


def _found_by_itself(path: str) -> bool:
    """Tell whether commands typed here find this root without --root."""
    try:
        return reader.find_root(None, own=True) == path
    except NotARoot:
        return False


def _say_findings(told: Examination) -> None:
    rows = [(result.finding.verdict, result.id, result.finding.found) for result in told.results]
    for line, row in zip(table(rows).splitlines(), rows, strict=True):
        _say_coloured(line, row[0])
    for result in told.troubles():
        _explain(result)


def _explain(result: CheckResult) -> None:
    found = result.finding
    say()
    _say_coloured(f"{found.verdict}: {result.id}: {found.found}", found.verdict)
    for line in found.details:
        say(f"  {line}")
    say(f"  why:    {found.cause}")
    for number, line in enumerate(found.repair):
        say(f"  {'repair:' if number == 0 else '       '} {line}")


def _say_coloured(line: str, verdict: str) -> None:
    """Print the first word in colour, where the terminal has colours."""
    word, rest = line[: len(verdict)], line[len(verdict) :]
    if draws(sys.stdout) and not os.environ.get("NO_COLOR"):
        click.echo(click.style(word, fg=_COLOURS[verdict]), nl=False)
        say(rest)
    else:
        say(line)


def _summary(told: Examination, path: str) -> str:
    counts = f"{told.count('ok')} ok, {counted(told.count('warning'), 'warning')}, {told.count('failed')} failed"
    verdict = "is well" if told.passed else "needs care"
    how = " by strict rules" if told.strict else ""
    return f"{path} {verdict}{how}: {counts}"


@click.group(cls=Hinting)
def policy() -> None:
    """Pin the policies of jobs in one file."""


@policy.command(short_help="Write policy.lock.json, or check it.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when the file is out of date.")
@common
def lock(check: bool, root: str | None, as_json: bool) -> int:
    """Write policy.lock.json: the pinned parameters, the version and hash of every policy, the hashes of the schemas.

    Deterministic: keep it in git, and a change of policy shows up in review.
    """
    path, settings = read_root(root)
    now = policy_lock.lock(path, settings)
    try:
        written = policy_lock.read(path)
    except InputError:
        if check:
            raise
        written = None  # it is replaced
    found = None if written is None else policy_lock.compare(written, now)
    if check:
        if as_json:
            differences = [{"path": item.path, "locked": item.wanted, "found": item.found} for item in found or ()]
            answer({"file": policy_lock.FILE, "locked": written is not None, "differences": differences})
        elif found is None:
            say(f"there is no {policy_lock.FILE}; write it with: farro policy lock")
        elif found:
            say("\n".join(map(str, found)))
        else:
            say(f"{policy_lock.FILE} is up to date")
        return 0 if found == [] else 1
    changed = policy_lock.write(path, now)
    if as_json:
        answer({"file": policy_lock.FILE, "changed": changed, "lock": now})
    else:
        say(f"{policy_lock.FILE} {'written' if changed else 'is up to date'}")
        for item in found or ():
            say(f"  {item}")
    return 0
