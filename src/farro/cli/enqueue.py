"""`farro enqueue`: commands, or plans from files or standard input. Checking and queueing live in operations.submit."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import replace

import click

from farro import documents
from farro.cli.options import common, gate, open_root
from farro.cli.submit_options import AT_HELP, COMMAND, WithCommand, how_to_run, start_time, submit_options
from farro.cli.terminal import answer, note, say
from farro.documents import Document
from farro.errors import InputError
from farro.host import fs
from farro.host.clock import SystemClock
from farro.jobs import ids
from farro.plans.forms import is_agent_prompt
from farro.queue import submit
from farro.queue.admission import enqueue_admitted
from farro.queue.agent_rules import contract_of
from farro.queue.options import SubmitOptions
from farro.store.port import JobView, Store

MANY_LIMIT = 256 << 20
# How YAML begins, after comments: with a key or an item. JSON begins with a brace or a bracket.
_YAML = re.compile(rb"(?:[ \t]*(?:#[^\n]*)?\r?\n|---[^\n]*\n)*[ \t]*(?:[A-Za-z_][\w-]*[ \t]*:(?=\s|$)|-[ \t])")


@click.command(cls=WithCommand)
@click.option("--plan", "plan_file", metavar="FILE", help="A plan in JSON or YAML; - reads standard input.")
@click.option("--many", metavar="FILE.ndjson", help="A JSON plan a line; - reads standard input.")
@click.option("--prompt-json", metavar="FILE", help="An agent prompt, JSON or YAML; - reads standard input.")
@click.option("--context-md", metavar="FILE", help="The narrative of an agent prompt; it becomes prompt.md of the job.")
@click.option("--task", metavar="TASK", help="The task of an agent prompt: an id in tasks/, or its file.")
@click.option("--payload", multiple=True, metavar="FILE", help="A file for an agent prompt; repeatable.")
@click.option(
    "--id", "job_id", metavar="ID", help="The job's id, chosen by you. The same id and plan again: the same job."
)
@click.option("--force", is_flag=True, help="Queue it though a cap is reached, if the config permits it to you.")
@how_to_run
@click.option("--delay", metavar="DURATION", help="Not before so long from now, such as 10m, 2h or 1d.")
@click.option("--at", metavar="TIME", help=AT_HELP)
@click.option("--after", multiple=True, metavar="JOB", help="Only when that job has succeeded; repeatable.")
@click.option("--after-any", multiple=True, metavar="JOB", help="When that job has ended, however; repeatable.")
@click.argument("source", nargs=-1, metavar="[FILE... | -- COMMAND [ARGS]...]")
@common
@click.pass_context
def enqueue(
    context: click.Context,
    plan_file: str | None,
    many: str | None,
    prompt_json: str | None,
    context_md: str | None,
    task: str | None,
    payload: tuple[str, ...],
    job_id: str | None,
    role: str | None,
    force: bool,
    tags: tuple[str, ...],
    priority: str | None,
    timeout: str | None,
    cwd: str | None,
    env: tuple[str, ...],
    delay: str | None,
    at: str | None,
    after: tuple[str, ...],
    after_any: tuple[str, ...],
    source: tuple[str, ...],
    root: str | None,
    as_json: bool,
) -> None:
    """Queue a command, or plans, and print their ids, one a line. Everything is checked before anything is queued.

    What stands after -- is a command, which will run in this folder. FILE is a plan file, or - for standard input; the
    same as --plan. Of several files each is a job. A delay counts from now, also for a job that runs after others.
    """
    command: tuple[str, ...] | None = context.meta[COMMAND]
    given = [name for name in (plan_file, many, prompt_json, *source) if name is not None]
    several = len(source) > 1 and given == list(source) and all(map(os.path.isfile, source))
    if (len(given) != 1 and not several) if command is None else given:
        _say_what_to_name(source, command)
    options = submit_options(
        tags=tags,
        priority=priority,
        timeout=timeout,
        cwd=cwd,
        env=env,
        after=after,
        after_any=after_any,
        not_before=start_time(delay, at, SystemClock()),
        typed=command is not None,
    )
    if source and source[0] != "-" and not os.path.lexists(source[0]):
        raise InputError(f"{source[0]}: no such file. To queue a command write: farro enqueue -- {shlex.join(source)}")
    store, settings = open_root(root, make=command is not None)
    options = _resolved(store, options, job_id)
    if command is not None:
        _refuse_enclosures(context_md, task, payload)
        before = _before(store, job_id)
        wanted = submit.command(store, command, role=role, job_id=job_id, options=options)
        made = enqueue_admitted(store, wanted, gate(settings, force))
    else:
        found = _read_many(many) if many is not None else [read_plan(name) for name in given]
        before = None if len(found) > 1 else _before(store, job_id or _own_id(found[0]))
        contract = contract_of(store.root, settings)
        if several:
            _refuse_enclosures(context_md, task, payload)
            if job_id is not None:
                raise click.UsageError(
                    "--id names one job, and each of these files is one; give each plan its own `id`"
                )
            wanted = submit.of_files(store, found, role=role, options=options, contract=contract)
            made = enqueue_admitted(store, wanted, gate(settings, force))
        elif prompt_json is not None or (many is None and is_agent_prompt(found[0].data)):
            from farro.queue import prompts

            folder = None if given[0] == "-" else os.path.dirname(os.path.abspath(given[0]))
            job = prompts.enqueue(
                store,
                found[0],
                role=role,
                job_id=job_id,
                options=options,
                gate=gate(settings, force),
                contract=contract,
                security=settings.security,
                root=store.root,
                attach=prompts.AttachmentOptions(folder=folder, context_md=context_md, payload=payload, task=task),
            )
            made = [job]
        else:
            _refuse_enclosures(context_md, task, payload)
            made = submit.enqueue(
                store,
                found,
                role=role,
                job_id=job_id,
                source=name_of(given[0]),
                options=options,
                gate=gate(settings, force),
                contract=contract,
            )
    if as_json:
        answer({"jobs": made})
    else:
        say("\n".join(made))
    if before is not None:
        _say_it_was_there(before, not_before=options.not_before is not None)


def _own_id(document: Document) -> str | None:
    own = document.data.get("id") if isinstance(document.data, dict) else None
    return own if isinstance(own, str) else None


def _before(store: Store, job_id: str | None) -> JobView | None:
    return store.find(job_id) if job_id is not None and ids.is_job_id(job_id) else None


def _say_it_was_there(view: JobView, *, not_before: bool) -> None:
    """Submitting again is safe to repeat; whoever meant a second job, or another time, must not take it for that."""
    life = view.lifecycle
    what = f"{life.status}, and that is final" if life.terminal else str(life.status)
    ignored = "; the time that you gave is not its own, which stays as it was" if not_before else ""
    again = f" To run it again: farro retry {view.job_id} --from-start" if life.terminal else ""
    note(f"{view.job_id} exists already and is {what}; nothing was queued{ignored}.{again}")


def _refuse_enclosures(context_md: str | None, task: str | None, payload: tuple[str, ...]) -> None:
    given = {"--context-md": context_md, "--task": task, "--payload": payload}
    for name in (name for name, value in given.items() if value):
        raise click.UsageError(f"{name} comes with an agent prompt, --prompt-json FILE")


def _resolved(store: Store, options: SubmitOptions, own: str | None) -> SubmitOptions:
    """Jobs that it runs after may be named by their beginnings, as everywhere. Prompts keep whole ids."""
    if not options.after and not options.after_any:
        return options
    from farro.queue import find_job

    def whole(option: str, named: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(job if job == own else find_job.resolve(store, store.root, job) for job in named)
        except InputError as error:
            if own is not None and store.find(own) is not None:
                return named  # submitted before: it answers what it is, whatever became of what it ran after
            raise type(error)(f"{option}: {error}") from error

    return replace(options, after=whole("--after", options.after), after_any=whole("--after-any", options.after_any))


def _say_what_to_name(source: tuple[str, ...], command: tuple[str, ...] | None) -> None:
    if command is None and len(source) > 1:
        raise click.UsageError(f"to queue a command write: farro enqueue -- {shlex.join(source)}")
    raise click.UsageError(
        "name one thing to queue: -- COMMAND, --plan FILE, --prompt-json FILE, --many FILE.ndjson, or - for stdin"
    )


def read_plan(path: str) -> Document:
    text = contents(path, documents.DEFAULT.size)
    if path == "-" and _YAML.match(text):  # no name that would say what it is
        return documents.parse_yaml(text, source=name_of(path))
    return documents.parse(text, name_of(path))


def _read_many(path: str) -> list[Document]:
    found = documents.parse_ndjson(contents(path, MANY_LIMIT), name_of(path))
    if not found:
        raise InputError(f"{name_of(path)}: no plan in it; --many wants one JSON plan a line")
    return found


def name_of(path: str) -> str:
    return "<stdin>" if path == "-" else path


def contents(path: str, limit: int) -> bytes:
    """The whole of a file or of standard input, which is never read much beyond the limit."""
    try:
        data = _stdin(limit) if path == "-" else fs.read_regular(path, limit)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{name_of(path)}: cannot be read: {why}") from error
    if len(data) > limit:
        raise InputError(f"{name_of(path)}: is larger than {limit} bytes, and no more than that is read")
    return data


def _stdin(limit: int) -> bytes:
    if sys.stdin is None:
        raise InputError("<stdin>: is closed; name a file, or pipe a plan in")
    return sys.stdin.buffer.read(limit + 1)
