"""The built-in roles, and the check of a role's name in a document."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from farro.documents import did_you_mean
from farro.errors import BadName
from farro.jobs import ids
from farro.lazy_dataclass import dataclass

MANAGER = "Manager"  # decides which role gets a job next; runs nothing itself
AGENTS = (MANAGER, "SeniorEngineer", "JuniorEngineer", "Architect", "CodeReviewer", "DocWriter")  # SPEC-1 §3.1
RUNNER = "Runner"  # for command plans
ROLES = (*AGENTS, RUNNER)


@dataclass(frozen=True, eq=False)
class RoleNameRule:
    """Check the form of a role's name. `fault_of` checks whether the root has the role."""

    def fault(self, value: str, /) -> str | None:
        try:
            ids.check_role(value)
        except BadName:
            return f"is not a role; it must match {ids.ROLE.pattern}, such as {AGENTS[1]}"
        return None

    def schema(self) -> dict[str, Any]:
        # The built-in names come first for editors; a config may declare others.
        return {"anyOf": [{"enum": list(AGENTS)}, {"pattern": f"^(?:{ids.ROLE.pattern})$"}]}


Role = Annotated[str, RoleNameRule()]


def fault_of(role: str, known: Collection[str]) -> str | None:
    """Say why agent work cannot go to this role in a root with the roles `known`; None if it can."""
    agents = [name for name in known if name != RUNNER]
    if role == RUNNER:
        return f"{RUNNER} runs command plans, no agents; known: {', '.join(agents)}"
    if role in agents:
        return None
    hint = did_you_mean(role, agents, f"known: {', '.join(agents)}.")
    return (
        f"{role} is not a role here; {hint} A new one is declared under `roles` in the config and made by `farro init`"
    )
