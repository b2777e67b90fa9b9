"""Run the commands that a config names for a decision about a role's result: roles.<Role>.on_success and on_failure.

They run after a decision is made and before it is committed: a manager that dies in between decides again, and runs
them again. So they run at least once. Their output is logged; their failure changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farro.config.settings import RoleSettings
from farro.host import program_query
from farro.lazy_dataclass import dataclass
from farro.log.structured import Log
from farro.store.port import Store

_SAID = 16 << 10  # bytes of output that are read
_LOGGED = 2000  # characters that are logged


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """The hooks of a root."""

    store: Store
    root: str
    env: Mapping[str, str]  # the base of the commands' environment
    roles: Mapping[str, RoleSettings]
    timeout_s: float
    log: Log

    def commands(self, role: str, *, good: bool) -> Sequence[Sequence[str]]:
        """Return the commands for a result of that role."""
        settings = self.roles.get(role)
        if settings is None:
            return ()
        return settings.on_success if good else settings.on_failure

    def run(self, job_id: str, role: str, *, good: bool, decision: str, to: str | None, folder: str) -> None:
        """Run the hooks of a decision, and log each."""
        kind = "on_success" if good else "on_failure"
        env = {
            **self.env,
            "FARRO_ROOT": self.root,
            "FARRO_JOB": job_id,
            "FARRO_ROLE": role,
            "FARRO_DECISION": decision,
            "FARRO_NEXT": to or "",
            "FARRO_FOLDER": folder,
        }
        for number, argv in enumerate(self.commands(role, good=good)):
            result = program_query.ask(argv, timeout_s=self.timeout_s, limit=_SAID, cwd=self.root, env=env, errors=True)
            words = result.stdout.decode("utf-8", "replace").strip()[:_LOGGED]
            event = {"type": "hook", "hook": f"{role}.{kind}[{number}]", "said": words}
            if result.trouble is None:
                self.log("info", f"hook {argv[0]} ran", {"job_id": job_id, "event": event})
                continue
            self.log("error", f"hook {argv[0]} {result.trouble}", {"job_id": job_id, "event": event})
            self.store.note("hook_failed", job_id=job_id, role=role, hook=kind, number=number)
