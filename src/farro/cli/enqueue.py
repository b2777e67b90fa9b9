"""`farro enqueue`: queue a command, or plans and agent prompts from files or standard input."""

from __future__ import annotations

import os
import shlex

import click

from farro.cli.options import common, open_root, option_group, policy
from farro.cli.plan_files import read_many, read_plan
from farro.cli.submit_options import (
    COMMAND,
    JobOptions,
    StartOptions,
    WithCommand,
    job_options,
    start_options,
)
from farro.cli.terminal import answer, note, say
from farro.errors import InputError
from farro.jobs.request import Attachments, JobRequest, as_option
from farro.lazy_dataclass import dataclass, replace
from farro.plans.forms import is_agent_prompt
from farro.queue.submit import one_id_for_several, prepare, submit
from farro.store.port import JobView


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """The work to queue: a plan, many plans, a prompt, or plan files. A command after `--` is not among them."""

    plan_file: str | None
    many: str | None
    prompt_json: str | None
    source: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return [name for name in (self.plan_file, self.many, self.prompt_json, *self.source) if name is not None]

    @property
    def several(self) -> bool:
        """Return whether these are several plan files, each of which becomes a job."""
        return len(self.source) > 1 and self.names == list(self.source) and all(map(os.path.isfile, self.source))

    def check(self, command: tuple[str, ...] | None) -> None:
        """Refuse nothing at all, two things, and a command without its `--`."""
        if (len(self.names) == 1 or self.several) if command is None else not self.names:
            return
        if command is None and len(self.source) > 1:
            raise click.UsageError(f"to queue a command write: farro enqueue -- {shlex.join(self.source)}")
        raise click.UsageError(
            "name one thing to queue: -- COMMAND, --plan FILE, --prompt-json FILE, --many FILE.ndjson, or - for stdin"
        )

    def check_existence(self) -> None:
        if self.source and self.source[0] != "-" and not os.path.lexists(self.source[0]):
            raise InputError(
                f"{self.source[0]}: no such file. To queue a command write: farro enqueue -- {shlex.join(self.source)}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptFiles:
    """Files that come with a job."""

    context_md: str | None
    task: str | None
    payload: tuple[str, ...]
    workspace_snapshot: bool

    def beside(self, name: str) -> Attachments:
        """Return the attachments of a document; a file that it names itself is looked for beside it."""
        folder = None if name == "-" else os.path.dirname(os.path.abspath(name))
        return Attachments(
            folder=folder,
            context_md=self.context_md,
            payload=self.payload,
            task=self.task,
            workspace=os.getcwd() if self.workspace_snapshot else None,
        )


@click.command(cls=WithCommand)
@option_group(
    "sources",
    Sources,
    click.option("--plan", "plan_file", metavar="FILE", help="A plan in JSON or YAML; - reads standard input."),
    click.option("--many", metavar="FILE.ndjson", help="One JSON plan per line; - reads standard input."),
    click.option("--prompt-json", metavar="FILE", help="An agent prompt in JSON or YAML; - reads standard input."),
    click.argument("source", nargs=-1, metavar="[FILE... | -- COMMAND [ARGS]...]"),
)
@option_group(
    "attachments",
    PromptFiles,
    click.option("--context-md", metavar="FILE", help="The narrative of an agent prompt; becomes the job's prompt.md."),
    click.option("--task", metavar="TASK", help="The task of an agent prompt: an id in tasks/, or a file."),
    click.option("--payload", multiple=True, metavar="FILE", help="A file for an agent prompt; repeatable."),
    click.option(
        "--workspace-snapshot",
        is_flag=True,
        help="Attach this folder's state in git: a tar of its tracked files, and the diff since the last commit.",
    ),
)
@click.option("--id", "job_id", metavar="ID", help="Choose the job's id. The same id and plan again: the same job.")
@click.option("--force", is_flag=True, help="Queue it beyond a cap, if the config permits it to you.")
@job_options
@start_options
@common
@click.pass_context
def enqueue(
    context: click.Context,
    sources: Sources,
    attachments: PromptFiles,
    job_id: str | None,
    force: bool,
    job: JobOptions,
    start: StartOptions,
    root: str | None,
    as_json: bool,
) -> None:
    """Queue a command, or plans, and print the ids of the jobs, one per line. Everything is checked before anything is
    queued.

    The words after -- are a command, which will run in this folder. FILE is a plan file, or - for standard input; the
    same as --plan. Each of several files becomes a job. A delay counts from now, also for a job that runs after others.
    """
    command: tuple[str, ...] | None = context.meta[COMMAND]
    sources.check(command)
    sources.check_existence()
    asked = job.request(job_id=job_id, start=start, force=force)
    store, settings = open_root(root, make=command is not None)
    if command is not None:
        requests = [replace(asked, command=command, attachments=attachments.beside("-"))]
    else:
        requests = _requests(sources, asked, attachments)
    rules = policy(store, settings)
    if job.check_tools:
        job.check((item.prompt for item in prepare(store, requests, replace(rules, warn=str))), settings)
    made = submit(store, requests, rules)
    if as_json:
        answer({"jobs": [job.id for job in made]})
    else:
        say("\n".join(job.id for job in made))
    if len(made) == 1 and made[0].existed and (view := store.find(made[0].id)) is not None:
        _say_it_was_there(view, not_before=bool(asked.delay or asked.at))


def _requests(sources: Sources, asked: JobRequest, attachments: PromptFiles) -> list[JobRequest]:
    """Return a request for each document that the command line names."""
    if sources.many is not None:
        found = [("-", document) for document in read_many(sources.many)]  # without a folder for files that they name
    else:
        found = [(name, read_plan(name)) for name in sources.names]
    if asked.id is not None and len(found) > 1:
        raise one_id_for_several(as_option)
    if sources.several:
        for _, document in found:
            if is_agent_prompt(document.data):
                raise InputError(
                    f"{document.source} is an agent prompt; queue agent prompts one at a time, with --prompt-json"
                )
    return [
        replace(asked, document=document, agent=sources.prompt_json is not None, attachments=attachments.beside(name))
        for name, document in found
    ]


def _say_it_was_there(view: JobView, *, not_before: bool) -> None:
    """Say that nothing was queued: submitting twice is safe, but a person who meant a second job must notice."""
    life = view.lifecycle
    what = f"{life.status}, and that is final" if life.terminal else str(life.status)
    ignored = "; the time that you gave is not its own, which stays as it was" if not_before else ""
    again = f" To run it again: farro retry {view.job_id} --from-start" if life.terminal else ""
    note(f"{view.job_id} exists already and is {what}; nothing was queued{ignored}.{again}")
