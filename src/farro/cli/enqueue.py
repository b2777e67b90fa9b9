"""`farro enqueue`: queue a command, or plans and agent prompts from files or standard input."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from farro.cli.options import common, gate, open_root, option_group
from farro.cli.plan_files import name_of, read_many, read_plan
from farro.cli.submit_options import COMMAND, JobOptions, StartOptions, WithCommand, job_options, start_options
from farro.cli.terminal import answer, note, say
from farro.documents import Document
from farro.errors import InputError
from farro.jobs import ids
from farro.lazy_dataclass import dataclass
from farro.plans.forms import is_agent_prompt
from farro.queue import submit
from farro.queue.admission import enqueue_admitted
from farro.queue.agent_rules import contract_of
from farro.queue.options import SubmitOptions
from farro.store.port import JobView, Store

if TYPE_CHECKING:
    from farro.config.settings import Settings


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
    """Files that come with an agent prompt."""

    context_md: str | None
    task: str | None
    payload: tuple[str, ...]

    def refuse(self) -> None:
        given = {"--context-md": self.context_md, "--task": self.task, "--payload": self.payload}
        for name in (name for name, value in given.items() if value):
            raise click.UsageError(f"{name} comes with an agent prompt, --prompt-json FILE")


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
    options = job.parsed(
        typed=command is not None, after=start.after, after_any=start.after_any, not_before=start.not_before()
    )
    sources.check_existence()
    store, settings = open_root(root, make=command is not None)
    submitter = _Submitter(store, settings, force, job.role, job_id, _resolved(store, options, job_id))
    if command is not None:
        attachments.refuse()
        before = _before(store, job_id)
        made = submitter.command(command)
    else:
        many = sources.many
        found = read_many(many) if many is not None else [read_plan(name) for name in sources.names]
        before = None if len(found) > 1 else _before(store, job_id or _own_id(found[0]))
        made = submitter.documents(sources, found, attachments)
    if as_json:
        answer({"jobs": made})
    else:
        say("\n".join(made))
    if before is not None:
        _say_it_was_there(before, not_before=options.not_before is not None)


class _Submitter:
    """Queue what the command line named, each kind in its own way."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        force: bool,
        role: str | None,
        job_id: str | None,
        options: SubmitOptions,
    ) -> None:
        self._store, self._settings = store, settings
        self._gate = gate(settings, force)
        self._role, self._job_id, self._options = role, job_id, options

    def command(self, words: tuple[str, ...]) -> list[str]:
        wanted = submit.command(self._store, words, role=self._role, job_id=self._job_id, options=self._options)
        return enqueue_admitted(self._store, wanted, self._gate)

    def documents(self, sources: Sources, found: list[Document], attachments: PromptFiles) -> list[str]:
        agent_prompt = sources.prompt_json is not None or (sources.many is None and is_agent_prompt(found[0].data))
        if agent_prompt and not sources.several:
            return [self._prompt(sources.names[0], found[0], attachments)]
        attachments.refuse()
        contract = contract_of(self._store.root, self._settings)
        if sources.several:
            if self._job_id is not None:
                raise click.UsageError(
                    "--id names one job, and each of these files is one; give each plan its own `id`"
                )
            wanted = submit.of_files(self._store, found, role=self._role, options=self._options, contract=contract)
            return enqueue_admitted(self._store, wanted, self._gate)
        return submit.enqueue(
            self._store,
            found,
            role=self._role,
            job_id=self._job_id,
            source=name_of(sources.names[0]),
            options=self._options,
            gate=self._gate,
            contract=contract,
        )

    def _prompt(self, name: str, document: Document, attachments: PromptFiles) -> str:
        from farro.queue import prompts

        return prompts.enqueue(
            self._store,
            document,
            role=self._role,
            job_id=self._job_id,
            options=self._options,
            gate=self._gate,
            contract=contract_of(self._store.root, self._settings),
            security=self._settings.security,
            root=self._store.root,
            attach=prompts.AttachmentOptions(
                folder=None if name == "-" else os.path.dirname(os.path.abspath(name)),
                context_md=attachments.context_md,
                payload=attachments.payload,
                task=attachments.task,
            ),
        )


def _own_id(document: Document) -> str | None:
    own = document.data.get("id") if isinstance(document.data, dict) else None
    return own if isinstance(own, str) else None


def _before(store: Store, job_id: str | None) -> JobView | None:
    return store.find(job_id) if job_id is not None and ids.is_job_id(job_id) else None


def _say_it_was_there(view: JobView, *, not_before: bool) -> None:
    """Say that nothing was queued: submitting twice is safe, but a person who meant a second job must notice."""
    life = view.lifecycle
    what = f"{life.status}, and that is final" if life.terminal else str(life.status)
    ignored = "; the time that you gave is not its own, which stays as it was" if not_before else ""
    again = f" To run it again: farro retry {view.job_id} --from-start" if life.terminal else ""
    note(f"{view.job_id} exists already and is {what}; nothing was queued{ignored}.{again}")


def _resolved(store: Store, options: SubmitOptions, own: str | None) -> SubmitOptions:
    """Replace beginnings of ids in --after and --after-any by whole ids: prompts keep whole ones."""
    if not options.after and not options.after_any:
        return options
    from farro.queue import find_job

    def whole(option: str, named: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(job if job == own else find_job.resolve(store, store.root, job) for job in named)
        except InputError as error:
            if own is not None and store.find(own) is not None:
                return named  # submitted before: the answer is that job, also when the jobs it ran after are pruned
            raise type(error)(f"{option}: {error}") from error

    return replace(options, after=whole("--after", options.after), after_any=whole("--after-any", options.after_any))
