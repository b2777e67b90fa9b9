"""`agx preview`, `validate`, `edit`, `save`, `list`, `get`, `delete`: plans before and after they are saved."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from farro.agx.cli.context import AgxSession, common, state_folder
from farro.cli.options import application
from farro.cli.plan_files import contents, name_of
from farro.cli.terminal import answer, at_terminal, complain, reply, say, show_table
from farro.documents import DEFAULT
from farro.errors import FarroError, InputError
from farro.late_module import LateModule

if TYPE_CHECKING:
    from farro.agx import drafting
    from farro.agx.cli import show
    from farro.queue.plan_check import PlanReport
else:  # `list` and `delete` need neither
    drafting, show = LateModule("farro.agx.drafting"), LateModule("farro.agx.cli.show")


def chosen(session: AgxSession, source: str | None) -> tuple[dict[str, Any], str]:
    """Return the plan that was named, and its name: a file, a saved plan, or else the draft."""
    if source is None:
        return dict(session.drafts.read().plan), "draft"
    if source == "-" or os.sep in source or os.path.isfile(source):
        return drafting.taken_over(contents(source, DEFAULT.size), name_of(source)), name_of(source)
    return dict(session.client.plan(source)), source


def checked(session: AgxSession, plan: Mapping[str, Any], source: str) -> PlanReport:
    return drafting.check(plan, application().plan_context(session.settings), source)


@click.command()
@click.argument("plan", required=False, metavar="[PLAN|FILE]")
@common
def preview(plan: str | None, session: AgxSession) -> None:
    """Show exactly what would run: the draft, a saved PLAN, or a FILE. Nothing is run."""
    found, source = chosen(session, plan)
    if not found.get("steps") and plan is None:
        if session.as_json:
            answer({"plan": found, "ok": False, "problems": [], "warnings": []})
            return
        say(f"{found.get('plan_id') or 'draft'}: empty; `agx add -- COMMAND`, or `agx add 'what shall happen'`")
        return
    judged = checked(session, found, source)
    if session.as_json:
        answer({"plan": found, **show.checked_json(judged)})
        return
    say(show.heading(found, judged, what=source))
    show.steps(found)
    show.findings(judged)


@click.command()
@click.argument("plan", required=False, metavar="[PLAN|FILE]")
@click.option("--strict", is_flag=True, help="Exit 1 when there are warnings.")
@common
def validate(plan: str | None, strict: bool, session: AgxSession) -> int:
    """Check the draft, a saved PLAN or a FILE. Exit code 0: good; 1: warnings, and --strict; 2: wrong."""
    found, source = chosen(session, plan)
    judged = checked(session, found, source)
    if session.as_json:
        answer({"plan_id": found.get("plan_id"), **show.checked_json(judged)})
    else:
        show.findings(judged)
        if not judged.problems:
            say(f"ok: {show.heading(found, judged, what=source)}")
    if judged.problems:
        return 2
    return 1 if strict and judged.warnings else 0


@click.command()
@click.argument("file", required=False, metavar="[FILE]")
@common
def edit(file: str | None, session: AgxSession) -> None:
    """Edit the draft in your editor ($VISUAL, else $EDITOR), or take it over from FILE (- is standard input).

    A draft that was changed elsewhere meanwhile is not overwritten; what you wrote is then kept beside it.
    """
    draft = session.drafts.read()
    if file is not None:
        plan = drafting.taken_over(contents(file, DEFAULT.size), name_of(file))
        _say_edited(session, session.drafts.replace(draft, plan).plan)
        return
    if not at_terminal():
        raise click.UsageError("there is no terminal for an editor; name a FILE, or - for standard input")
    drafting.make_folder(state_folder())
    path = f"{state_folder()}/edit-{os.getpid()}.json"
    before = json.dumps(draft.plan, ensure_ascii=False, indent=2).encode() + b"\n"
    drafting.write_private(path, before)
    while True:
        _run_editor(path)
        text = contents(path, drafting.LIMIT)
        if text == before:
            say("nothing was changed")
            break
        try:
            plan = drafting.taken_over(text, path)
            made = session.drafts.replace(draft, plan)
        except FarroError as error:
            complain(str(error))
            if isinstance(error, InputError) and click.confirm("Edit again?", default=True):
                continue
            complain(f"what you wrote is kept in {path}; take it over with: agx edit {path}")
            raise click.exceptions.Exit(error.exit_code) from None
        _say_edited(session, made.plan)
        break
    with contextlib.suppress(OSError):
        from farro.host import fs

        fs.unlink(path)


def _run_editor(path: str) -> None:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        import subprocess

        ended = subprocess.run([*shlex.split(editor), path], check=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{editor} could not be started ({error}); set EDITOR, or use: agx edit FILE") from error
    if ended.returncode != 0:
        raise InputError(f"{editor} ended with exit code {ended.returncode}; the draft is as it was")


def _say_edited(session: AgxSession, plan: Mapping[str, Any]) -> None:
    judged = checked(session, plan, "draft") if plan.get("steps") else None
    if session.as_json:
        answer({"plan": dict(plan), **({} if judged is None else show.checked_json(judged))})
        return
    say(show.heading(plan, judged, what="draft"))
    show.steps(plan)
    if judged is not None:
        show.findings(judged)


@click.command()
@click.argument("name", required=False)
@click.option("--replace", is_flag=True, help="Replace another plan of that name.")
@common
def save(name: str | None, replace: bool, session: AgxSession) -> None:
    """Save the draft as a plan called NAME, default: its own name, to be submitted again and again."""
    draft = session.drafts.read()
    judged = checked(session, draft.plan, "draft")
    if judged.problems:
        from farro.errors import BadDocument

        raise BadDocument(judged.source, list(judged.problems))
    wanted = drafting.check_name(name or draft.name or str(drafting.finished(draft.plan)["plan_id"]))
    plan_id = session.client.save_plan({**draft.plan, "plan_id": wanted}, name=wanted, replace=replace)
    if draft.name != plan_id:
        with contextlib.suppress(FarroError):  # it was changed meanwhile: then it is another draft
            session.drafts.replace(
                draft, {"plan_id": plan_id, **{k: v for k, v in draft.plan.items() if k != "plan_id"}}
            )
    if session.as_json:
        answer({"plan_id": plan_id})
    else:
        from farro.plans.actions import fields

        how = f"agx action submit {plan_id} --inputs FILE" if fields(draft.plan) else f"agx submit {plan_id}"
        say(f"{plan_id} is kept; run it with: {how}")


@click.command("list")
@common
def list_plans(session: AgxSession) -> None:
    """List the saved plans."""
    lines = session.client.plans()
    if session.as_json:
        answer(
            {
                "plans": [
                    {"plan_id": one.id, "name": one.name, "steps": one.steps, "wants": list(one.wants)} for one in lines
                ]
            }
        )
    elif not lines:
        say("no plan is kept; `agx save NAME` keeps the draft")
    else:
        rows = [("PLAN", "STEPS", "INPUTS", "NAME")]
        show_table(
            [*rows, *((one.id, str(one.steps), ", ".join(one.wants) or "-", one.name or "") for one in lines)],
            right=(1,),
        )


@click.command()
@click.argument("plan", metavar="PLAN")
@click.option("--draft", "into_draft", is_flag=True, help="Make it the draft, to go on from there.")
@common
def get(plan: str, into_draft: bool, session: AgxSession) -> None:
    """Show a saved plan; with --draft it becomes the draft."""
    found = dict(session.client.plan(plan))
    if into_draft:
        session.drafts.restart(found)
    if session.as_json:
        answer(found)
        return
    say(show.heading(found, None, what=plan))
    show.steps(found)
    if into_draft:
        say("it is the draft now; the one before it comes back with: agx undo")


@click.command()
@click.argument("plan", metavar="PLAN")
@common
def delete(plan: str, session: AgxSession) -> None:
    """Delete a saved plan. Its jobs, and the draft, stay as they are."""
    session.client.delete_plan(plan)
    reply(session.as_json, {"plan_id": plan, "deleted": True}, f"{plan} is not kept any more")
