"""Check agent work before it is queued: prompts, allowed paths, and agent steps inside plans."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from farro.config import reader
from farro.config.settings import Settings
from farro.documents import Document, refusal
from farro.errors import BadDocument, Problem
from farro.lazy_dataclass import dataclass
from farro.plans import loading
from farro.plans.forms import Shaped
from farro.plans.model import Plan
from farro.queue.options import SubmitOptions
from farro.roles import names, prompt

AGENT_TOOL = "agent"


def _any_roles(roles: Collection[str]) -> None:
    """Accept every role, for callers without a config."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contract:
    """The rules of a root for agent work. `check` refuses agent work for roles that the config does not support."""

    root: str | None = None
    allow_absolute: bool = False
    with_files: bool = False  # the caller also attaches the files that a prompt names
    check: Callable[[Collection[str]], None] = _any_roles


STRICT = Contract()


def contract_of(root: str, settings: Settings) -> Contract:
    """Return the rules for agent work that is queued in `root`."""
    return Contract(
        root=root,
        allow_absolute=settings.security.allow_absolute_paths,
        check=lambda roles: reader.check_contract(root, settings, roles),
    )


def read(document: Document, known: Collection[str], contract: Contract) -> tuple[Plan, Shaped]:
    """Read the plan of a document that is to be queued; an agent prompt is checked by the strict rules."""
    if prompt.is_agent_prompt(document.data):
        prompt.load(document, roles=known, allow_absolute=contract.allow_absolute, root=contract.root)
    return loading.read(document)


def read_all(
    documents: Collection[Document], known: Collection[str], contract: Contract, source: str
) -> list[tuple[Plan, Shaped]]:
    """Read every document, or raise the problems of all of them at once."""
    found: list[tuple[Plan, Shaped]] = []
    problems: list[Problem] = []
    for document in documents:
        try:
            found.append(read(document, known, contract))
        except BadDocument as bad:
            problems += bad.problems
    if problems:
        raise refusal(source, problems)
    return found


def problems(
    document: Document, plan: Plan, shaped: Shaped, known: Collection[str], contract: Contract
) -> Iterator[Problem]:
    """Yield what a plan may not say about agents and paths. An agent prompt was already checked in full."""
    if shaped.agent:
        if document.data.get("context_md") is not None and not contract.with_files:
            why = "names a file, but files cannot be attached this way; use `farro enqueue --prompt-json`"
            yield document.problem(("context_md",), why)
        return
    if plan.input is not None and not contract.with_files:
        why = "names a file that comes with the job, but none can be attached this way; pipe it into `agx submit`"
        yield document.problem(("input",), why)
    if isinstance(document.data, dict):
        allowed = document.data.get("allowed_paths")
        for fault in prompt.path_faults(allowed, allow_absolute=contract.allow_absolute, root=contract.root):
            yield document.problem(fault.path, fault.message)
    for index, step in enumerate(plan.steps):
        if step.tool != AGENT_TOOL:
            continue
        at = ("steps", index)
        if (message := names.fault_of(step.command, known)) is not None:
            yield document.problem(shaped.original((*at, "command")), message)
        if not "".join(step.args).strip():
            message = 'must say what the agent shall do, such as ["Summarise CHANGES.md"]'
            yield document.problem(shaped.original((*at, "args")), message)


def unsupported_options(document: Document, options: SubmitOptions) -> Iterator[Problem]:
    """Yield the options that have no meaning for an agent prompt."""
    if not prompt.is_agent_prompt(document.data):
        return
    given = {"--timeout": options.timeout_s, "--cwd": options.cwd, "--env": options.env}
    for option in (name for name, value in given.items() if value):
        yield document.problem(
            (), f"{option} is for commands; an agent's calls are set up under `roles` and `providers` in the config"
        )


def agent_roles(document: Document, plan: Plan) -> set[str]:
    """Return the roles whose agents a job of this plan would call."""
    asked = {step.command for step in plan.steps if step.tool == AGENT_TOOL}
    if prompt.is_agent_prompt(document.data):
        onward = document.data["routing"].get("next")
        asked.update({onward} if onward else ())
    return asked
