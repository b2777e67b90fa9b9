"""`agx new`, `add`, `remove`, `undo`, `redo`: edit the draft."""

from __future__ import annotations

import os
import random
import shlex
from dataclasses import asdict
from typing import Any

import click

from farro.agx import drafting
from farro.agx.cli import show
from farro.agx.cli.context import AgxSession, common
from farro.agx.drafting import Draft
from farro.cli.options import application, option_group
from farro.cli.submit_options import COMMAND, WithCommand, pairs
from farro.cli.terminal import answer, at_terminal, note, say, seconds
from farro.errors import InputError
from farro.host.clock import SystemClock
from farro.lazy_dataclass import dataclass


@click.command()
@click.argument("name", required=False)
@common
def new(name: str | None, session: AgxSession) -> None:
    """Begin a new draft; NAME is what it will be saved as. The one before it comes back with `agx undo`."""
    draft = drafting.begin(session.drafts, name)
    kept = len(draft.before[-1].get("steps") or ()) if draft.before else 0
    if session.as_json:
        answer(_told(draft))
        return
    say(f"{draft.name or 'draft'}: empty")
    if kept:
        say(f"the draft before it ({kept} step{'s' if kept != 1 else ''}) is kept: agx undo")


class AddCommand(WithCommand):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[-1:] == ["--"]:
            raise click.UsageError("there is no command after --; for example: agx add -- sort names.txt", ctx)
        typed = [word for word in args if word not in ("--json", "--text")]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as unknown:
            raise click.UsageError(
                f"no option {unknown.option_name}; a command stands after --: agx add -- {shlex.join(typed)}", ctx
            ) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOptions:
    """How each added command runs."""

    input_from: str | None
    timeout: float | None
    tool: str | None
    cwd: str | None
    env: tuple[str, ...]
    literal: bool

    def refuse(self) -> None:
        for name in (name for name, value in asdict(self).items() if value):
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(
                f"{option} is for commands, after --; in words, say it: 'with a timeout of a minute'"
            )

    def fields(self, *, remote: bool) -> dict[str, Any]:
        """Return the fields of each added step. On a remote machine `cwd` is a folder of that machine."""
        timeout = int(self.timeout) if self.timeout is not None and self.timeout.is_integer() else self.timeout
        cwd = self.cwd if self.cwd is None or remote else os.path.abspath(self.cwd)
        given = {"tool": self.tool or None, "timeout": timeout, "cwd": cwd, "env": pairs(self.env) or None}
        return {name: value for name, value in given.items() if value is not None}


@click.command(cls=AddCommand)
@click.argument("words", nargs=-1, metavar="['WORDS' | -- COMMAND [ARGS]...]")
@option_group(
    "step",
    StepOptions,
    click.option("--input-from", metavar="STEP", help="Feed that step's output to the first command; or `last`."),
    click.option("--timeout", callback=seconds, metavar="DURATION", help="Of each command, such as 90s or 10m."),
    click.option("--tool", metavar="TOOL", help="Run the command with this tool; `farro tools` lists them."),
    click.option("--cwd", metavar="DIR", help="Where each command runs; default: where `submit` is typed."),
    click.option("--env", multiple=True, metavar="NAME=VALUE", help="Set a variable for each command; repeatable."),
    click.option("--literal", is_flag=True, help="Take the words after -- as they are: no pipes, no quotes."),
)
@click.option("--no-review", is_flag=True, help="Ask the model once, without a second call that reviews its plan.")
@common
@click.pass_context
def add(
    context: click.Context, words: tuple[str, ...], step: StepOptions, no_review: bool, session: AgxSession
) -> None:
    """Add steps to the draft: a command as you would type it, or words that a model turns into steps.

    \b
    agx add -- sort names.txt              a command: one step
    agx add -- 'sort names.txt | uniq -c'  a pipe: a step each, joined
    agx add -- '| head -3'                 reads the step before it
    agx add 'count the lines of each log'  words: the config's provider is asked

    No shell runs a step: redirections, && and $(…) are refused, with what to do instead. AddCommand runs nothing.
    """
    command: tuple[str, ...] | None = context.meta[COMMAND]
    if command is not None:
        if words:
            raise click.UsageError(f"say it in words, or as a command after --, not both: {shlex.join(words)}")
        draft, count = drafting.add(
            session.drafts,
            command,
            literal=step.literal,
            input_from=step.input_from,
            fields=step.fields(remote=session.remote),
        )
        _say_added(session, draft, count, {})
        return
    if not words:
        raise click.UsageError("say what to add: words in quotes, or -- COMMAND")
    step.refuse()
    _add_words(session, " ".join(words), review=not no_review)


def _add_words(session: AgxSession, wish: str, *, review: bool) -> None:
    from farro.agents.service import CallTry, scratch_folder
    from farro.agx.propose import asked

    try:
        asked(session.settings)
    except InputError as error:
        from farro.host.programs import which

        if which(wish.split()[0], os.environ.get("PATH"), os.getcwd()) is not None:
            raise InputError(f"{error}\nif that is a command: agx add -- {wish}") from None
        raise

    def on_try(tried: CallTry) -> None:
        if tried.kind != "answered":
            note(f"{tried.provider}: no answer ({tried.kind.replace('_', ' ')}): {tried.message}")

    draft = session.drafts.read()
    if at_terminal() and not session.as_json:
        note("asking …")
    moment = SystemClock().now().strftime("%Y%m%d-%H%M%S")
    with scratch_folder(session.root) as folder:
        name = f"agx-{moment}-{random.SystemRandom().getrandbits(64):016x}"
        planner = application().planner(session.root, session.settings, folder=folder, name=name, on_try=on_try)
        proposal = planner.propose(wish, draft.plan, review=review)
    made = session.drafts.replace(draft, proposal.plan)
    who = proposal.provider if proposal.model is None else f"{proposal.provider} ({proposal.model})"
    told: dict[str, Any] = {
        "review": proposal.review,
        "objections": list(proposal.objections),
        "provider": proposal.provider,
        "model": proposal.model,
        "calls": proposal.calls,
        "cost_usd": None if proposal.cost_usd is None else float(proposal.cost_usd),
    }
    _say_added(session, made, proposal.added, told)
    if session.as_json:
        return
    for objection in proposal.objections:
        say(f"review: {objection}")
    if proposal.review == "unusable":
        say("review: its corrections could not be used; check the steps yourself")
    cost = "cost not known" if proposal.cost_usd is None else f"${proposal.cost_usd:f}"
    say(f"by {who}, {proposal.calls} call{'s' if proposal.calls != 1 else ''}, {cost}, review: {proposal.review}")


def _say_added(session: AgxSession, draft: Draft, count: int, told: dict[str, Any]) -> None:
    checked = drafting.check(draft.plan, application().plan_context(session.settings))
    if session.as_json:
        answer({**_told(draft), "added": count, **told, **show.checked_json(checked)})
        return
    first = len(draft.steps) - count + 1
    show.steps(draft.plan, first=first)
    show.findings(checked, first=first)


@click.command()
@click.argument("steps", nargs=-1, required=True, metavar="STEP...")
@common
def remove(steps: tuple[str, ...], session: AgxSession) -> None:
    """Remove steps from the draft, by number. A step that read from a removed one then reads from the one before it."""
    _say_draft(session, drafting.remove(session.drafts, steps))


@click.command()
@common
def undo(session: AgxSession) -> None:
    """Bring back the draft as it was before the last change; again and again, up to 20 changes. `agx redo` undoes it.

    A new draft is a change too: the one before it comes back when all of its own changes are undone.
    """
    _say_draft(session, session.drafts.undo())


@click.command()
@common
def redo(session: AgxSession) -> None:
    """Take back the last `agx undo`, as long as nothing else was changed."""
    _say_draft(session, session.drafts.redo())


def _say_draft(session: AgxSession, draft: Draft) -> None:
    if session.as_json:
        answer(_told(draft))
        return
    if not draft.steps:
        say(f"{draft.name or 'draft'}: empty")
        return
    say(show.heading(draft.plan, None, what="draft"))
    show.steps(draft.plan)


def _told(draft: Draft) -> dict[str, Any]:
    return {"draft": draft.name, "version": draft.version, "plan": dict(draft.plan)}
