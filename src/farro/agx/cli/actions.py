"""`agx action …`: run one plan for many inputs."""

from __future__ import annotations

import os
from typing import Any

import click

from farro import documents
from farro.agx.cli.context import AgxSession, common
from farro.agx.cli.submit import PlanSubmitOptions, plan_request, rehearsed, submit_options
from farro.cli.main import Hinting
from farro.cli.plan_files import contents, name_of
from farro.cli.submit_options import JobOptions
from farro.cli.terminal import answer, reply, say, show_table
from farro.errors import InputError
from farro.plans import actions as rules


@click.group(cls=Hinting)
def action() -> None:
    """Actions: a saved plan × 1 to 100 inputs, each of which becomes a job.

    In the plan's arguments {{input.field}} stands for that field of each input; {{input}} for the input itself.
    """


INPUTS_HELP = "A JSON list, or one JSON value per line (.ndjson); .txt: one text per line; - is standard input."


@action.command()
@click.argument("plan", metavar="PLAN")
@click.option("--inputs", "inputs_file", required=True, metavar="FILE", help=INPUTS_HELP)
@click.option("--name", metavar="NAME", help="The name of the action; default: a generated one.")
@common
def new(plan: str, inputs_file: str, name: str | None, session: AgxSession) -> None:
    """Save an action: a PLAN and its inputs. Every input is checked against the plan first."""
    inputs = read_inputs(inputs_file)
    action_id = session.client.save_action(plan, inputs, name=name)
    reply(
        session.as_json,
        {"action_id": action_id, "plan_id": plan, "inputs": len(inputs)},
        f"{action_id}: {plan} × {len(inputs)}; run it with: agx action submit {action_id}",
    )


@action.command()
@click.argument("action", metavar="ACTION|PLAN")
@click.option("--inputs", "inputs_file", metavar="FILE", help=f"With a PLAN. {INPUTS_HELP}")
@click.option("--name", metavar="NAME", help="With a PLAN: the name of the action; default: a generated one.")
@submit_options
@common
def submit(
    action: str,
    inputs_file: str | None,
    name: str | None,
    job: JobOptions,
    options: PlanSubmitOptions,
    session: AgxSession,
) -> int:
    """Submit a job for every input of an ACTION, or of a PLAN with --inputs. All inputs are valid, or no job is queued.

    Submitting an action again queues nothing: it prints the same jobs.
    """
    asked = plan_request(job, options)
    if inputs_file is None:
        if name is not None:
            raise click.UsageError("--name comes with a PLAN and --inputs")
        kept = session.client.action(action)
        plan_id, inputs = str(kept["plan_id"]), list(kept["inputs"])
    else:
        plan_id, inputs = action, read_inputs(inputs_file)
    if job.check_tools and inputs:
        job.check([rules.filled(session.client.plan(plan_id), inputs[0])], session.settings)
    if options.dry_run:
        return _rehearsed(session, plan_id, inputs, asked)
    if inputs_file is None:
        action_id, made = action, session.client.submit_action(action, asked)
    else:
        action_id, made = session.client.submit_inputs(plan_id, inputs, name=name, request=asked)
    told: dict[str, Any] = {"action_id": action_id, "plan_id": plan_id, "jobs": made}
    if options.wait:
        from farro.agx.cli.jobs import wait_for_all

        return wait_for_all(session, made, told)
    reply(session.as_json, told, "\n".join(made))
    return 0


def _rehearsed(session: AgxSession, plan_id: str, inputs: list[Any], asked: Any) -> int:
    from farro.errors import BadDocument

    plan = session.client.plan(plan_id)
    found = rules.problems(plan, tuple(inputs), plan_id)
    if found:
        raise BadDocument("inputs", list(found))
    if not inputs:
        raise InputError("there is no input; an action has 1 to 100")
    return rehearsed(session, rules.filled(plan, inputs[0]), asked, jobs=len(inputs))


@action.command("list")
@common
def list_actions(session: AgxSession) -> None:
    """List the saved actions."""
    found = session.client.actions()
    if session.as_json:
        answer({"actions": [{"action_id": one.id, "plan_id": one.plan_id, "inputs": one.inputs} for one in found]})
    elif not found:
        say("no action is kept; `agx action new PLAN --inputs FILE` keeps one")
    else:
        show_table(
            [("ACTION", "PLAN", "INPUTS"), *((one.id, one.plan_id, str(one.inputs)) for one in found)], right=(2,)
        )


@action.command()
@click.argument("action", metavar="ACTION")
@common
def get(action: str, session: AgxSession) -> None:
    """Show a saved action: each input, its job, and the status of that."""
    import json

    found = dict(session.client.action(action))
    if session.as_json:
        answer(found)
        return
    say(f"{action}: {found.get('plan_id')} × {len(found.get('inputs') or ())}")
    inputs, jobs = found.get("inputs") or (), found.get("jobs") or ()
    rows = [("  JOB", "STATUS", "INPUT")]
    for value, job in zip(inputs, jobs, strict=False):
        rows.append((f"  {job['job_id']}", job["status"] or "not handed in", json.dumps(value, ensure_ascii=False)))
    show_table(rows)


@action.command()
@click.argument("action", metavar="ACTION")
@common
def delete(action: str, session: AgxSession) -> None:
    """Delete a saved action. Its jobs stay as they are."""
    session.client.delete_action(action)
    reply(session.as_json, {"action_id": action, "deleted": True}, f"{action} is not kept any more")


def read_inputs(path: str) -> list[Any]:
    """Read the inputs of a file: a JSON list, JSON per line, or, in a .txt, one text per line."""
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
