"""Turn documents and commands into jobs. Everything is checked before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from farro.documents import Document, refusal, without_schema
from farro.errors import BadDocument, BadName, InputError, Problem, UnknownJob, UnknownRole
from farro.jobs import ids
from farro.plans.forms import Shaped, is_agent_prompt
from farro.plans.model import Plan
from farro.queue import agent_rules as contracts
from farro.queue import options as submit_options
from farro.queue.admission import Gate, enqueue_admitted
from farro.queue.agent_rules import STRICT, Contract
from farro.queue.options import SubmitOptions
from farro.roles.names import MANAGER
from farro.store.port import Store, Submission

DEFAULT_ROLE = "Runner"
STDIN = "stdin"  # the name of piped input among a job's files


def enqueue(
    store: Store,
    documents: Sequence[Document],
    *,
    role: str | None = None,
    job_id: str | None = None,
    source: str,
    options: SubmitOptions = submit_options.NO_OPTIONS,
    gate: Gate | None = None,
    contract: Contract = STRICT,
) -> list[str]:
    """Enqueue the plan of each document and return the ids in the same order. All are valid, or none is queued.

    `gate` enforces the caps; without one there are none. `contract` holds the rules for agent work.
    """
    wanted = submissions(store, documents, role=role, job_id=job_id, source=source, options=options, contract=contract)
    return enqueue_admitted(store, wanted, gate)


def submissions(
    store: Store,
    documents: Sequence[Document],
    *,
    role: str | None,
    job_id: str | None,
    source: str,
    options: SubmitOptions,
    contract: Contract = STRICT,
) -> list[Submission]:
    """Return what would be queued, or raise every problem of all documents at once."""
    if job_id is not None:
        _check_option("--id", lambda: ids.check_job_id(job_id))
    known = set(store.roles())
    if role is not None:
        _check_option("--role", lambda: _check_role(role, known))
    _check_options(store, options, job_id)
    read = contracts.read_all(documents, sorted(known), contract, source)
    plans = [plan for plan, _ in read]
    if job_id is not None and len(plans) != 1:
        raise InputError(f"--id names one job, but {source} holds {len(plans)} plans; give each plan its own `id`")
    pairs = list(zip(plans, documents, strict=True))
    problems = [
        problem for plan, document in pairs for problem in _problems(plan, document, known, role=role, job_id=job_id)
    ]
    for (plan, shaped), document in zip(read, documents, strict=True):
        problems += _commands_for_manager(document, plan, shaped, role)
        problems += contracts.problems(document, plan, shaped, sorted(known), contract)
        problems += contracts.unsupported_options(document, options)
    problems += _duplicate_ids(pairs)
    problems += [problem for document in documents for problem in submit_options.contradictions(document, options)]
    problems += _unknown_dependencies(store, pairs, job_id)
    if problems:
        raise refusal(source, problems)
    asked = set().union(*(contracts.agent_roles(document, plan) for plan, document in pairs))
    if asked:
        contract.check(sorted(asked))
    return [
        Submission(
            role=role or plan.role or DEFAULT_ROLE,
            prompt=submit_options.apply_options(_prompt(document.data), options),
            job_id=job_id or plan.id,
            not_before=options.not_before,
        )
        for plan, document in pairs
    ]


def of_files(
    store: Store,
    documents: Sequence[Document],
    *,
    role: str | None,
    options: SubmitOptions,
    contract: Contract = STRICT,
) -> list[Submission]:
    """Return one submission per file; each problem is reported with its file."""
    found: list[Submission] = []
    refused: list[BadDocument] = []
    first: dict[str, str] = {}
    for document in documents:
        if is_agent_prompt(document.data):
            raise InputError(
                f"{document.source} is an agent prompt; queue agent prompts one at a time, with --prompt-json"
            )
        try:
            (one,) = submissions(
                store, [document], role=role, job_id=None, source=document.source, options=options, contract=contract
            )
        except BadDocument as bad:
            refused.append(bad)
            continue
        found.append(one)
        if one.job_id is not None and first.setdefault(one.job_id, document.source) != document.source:
            message = f"{first[one.job_id]} has the same; an id belongs to one job"
            refused.append(refusal(document.source, [document.problem(("id",), message)]))
    if refused:
        raise InputError("\n".join(map(str, refused)))
    return found


def command(
    store: Store, argv: Sequence[str], *, role: str | None, job_id: str | None, options: SubmitOptions
) -> list[Submission]:
    """Return the submission of a command as it is typed in a shell."""
    for word in (*argv, *options.env.values(), options.cwd or ""):
        if not word.isprintable() and any("\ud800" <= char <= "\udfff" for char in word):
            raise InputError(f"{ascii(word)[:80]} is not UTF-8 text, as a job must be; put it into a script")
    document = submit_options.command_plan(argv, options)
    rest = SubmitOptions(
        tags=options.tags,
        priority=options.priority,
        after=options.after,
        after_any=options.after_any,
        not_before=options.not_before,
    )
    return submissions(store, [document], role=role, job_id=job_id, source=document.source, options=rest)


def with_input(submission: Submission, data: bytes) -> Submission:
    """Return the job with `data` attached: its first step that reads no other input gets it on standard input."""
    if "input" in submission.prompt:
        raise InputError("the plan names an `input` of its own, and input was also piped in; keep one of them")
    return replace(submission, prompt={**submission.prompt, "input": STDIN}, payload={STDIN: data})


def _check_options(store: Store, options: SubmitOptions, job_id: str | None) -> None:
    for tag in options.tags:
        _check_option("--tag", partial(ids.check_tag, tag))
    if job_id is not None and store.find(job_id) is not None:
        return  # submitted before: the existing job is returned, even if its dependencies have failed or are gone
    for name, wanted in (("--after", options.after), ("--after-any", options.after_any)):
        for dependency in wanted:
            _check_option(name, partial(_check_dependency, store, dependency, (), job_id))


def _check_dependency(store: Store, dependency: str, earlier: Collection[str], own: str | None) -> None:
    if ids.check_job_id(dependency) == own:
        raise InputError(f"{dependency} cannot run after itself")
    if dependency not in earlier and store.find(dependency) is None:
        raise UnknownJob(f"no job {dependency}; `farro ls` lists what there is")


def _unknown_dependencies(store: Store, pairs: Sequence[tuple[Plan, Document]], job_id: str | None) -> list[Problem]:
    """Return dependencies in a plan's metadata that are neither a job nor an earlier document of the same source."""
    earlier: set[str] = set()
    found = []
    for plan, document in pairs:
        own = job_id or plan.id
        for name in ("after", "after_any"):
            metadata = document.data.get("metadata") if isinstance(document.data, dict) else None
            wanted = metadata.get(name) if isinstance(metadata, dict) else None
            for index, dependency in enumerate(wanted if isinstance(wanted, list) else ()):
                if not (isinstance(dependency, str) and ids.is_job_id(dependency)):
                    continue  # reported by options.contradictions
                try:
                    if own is None or store.find(own) is None:
                        _check_dependency(store, dependency, earlier, own)
                except InputError as error:
                    found.append(document.problem(("metadata", name, index), str(error)))
        earlier.update({own} if own else ())
    return found


def _problems(
    plan: Plan, document: Document, known: set[str], *, role: str | None, job_id: str | None
) -> list[Problem]:
    """Return where a plan's id or role is contradicted by this root or the command line."""
    found = []
    if plan.id is not None:
        if job_id is not None and plan.id != job_id:
            found.append(document.problem(("id",), f"is {plan.id}, but --id says {job_id}; keep one of them"))
        try:
            ids.check_job_id(plan.id)
        except BadName as error:
            found.append(document.problem(("id",), str(error)))
    if plan.role is not None:
        if role is not None and plan.role != role:
            found.append(document.problem(("role",), f"is {plan.role}, but --role says {role}; keep one of them"))
        try:
            _check_role(plan.role, known)
        except InputError as error:
            found.append(document.problem(("role",), str(error)))
    return found


def _commands_for_manager(document: Document, plan: Plan, shaped: Shaped, role: str | None) -> Iterator[Problem]:
    """Refuse commands for the Manager role: it only decides where agents' jobs go next, so they would fail."""
    named = {role, plan.role} - {None}
    if shaped.agent or named != {MANAGER}:  # `_problems` reports two that differ
        return
    why = f"decides where agents' jobs go next, and runs no commands; leave it out, and {DEFAULT_ROLE} runs them"
    if role is not None:
        raise InputError(f"--role: {MANAGER} {why}")
    yield document.problem(("role",), f"is {MANAGER}, which {why}")


def _duplicate_ids(pairs: Sequence[tuple[Plan, Document]]) -> list[Problem]:
    """Return plans in one file that share an id. The same plan again is the same job, as it is across files."""
    first: dict[str, Document] = {}
    found = []
    for plan, document in pairs:
        if plan.id is not None and first.setdefault(plan.id, document).data != document.data:
            line, _ = first[plan.id].locate(("id",)) or (0, 0)
            found.append(document.problem(("id",), f"line {line} has another plan of this id; choose another"))
    return found


def _check_role(role: str, known: set[str]) -> None:
    if ids.check_role(role) not in known:
        raise UnknownRole(
            f"no role {role} here; known: {', '.join(sorted(known))}. "
            "A new one is declared under `roles` in the config and made by `farro init`"
        )


def _check_option(name: str, check: Callable[[], object]) -> None:
    try:
        check()
    except InputError as error:
        raise type(error)(f"{name}: {error}") from error


def _prompt(data: Any) -> Mapping[str, Any]:
    """Return the content of prompt.json: what was submitted; a bare task list becomes the equivalent object."""
    return {"tasks": data} if isinstance(data, list) else without_schema(data)
