"""Check agent work before it is queued: prompts, allowed paths, and agent steps inside plans."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from farro.config import reader
from farro.config.settings import SecuritySettings, Settings
from farro.documents import Document
from farro.errors import Problem
from farro.lazy_dataclass import dataclass, field
from farro.plans import loading
from farro.plans.forms import Shaped
from farro.plans.model import Plan
from farro.roles import names, prompt

AGENT_TOOL = "agent"


def _any_roles(roles: Collection[str]) -> None:
    """Accept every role, for callers without a config."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contract:
    """The rules of a root for agent work. `check` refuses agent work for roles that the config does not support."""

    root: str | None = None
    security: SecuritySettings = field(default_factory=SecuritySettings)
    check: Callable[[Collection[str]], None] = _any_roles


STRICT = Contract()


def contract_of(root: str, settings: Settings) -> Contract:
    """Return the rules for agent work that is queued in `root`."""
    return Contract(
        root=root, security=settings.security, check=lambda roles: reader.check_contract(root, settings, roles)
    )


def read(document: Document, known: Collection[str], contract: Contract, *, agent: bool = False) -> tuple[Plan, Shaped]:
    """Read the plan of a document that is to be queued; an agent prompt is checked by the strict rules. `agent`: it
    must be one."""
    if agent or prompt.is_agent_prompt(document.data):
        absolute = contract.security.allow_absolute_paths
        prompt.load(document, roles=known, allow_absolute=absolute, root=contract.root)
    return loading.read(document)


def problems(
    document: Document, plan: Plan, shaped: Shaped, known: Collection[str], contract: Contract
) -> Iterator[Problem]:
    """Yield what a plan may not say about agents and paths. An agent prompt was already checked in full."""
    if shaped.agent:
        return
    if isinstance(document.data, dict):
        allowed, absolute = document.data.get("allowed_paths"), contract.security.allow_absolute_paths
        for fault in prompt.path_faults(allowed, allow_absolute=absolute, root=contract.root):
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


def agent_roles(document: Document, plan: Plan) -> set[str]:
    """Return the roles whose agents a job of this plan would call."""
    asked = {step.command for step in plan.steps if step.tool == AGENT_TOOL}
    if prompt.is_agent_prompt(document.data):
        onward = document.data["routing"].get("next")
        asked.update({onward} if onward else ())
    return asked
