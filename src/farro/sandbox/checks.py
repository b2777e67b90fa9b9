"""The doctor's check of the sandbox: which level confines jobs with allowed_paths on this machine."""

from __future__ import annotations

from farro.doctor.checks import Check, Finding, edit, failed, ok, warning
from farro.sandbox.levels import Sandbox, SandboxChoice


def checks(wanted: SandboxChoice, *, required: bool, config: str) -> list[Check]:
    return [Check(id="sandbox", title="sandbox", look=lambda: _sandbox(wanted, required, config))]


def _sandbox(wanted: SandboxChoice, required: bool, config: str) -> Finding:
    chosen = Sandbox.available(wanted)
    if chosen.level == "A":
        return ok("level A: namespaces and seccomp", *chosen.gaps())
    why = chosen.probes[0].why if chosen.probes else "security.sandbox is none"
    repair = "sudo apt-get install bubblewrap" if not chosen.bwrap and wanted in ("auto", "A") else "farro sandbox"
    if wanted in ("B", "none"):
        repair = edit(config)
    if chosen.level == "B":
        cause = f"level A, which keeps more, does not work: {why}"
        if wanted == "B":
            return ok("level B: Landlock and seccomp, as the config wants", *chosen.gaps())
        return warning("level B: Landlock and seccomp", cause, repair, details=chosen.gaps())
    cause = f"nothing keeps a job with allowed_paths from writing elsewhere; it is only seen afterwards ({why})"
    if required:
        return failed("none, and security.require_sandbox is on", f"such jobs are refused: {why}", repair)
    return warning("none", cause, repair, details=chosen.gaps())
