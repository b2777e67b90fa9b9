"""`farro plan lint`, `plan show`, `tools`: check plans, draw them, and list the tools that their steps may name."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from farro.cli.main import Hinting
from farro.cli.options import application, common, open_root, read_root_or_here
from farro.cli.plan_files import read_plans
from farro.cli.terminal import answer, say, shortened, show_table, span
from farro.errors import BadDocument, InputError, NotARoot, Problem
from farro.execution import tool_catalog
from farro.execution.tool_catalog import ProgramSearch, ToolInfo
from farro.plans.loading import load
from farro.plans.model import Plan
from farro.queue import plan_check as operations
from farro.queue.plan_check import JobPlan, PlanContext, PlanReport


@click.group(cls=Hinting)
def plan() -> None:
    """Look at plans before they run, or at the plan of a job: check them, draw them."""


@plan.command(short_help="Check plans, and print every problem with its place.")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option("--strict", is_flag=True, help="Exit 1 when there are warnings.")
@common
def lint(files: tuple[str, ...], strict: bool, root: str | None, as_json: bool) -> int:
    """Check plans: every problem with its place, warnings for what is hardly meant, else one line that sums it up.

    \b
    FILE is JSON, YAML, or .ndjson with a plan a line; - is standard input.
    Exit code 0: good, perhaps with warnings; 1: warnings, and --strict;
    2: wrong, or a tool is not on this machine.
    """
    ground = _ground(root)
    checked = [each for file in files for each in _checked(file, ground)]
    if as_json:
        answer({"plans": [_told(each) for each in checked]})
    else:
        for each in checked:
            _say_checked(each)
    if any(each.problems or each.missing for each in checked):
        return 2
    return 1 if strict and any(each.warnings for each in checked) else 0


def _checked(file: str, ground: PlanContext) -> list[PlanReport]:
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a tool's module may print while it is imported
            return [operations.check(document, ground) for document in read_plans(file)]
    except BadDocument as bad:
        return [PlanReport(source=bad.source, problems=tuple(bad.problems))]
    except InputError as error:  # unreadable; the other files are still checked
        name, _, message = str(error).partition(": ")
        return [PlanReport(source=name, problems=(Problem(path="", message=message),))]


def _ground(root: str | None) -> PlanContext:
    """Check against the root's config, which has tools and roles; without a root against the machine alone."""
    path, settings = read_root_or_here(root)
    return PlanContext(settings=settings, tools=application().tools(settings), cwd=path, env=os.environ)


def _say_checked(checked: PlanReport) -> None:
    for problem in (*checked.problems, *checked.missing):
        say(problem.render(checked.source))
    for warning in _warnings(checked):
        place = Problem(path="", message="warning", line=warning.line, column=warning.column).render(checked.source)
        say(f"{place}: {warning.path}: {warning.message}" if warning.path else f"{place}: {warning.message}")
    if checked.measure is not None and not checked.missing:
        source = checked.source if checked.line in (None, 1) else f"{checked.source}:{checked.line}"
        say(f"{source}: ok: {_summary(checked)}")


def _summary(checked: PlanReport) -> str:
    found = checked.measure
    assert found is not None
    parts = [f"{found.steps} step{'s' if found.steps != 1 else ''}"]
    if found.steps > 1:
        parts.append(f"longest chain {found.longest_chain}")
        if found.together > 1:
            limit = f"parallel: {found.parallel}" if found.parallel > 1 else "one at a time: no `parallel`"
            parts.append(f"{found.together} can run together ({limit})")
    parts += [f"at most {span(found.timeout_s)}", f"tools: {', '.join(found.tools)}"]
    if warnings := _warnings(checked):
        parts.append(f"{len(warnings)} warning{'s' if len(warnings) != 1 else ''}")
    return ", ".join(parts)


def _warnings(checked: PlanReport) -> list[Problem]:
    """Return the warnings that are not errors here: a missing tool is one, because the plan would fail."""
    return [warning for warning in checked.warnings if warning not in checked.missing]


def _told(checked: PlanReport) -> dict[str, Any]:
    return {
        "file": checked.source,
        "line": checked.line,
        "ok": checked.measure is not None and not checked.missing,
        **(asdict(checked.measure) if checked.measure is not None else {}),
        "problems": [asdict(problem) for problem in (*checked.problems, *checked.missing)],
        "warnings": [asdict(problem) for problem in _warnings(checked)],
    }


@plan.command(short_help="Draw the graph of a plan, or of a job.")
@click.argument("source", metavar="FILE|JOB")
@click.option("--svg", "form", flag_value="svg", help="As an SVG file, for browsers and documents.")
@click.option("--mermaid", "form", flag_value="mermaid", help="As Mermaid text, for READMEs and wikis.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Without line-drawing characters.")
@click.option("--output", "-o", metavar="FILE", help="Write there instead of printing.")
@common
def show(source: str, form: str | None, ascii_only: bool, output: str | None, root: str | None, as_json: bool) -> None:
    """Draw the graph of a plan, or of a job with the progress of each step.

    \b
    FILE is JSON or YAML; - is standard input. JOB is an id, or its beginning.
    Thick lines carry output to another step's input; thin ones set the order.
    """
    if form is not None and as_json:
        raise click.UsageError(f"--json and --{form} are two forms of the same; keep one")
    drawn = _load(source, root)
    if as_json:
        answer(operations.graph(drawn))
        return
    text = _picture(drawn, form, ascii_only or not _draws_lines(), 100 if output else None)
    if output is None:
        say(text.removesuffix("\n"))
        return
    _write(output, text)


def _write(path: str, text: str) -> None:
    from farro.host import fs

    if os.path.exists(path) and not os.path.isfile(path):  # /dev/stdout, a pipe: a new file would take its place
        raise InputError(f"--output: {path} is not a file; leave it out to have the picture on standard output")
    try:
        fs.write_atomic(os.path.realpath(path), text.encode(), sync=False)
    except OSError as error:
        raise InputError(f"--output: {path}: {error.strerror}") from error


def _load(source: str, root: str | None) -> JobPlan:
    if source == "-" or os.path.lexists(source) or os.sep in source:
        found = read_plans(source)
        if len(found) != 1:
            raise InputError(f"{source}: holds {len(found)} plans; show draws one")
        return JobPlan(plan=load(found[0]), states={}, added=0)
    from farro.jobs.ids import is_job_id
    from farro.queue import find_job

    if not is_job_id(source):
        raise InputError(f"{source}: no such file")
    try:
        store, _ = open_root(root)
    except NotARoot as error:
        raise InputError(f"{source}: no such file; and for a job of that id: {error}") from error
    job_id = find_job.resolve(store, source)
    view = store.find(job_id)
    if view is None:
        raise InputError(f"{job_id} moved on while it was looked at; try again")
    return operations.of_job(store, view)


def _picture(drawn: JobPlan, form: str | None, ascii_only: bool, columns: int | None) -> str:
    found, states = drawn.plan, drawn.states
    if form == "svg":
        from farro.plans.drawing import svg

        return svg.draw(found, states)
    if form == "mermaid":
        from farro.plans.drawing import markup

        return markup.mermaid(found, states)
    import shutil  # noqa: TID251 - it only asks how wide the terminal is

    from farro.plans.drawing import terminal
    from farro.plans.drawing.labels import ASCII_MARKS, MARKS

    columns = columns or shutil.get_terminal_size((100, 24)).columns
    signs = ASCII_MARKS if ascii_only else MARKS
    marks = {step_id: signs[state] for step_id, state in states.items()}
    glyphs = terminal.ASCII if ascii_only else terminal.UNICODE
    picture = terminal.draw_boxes(found, columns=columns, glyphs=glyphs, marks=marks)
    in_boxes = picture is not None
    if picture is None:
        picture = terminal.draw_levels(found, columns=columns, ascii_only=ascii_only, marks=marks)
    legend = [*_legend(found, ascii_only, in_boxes), *_state_legend(drawn, signs)]
    added = f"{drawn.added} of them were added while it ran" if drawn.added else ""
    return "\n".join([picture, "", "   ".join(legend), added]).rstrip() + "\n"


def _legend(found: Plan, ascii_only: bool, in_boxes: bool) -> list[str]:
    reads = any(step.input_from_step for step in found.steps)
    waits = any(set(step.depends_on) - {step.input_from_step} for step in found.steps)
    if in_boxes:
        signs = (
            ("==> output becomes input", "--> runs after")
            if ascii_only
            else ("━━▶ output becomes input", "──▶ runs after")
        )
    else:
        signs = ("<= reads its output", "<- runs after") if ascii_only else ("⇐ reads its output", "← runs after")
    return [*([signs[0]] if reads else []), *([signs[1]] if waits else [])]


def _state_legend(drawn: JobPlan, signs: Mapping[Any, str]) -> list[str]:
    present = set(drawn.states.values())
    return [f"{sign} {state}" for state, sign in signs.items() if state in present]


def _draws_lines() -> bool:
    """Tell whether the output can show line-drawing characters."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        "┌─│▶✓".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


_WIDEST = 60


@click.command()
@click.argument("tool", required=False)
@click.option("--path", "on_path", is_flag=True, help="Also programs on the PATH called agx-… or farro-….")
@common
def tools(tool: str | None, on_path: bool, root: str | None, as_json: bool) -> None:
    """List the tools that steps may name, with their descriptions; or show one in full.

    Programs are asked with --describe, and answer in JSON within two seconds, or are listed without a description.
    """
    cwd, settings = read_root_or_here(root)
    known, place = application().tools(settings, cwd), ProgramSearch(env=os.environ, cwd=cwd)
    if tool is not None:
        found = tool_catalog.one(known, place, tool, configured=list(settings.tools))
        answer(asdict(found)) if as_json else _say_whole(found)
        return
    listed = tool_catalog.listed(known, place, configured=list(settings.tools), on_path=on_path)
    if as_json:
        answer({"tools": [asdict(each) for each in listed]})
        return
    rows = [("TOOL", "KIND", "FROM", "WHERE", "WHAT IT DOES")]
    rows += [(each.name, each.kind, each.comes_from, each.where or "-", _tool_remark(each)) for each in listed]
    show_table(rows)


def _tool_remark(tool: ToolInfo) -> str:
    if not tool.usable:
        return f"cannot be used: {_short(tool.trouble or '')}"
    if tool.trouble is not None:
        return f"({_short(tool.trouble)})"
    version = f" ({tool.said.version})" if tool.said.version else ""
    return _short(tool.said.description) + version


def _short(text: str) -> str:
    return shortened(" ".join(text.split()), _WIDEST)


def _say_whole(tool: ToolInfo) -> None:
    version = f" {tool.said.version}" if tool.said.version else ""
    say(f"{tool.name}{version}  ({tool.kind}, from {tool.comes_from})")
    if tool.where:
        say(f"  lies in   {tool.where}")
    if tool.trouble is not None:
        say(f"  {'trouble' if tool.usable else 'unusable':<9} {tool.trouble}")
    if tool.said.description:
        say(f"  does      {tool.said.description}")
    if tool.said.commands:
        say("  commands")
        rows = [(" ".join((each.name, *each.args)), each.description) for each in tool.said.commands]
        show_table(rows, indent="    ")
    command = tool.said.commands[0].name if tool.said.commands else "echo" if tool.name == "unix" else "COMMAND"
    say(f'  in a plan {{"id": "a", "tool": "{tool.name}", "command": "{command}", "args": ["…"]}}')
