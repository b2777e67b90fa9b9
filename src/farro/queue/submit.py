"""Submitting plans and commands: a document in, a job's id out. Everything is checked before anything is written.

Reading files and standard input lives in cli; what a plan may say lives in plans; options live in wishes.
"""

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
from farro.queue import options as wishing
from farro.queue.admission import Gate, admitted
from farro.queue.agent_rules import STRICT, Contract
from farro.queue.options import Wishes
from farro.roles.names import MANAGER
from farro.store.port import Store, Submission

DEFAULT_ROLE = "Runner"
STDIN = "stdin"  # what standard input is called among the files of a job


def enqueue(
    store: Store,
    documents: Sequence[Document],
    *,
    role: str | None = None,
    job_id: str | None = None,
    source: str,
    wishes: Wishes = wishing.NONE,
    gate: Gate | None = None,
    contract: Contract = STRICT,
) -> list[str]:
    """Enqueue the plan of each document; answers the ids in the same order. All of them are good, or none is queued.
    `gate` keeps the caps; without one there are none. `contract` is what agent work must keep."""
    wanted = submissions(store, documents, role=role, job_id=job_id, source=source, wishes=wishes, contract=contract)
    return admitted(store, wanted, gate)


def submissions(
    store: Store,
    documents: Sequence[Document],
    *,
    role: str | None,
    job_id: str | None,
    source: str,
    wishes: Wishes,
    contract: Contract = STRICT,
) -> list[Submission]:
    """What would be queued; every problem of all documents at once."""
    if job_id is not None:
        _check_option("--id", lambda: ids.check_job_id(job_id))
    known = set(store.roles())
    if role is not None:
        _check_option("--role", lambda: _check_role(role, known))
    _check_wishes(store, wishes, job_id)
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
        problems += contracts.unfitting(document, wishes)
    problems += _told_twice(pairs)
    problems += [problem for document in documents for problem in wishing.contradictions(document, wishes)]
    problems += _unknown_dependencies(store, pairs, job_id)
    if problems:
        raise refusal(source, problems)
    asked = set().union(*(contracts.agent_roles(document, plan) for plan, document in pairs))
    if asked:
        contract.check(sorted(asked))
    return [
        Submission(
            role=role or plan.role or DEFAULT_ROLE,
            prompt=wishing.granted(_prompt(document.data), wishes),
            job_id=job_id or plan.id,
            not_before=wishes.not_before,
        )
        for plan, document in pairs
    ]


def of_files(
    store: Store, documents: Sequence[Document], *, role: str | None, wishes: Wishes, contract: Contract = STRICT
) -> list[Submission]:
    """The same for a file a job: each problem is told with the file in which it is."""
    found: list[Submission] = []
    refused: list[BadDocument] = []
    first: dict[str, str] = {}
    for document in documents:
        if is_agent_prompt(document.data):
            raise InputError(f"{document.source} is an agent prompt; such are queued one at a time, with --prompt-json")
        try:
            (one,) = submissions(
                store, [document], role=role, job_id=None, source=document.source, wishes=wishes, contract=contract
            )
        except BadDocument as bad:
            refused.append(bad)
            continue
        found.append(one)
        if one.job_id is not None and first.setdefault(one.job_id, document.source) != document.source:
            told = f"{first[one.job_id]} has the same; a job has one id, and an id one job"
            refused.append(refusal(document.source, [document.problem(("id",), told)]))
    if refused:
        raise InputError("\n".join(map(str, refused)))
    return found


def command(
    store: Store, argv: Sequence[str], *, role: str | None, job_id: str | None, wishes: Wishes
) -> list[Submission]:
    """The same for a command as it is typed at a prompt."""
    for word in (*argv, *wishes.env.values(), wishes.cwd or ""):
        if not word.isprintable() and any("\ud800" <= char <= "\udfff" for char in word):
            raise InputError(f"{ascii(word)[:80]} is not UTF-8 text, and a job is kept as such; put it into a script")
    document = wishing.command_plan(argv, wishes)
    rest = Wishes(
        tags=wishes.tags,
        priority=wishes.priority,
        after=wishes.after,
        after_any=wishes.after_any,
        not_before=wishes.not_before,
    )
    return submissions(store, [document], role=role, job_id=job_id, source=document.source, wishes=rest)


def with_input(submission: Submission, data: bytes) -> Submission:
    """The same job, which brings `data` along: its first step that reads no other finds it on its standard input."""
    if "input" in submission.prompt:
        raise InputError("the plan names an `input` of its own, and something was piped in; keep one of them")
    return replace(submission, prompt={**submission.prompt, "input": STDIN}, payload={STDIN: data})


def _check_wishes(store: Store, wishes: Wishes, job_id: str | None) -> None:
    for tag in wishes.tags:
        _check_option("--tag", partial(ids.check_tag, tag))
    if job_id is not None and store.find(job_id) is not None:
        return  # submitted before: it answers what it is, whatever became of what it ran after
    for name, wanted in (("--after", wishes.after), ("--after-any", wishes.after_any)):
        for dependency in wanted:
            _check_option(name, partial(_check_dependency, store, dependency, (), job_id))


def _check_dependency(store: Store, dependency: str, earlier: Collection[str], own: str | None) -> None:
    if ids.check_job_id(dependency) == own:
        raise InputError(f"{dependency} cannot run after itself")
    if dependency not in earlier and store.find(dependency) is None:
        raise UnknownJob(f"no job {dependency}; `farro ls` lists what there is")


def _unknown_dependencies(store: Store, pairs: Sequence[tuple[Plan, Document]], job_id: str | None) -> list[Problem]:
    """Ids in a plan's metadata that name no job, nor an earlier line of the same file."""
    earlier: set[str] = set()
    found = []
    for plan, document in pairs:
        own = job_id or plan.id
        for name in ("after", "after_any"):
            metadata = document.data.get("metadata") if isinstance(document.data, dict) else None
            wanted = metadata.get(name) if isinstance(metadata, dict) else None
            for index, dependency in enumerate(wanted if isinstance(wanted, list) else ()):
                if not (isinstance(dependency, str) and ids.is_job_id(dependency)):
                    continue  # told by wishes.contradictions
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
    """What a plan says of its own job that this root or the command line contradicts."""
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
    """Who works that role decides where agents' jobs go next, and runs nothing: such a job would only fail."""
    named = {role, plan.role} - {None}
    if shaped.agent or named != {MANAGER}:  # two that differ are told of elsewhere
        return
    why = f"decides where agents' jobs go next, and runs no commands; leave it out, and {DEFAULT_ROLE} runs them"
    if role is not None:
        raise InputError(f"--role: {MANAGER} {why}")
    yield document.problem(("role",), f"is {MANAGER}, which {why}")


def _told_twice(pairs: Sequence[tuple[Plan, Document]]) -> list[Problem]:
    """One id for two plans in the same file. The same plan again is the same job, as it is across files."""
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
            f"no role {role} here; there is {', '.join(sorted(known))}. "
            "A new one is declared under `roles` in the config and made by `farro init`"
        )


def _check_option(name: str, check: Callable[[], object]) -> None:
    try:
        check()
    except InputError as error:
        raise type(error)(f"{name}: {error}") from error


def _prompt(data: Any) -> Mapping[str, Any]:
    """prompt.json holds what was submitted; a bare task list becomes the object that means the same."""
    return {"tasks": data} if isinstance(data, list) else without_schema(data)
