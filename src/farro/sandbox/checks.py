"""Report, for `farro sandbox` and for doctor, which level confines jobs here, why not a better one, and what it cannot
prevent."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from farro.doctor.checks import Check, Finding, edit, failed, ok, warning
from farro.host import cgroup
from farro.lazy_dataclass import dataclass
from farro.sandbox.confinement import Network
from farro.sandbox.levels import Level, Probe, Sandbox, SandboxChoice


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxReport:
    level: Level  # that confines jobs here
    wanted: SandboxChoice  # by the config
    runs: bool  # whether jobs with allowed_paths are run
    probes: tuple[Probe, ...]  # of every level
    processes: str  # how their number is limited
    memory: str
    gaps: tuple[str, ...]
    advice: tuple[str, ...]  # what would make it better


def report(wanted: SandboxChoice, *, required: bool) -> SandboxReport:
    """Probe every level, whatever the config says."""
    chosen = Sandbox.available(wanted)
    probes = (*Sandbox.available("A").probes, *Sandbox.available("B").probes)
    group = cgroup.make(processes=16, memory_bytes=64 << 20)
    if group is not None:
        group.close()
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    watched = "counted four times a second: root is bound by no limit" if root else "RLIMIT_NPROC"
    return SandboxReport(
        level=chosen.level,
        wanted=wanted,
        runs=chosen.level != "none" or not (required or wanted in ("A", "B")),
        probes=probes,
        processes="a cgroup" if group is not None else watched,
        memory="a cgroup, for all processes of a plan together" if group is not None else "RLIMIT_AS, for each process",
        gaps=chosen.gaps(),
        advice=tuple(_advice(chosen, probes, wanted)),
    )


def _advice(chosen: Sandbox, probes: tuple[Probe, ...], wanted: SandboxChoice) -> list[str]:
    if chosen.level == "A":
        return []
    best = probes[0]
    if best.works:
        return [f"level A works here: set security.sandbox to auto (it is {wanted})"]
    if not chosen.bwrap:
        return ["install bubblewrap: apt-get install bubblewrap, dnf install bubblewrap"]
    told = ["level A needs namespaces for this user: see docs/sandbox.md"]
    if not probes[1].works:
        told.append("level B needs Linux 5.13 or newer with Landlock among its security modules (lsm=…,landlock)")
    return told


def checks(
    wanted: SandboxChoice, *, required: bool, networks: Mapping[str, Network], served: Sequence[str], config: str
) -> list[Check]:
    """`networks`: what the config gives, by the key that gives it. `served`: the keys with which programs reach their
    models through the gateway."""
    return [
        Check(id="sandbox", title="sandbox", look=lambda: _sandbox(wanted, required, config)),
        Check(
            id="network", title="network of confined programs", look=lambda: _network(wanted, networks, served, config)
        ),
    ]


def _network(wanted: SandboxChoice, networks: Mapping[str, Network], served: Sequence[str], config: str) -> Finding:
    every = [key for key, network in networks.items() if network is True]
    listed = [key for key, network in networks.items() if network is not True and network]
    if (listed or served) and not Sandbox.available(wanted).serves():
        cause = (
            "level B cannot let a process reach the gateway and single hosts here (no pidfd_getfd); such programs and "
            "steps are refused"
        )
        return failed(f"not served: {', '.join((*listed, *served))}", cause, "farro sandbox", edit(config))
    if every:
        cause = (
            "such a program sends what it reads wherever it wants, and reaches each service of this machine without a "
            'password; list the hosts instead: ["index.example:443"]'
        )
        return warning(f"{', '.join(every)}: true", cause, edit(config))
    return ok(f"{', '.join(listed)}: listed hosts only" if listed else "none, or the gateway only")


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
