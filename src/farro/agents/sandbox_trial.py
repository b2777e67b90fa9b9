"""Run a command as the program of an agent is run, and report what it could see and reach."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypeVar

from farro.agents.programs.registry import find_program
from farro.agents.providers.port import Reach
from farro.agents.providers.programs import ALWAYS, named
from farro.agents.providers.read_paths import read_paths
from farro.config.settings import ProviderSettings, RoleSettings, Settings
from farro.documents import did_you_mean
from farro.errors import InputError
from farro.execution.confined import CannotConfine, Confined
from farro.execution.runner import Guarding
from farro.host import fs
from farro.host.process_tree import MARKER
from farro.host.processes import Launch, NotStarted
from farro.host.programs import which
from farro.lazy_dataclass import dataclass, replace
from farro.sandbox.confinement import Confinement, Network, wider, within
from farro.sandbox.levels import Level, Sandbox
from farro.sandbox.reading import SYSTEM, closed_list

_SHOWN = 16 << 20  # bytes of the output
_Described = TypeVar("_Described")


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxTrial:
    """What a command could see and reach, and what became of it."""

    level: Level
    writes: tuple[str, ...]
    reads: tuple[str, ...]  # besides the system and what it may write
    hidden: tuple[str, ...]  # though in a folder that it may read
    network: Network
    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRequest:
    """The command to try, and as whose program."""

    command: Sequence[str]
    provider: str | None  # None: that of the role
    role: str | None
    writable: tuple[str, ...]  # as allowed_paths


def try_command(
    asked: TrialRequest, *, root: str, settings: Settings, environ: Mapping[str, str], folder: str
) -> SandboxTrial:
    """Run it to its end. `folder` is empty, and takes its output. Raises InputError if it cannot be confined."""
    role = _named("roles", asked.role, settings.roles, RoleSettings())
    provider = _named("providers", asked.provider or role.provider, settings.providers, ProviderSettings())
    guarding = Guarding.of(settings.security)
    reach = Reach(root=root, writable=asked.writable, reads=role.read_paths, guarding=guarding)
    network, reads = wider(provider.network, role.network), read_paths(provider, reach, root, environ)
    if provider.program is not None:
        reads = (*reads, *find_program(provider.program).read_paths(asked.command[0]))
    try:
        confined = Confined(
            root=root, folder=folder, marker=folder, guarding=guarding, wanted=asked.writable, readable=(root,)
        )
    except CannotConfine as cannot:
        raise InputError(str(cannot)) from cannot
    try:
        launch = Launch(
            argv=tuple(asked.command),
            stdin=None,
            stdout=f"{folder}/stdout",
            stderr=f"{folder}/stderr",
            cwd=root,
            env={"HOME": confined.tmp, **named(environ, (*ALWAYS, *provider.environment)), MARKER: folder},
        )
        confinement = confined.confinement(network=network, reads=reads)
        seen = SandboxTrial(
            level=Sandbox.available(guarding.sandbox).level,
            writes=(*confinement.writable, confined.tmp),
            reads=_reads(launch, confinement),
            hidden=confinement.hidden,
            network=network,
            exit_code=0,
            stdout="",
            stderr="",
        )
        return _ended(confined, launch, seen, reads)
    finally:
        confined.close()


def _ended(confined: Confined, launch: Launch, seen: SandboxTrial, reads: tuple[str, ...]) -> SandboxTrial:
    process = confined.start(launch, network=seen.network, reads=reads)
    if isinstance(process, NotStarted):
        return replace(seen, exit_code=process.code, stderr=f"{process.message}\n")
    try:
        ended = process.wait(None)
    finally:
        process.end(f"{MARKER}={launch.env[MARKER]}", grace_s=0)
    assert ended is not None, "it was waited for without a limit"
    assert isinstance(launch.stdout, str)
    said, errors = (fs.read_bytes(path, _SHOWN).decode("utf-8", "replace") for path in (launch.stdout, launch.stderr))
    return replace(seen, exit_code=ended.code, stdout=said, stderr=errors)


def _reads(launch: Launch, confinement: Confinement) -> tuple[str, ...]:
    """Return what it may read, without what is inside another one of these."""
    file = which(launch.argv[0], launch.env.get("PATH"), launch.cwd)
    if file is None:
        return confinement.reads or ()
    found: list[str] = []
    for path in sorted(closed_list(replace(launch, executable=os.path.join(launch.cwd, file)), confinement)):
        if not any(within(path, folder) for folder in (*SYSTEM, *found)):
            found.append(path)
    return tuple(found)


def _named(section: str, name: str | None, known: Mapping[str, _Described], otherwise: _Described) -> _Described:
    if name is None:
        return otherwise
    if name not in known:
        hint = did_you_mean(name, known, f"known: {', '.join(known) or 'none'}")
        raise InputError(f"{name} is not one of `{section}` in the config; {hint}")
    return known[name]
