"""`farro session`: print the command with which a person continues the session of a job's agent."""

from __future__ import annotations

import os
import shlex
from typing import Any

import click

from farro.agents.programs.port import SESSION
from farro.agents.programs.registry import find_program
from farro.agents.session_folder import ACP, SessionRecord, folders_of_job
from farro.cli.options import common, open_root
from farro.cli.terminal import answer, note, say
from farro.config.settings import Settings
from farro.errors import InputError, Refused
from farro.jobs.states import Status
from farro.queue import find_job


@click.command()
@click.argument("job")
@click.option("--role", metavar="ROLE", help="The session of this role; else the one that was used last.")
@common
def session(job: str, role: str | None, root: str | None, as_json: bool) -> None:
    """Print the command with which you continue the session of a job's agent: it knows all that the agent knows.

    JOB is an id, a name, or the beginning of an id that no other job shares. The session is kept until the job has
    succeeded or was killed, and for a week after it has failed. It has a home of its own, without a login: the program
    uses a key of your environment, or asks.
    """
    store, settings = open_root(root)
    job_id = find_job.resolve(store, job)
    found = _sessions(store.root, job_id, settings)
    chosen = [one for one in found if role in (None, one["role"])]
    if not chosen:
        of_role = "" if role is None else f" of {role}"
        raise InputError(
            f"{job_id} has no session{of_role} here: an agent of a provider with `program` keeps one on the machine of "
            "its worker, until the job has succeeded, or a week after it has failed"
        )
    if as_json:
        answer({"job_id": job_id, "sessions": chosen})
        return
    view = store.find(job_id)
    if view is not None and view.status is Status.IN_PROGRESS:
        raise Refused(f"{job_id} runs, and its agent may use the session: wait for its end, or farro kill {job_id}")
    last = chosen[-1]
    say(last["command"])
    for other in sorted({one["role"] for one in found} - {last["role"]}):
        note(f"{other} has a session, too: farro session {job_id} --role {other}")


def _sessions(root: str, job_id: str, settings: Settings) -> list[dict[str, Any]]:
    """Return the sessions of a job, the one that was used last at the end."""
    found: list[tuple[float, dict[str, Any]]] = []
    for role, step, folder in folders_of_job(root, job_id):
        for provider, record in folder.read().items():
            words = _words(provider, record, settings)
            if words is None or record.session_id is None:
                continue
            command = f"cd {shlex.quote(record.cwd)} && HOME={shlex.quote(folder.home)} {shlex.join(words)}"
            described = {
                "role": role,
                "step": step,
                "provider": provider,
                "program": record.program,
                "session_id": record.session_id,
                "cwd": record.cwd,
                "home": folder.home,
                "command": command,
            }
            found.append((os.stat(folder.path).st_mtime, described))
    return [described for _, described in sorted(found, key=lambda pair: pair[0])]


def _words(provider: str, record: SessionRecord, settings: Settings) -> tuple[str, ...] | None:
    """Return the command line; None if the program cannot be continued by hand."""
    program = None if record.program == ACP else find_program(record.program)
    if program is None or not program.by_hand or record.session_id is None:
        return None
    own = settings.providers.get(provider)
    first = (own.command if own is not None else None) or program.command
    return (*first, *(record.session_id if word == SESSION else word for word in program.by_hand))
