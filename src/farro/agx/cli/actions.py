"""`agx action …`: run one plan for many inputs."""

from __future__ import annotations

import os
from typing import Any

import click

from farro import documents
from farro.agx.cli.context import Place, common
from farro.agx.cli.submit import PlanSubmitOptions, rehearsed, submit_options, ticket
from farro.cli.enqueue import contents, name_of
from farro.cli.groups import Hinting
from farro.cli.submit_options import JobOptions
from farro.cli.tables import table
from farro.cli.terminal import answer, say
from farro.errors import InputError


@click.group(cls=Hinting)
def action() -> None:
    """Actions: a plan that is kept × 1 to 100 inputs, each of which becomes a job.

    In the plan's arguments {{input.field}} stands for what each input says there; {{input}} for the input itself.
    """


INPUTS_HELP = "A JSON list, or one JSON value a line (.ndjson); .txt: a text a line; - is standard input."


@action.command()
@click.argument("plan", metavar="PLAN")
@click.option("--inputs", "inputs_file", required=True, metavar="FILE", help=INPUTS_HELP)
@click.option("--name", metavar="NAME", help="What the action is called; else a name is made.")
@common
def new(plan: str, inputs_file: str, name: str | None, place: Place) -> None:
    """Keep an action: a PLAN and its inputs. Every input is held against the plan first."""
    inputs = read_inputs(inputs_file)
    action_id = place.desk.save_action(plan, inputs, name=name)
    if place.as_json:
        answer({"action_id": action_id, "plan_id": plan, "inputs": len(inputs)})
    else:
        say(f"{action_id}: {plan} × {len(inputs)}; run it with: agx action submit {action_id}")


@action.command()
@click.argument("action", metavar="ACTION|PLAN")
@click.option("--inputs", "inputs_file", metavar="FILE", help=f"With a PLAN. {INPUTS_HELP}")
@click.option("--name", metavar="NAME", help="With a PLAN: what the action is called; else a name is made.")
@submit_options
@common
def submit(
    action: str,
    inputs_file: str | None,
    name: str | None,
    job: JobOptions,
    options: PlanSubmitOptions,
    place: Place,
) -> int:
    """Submit a job for every input of an ACTION, or of a PLAN with --inputs. All inputs are valid, or no job is queued.

    Submitting an action again queues nothing: it prints the same jobs.
    """
    asked = ticket(place, job, options)
    if inputs_file is None:
        if name is not None:
            raise click.UsageError("--name comes with a PLAN and --inputs")
        kept = place.desk.action(action)
        plan_id, inputs = str(kept["plan_id"]), list(kept["inputs"])
    else:
        plan_id, inputs = action, read_inputs(inputs_file)
    if options.dry_run:
        return _rehearsed(place, plan_id, inputs, asked)
    if inputs_file is None:
        action_id, made = action, place.desk.submit_action(action, asked)
    else:
        action_id, made = place.desk.submit_inputs(plan_id, inputs, name=name, ticket=asked)
    told: dict[str, Any] = {"action_id": action_id, "plan_id": plan_id, "jobs": made}
    if options.wait:
        from farro.agx.cli.wait import wait_for_all

        return wait_for_all(place, made, told)
    if place.as_json:
        answer(told)
    else:
        say("\n".join(made))
    return 0


def _rehearsed(place: Place, plan_id: str, inputs: list[Any], asked: Any) -> int:
    from farro.errors import BadDocument
    from farro.plans import actions as rules

    plan = place.desk.plan(plan_id)
    found = rules.problems(plan, tuple(inputs), plan_id)
    if found:
        raise BadDocument("inputs", list(found))
    if not inputs:
        raise InputError("there is no input; an action has 1 to 100")
    return rehearsed(place, rules.filled(plan, inputs[0]), asked, jobs=len(inputs))


@action.command("list")
@common
def list_actions(place: Place) -> None:
    """List the actions that are kept."""
    found = place.desk.actions()
    if place.as_json:
        answer({"actions": [{"action_id": one.id, "plan_id": one.plan_id, "inputs": one.inputs} for one in found]})
    elif not found:
        say("no action is kept; `agx action new PLAN --inputs FILE` keeps one")
    else:
        say(
            table(
                [("ACTION", "PLAN", "INPUTS"), *((one.id, one.plan_id, str(one.inputs)) for one in found)], right=(2,)
            )
        )


@action.command()
@click.argument("action", metavar="ACTION")
@common
def get(action: str, place: Place) -> None:
    """Show an action that is kept: each input, its job, and what that is."""
    import json

    found = dict(place.desk.action(action))
    if place.as_json:
        answer(found)
        return
    say(f"{action}: {found.get('plan_id')} × {len(found.get('inputs') or ())}")
    inputs, jobs = found.get("inputs") or (), found.get("jobs") or ()
    rows = [("  JOB", "STATUS", "INPUT")]
    for value, job in zip(inputs, jobs, strict=False):
        rows.append((f"  {job['job_id']}", job["status"] or "not handed in", json.dumps(value, ensure_ascii=False)))
    say(table(rows))


@action.command()
@click.argument("action", metavar="ACTION")
@common
def delete(action: str, place: Place) -> None:
    """Keep an action no longer. Its jobs stay as they are."""
    place.desk.delete_action(action)
    if place.as_json:
        answer({"action_id": action, "deleted": True})
    else:
        say(f"{action} is not kept any more")


def read_inputs(path: str) -> list[Any]:
    """The inputs in a file: a JSON list, JSON a line, or, of a .txt, the text of each line."""
    text = contents(path, documents.DEFAULT.size)
    name, ending = name_of(path), os.path.splitext(path)[1].lower()
    if ending == ".txt":
        return [line for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    if ending not in (".ndjson", ".jsonl") and (ending in (".yaml", ".yml") or text.lstrip()[:1] == b"["):
        data = documents.parse(text, name).data
        if not isinstance(data, list):
            raise InputError(f"{name}: must be a list of inputs")
        return data
    return [document.data for document in documents.parse_ndjson(text, name)]
