"""Check what providers need: libraries, programs and variables. No provider is called."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping

from farro.agents.providers.port import ProviderTrouble, Reach, Request
from farro.agents.providers.registry import Place
from farro.config.settings import ProviderSettings, Settings
from farro.doctor.checks import Check, Finding, edit, failed, ok, quoted, warning
from farro.execution.runner import Guarding
from farro.host.process_tree import MARKER
from farro.host.programs import which
from farro.roles.provider_rules import GENERIC, OVER_HTTP

_VERSION_S = 60.0
_LIBRARIES = {"pydantic_ai": "pydantic-ai-slim", "genai_prices": "genai-prices"}
_OF_GATEWAY = ("aiohttp", "genai_prices")
_OF_KIND = {"openai": "openai", "google": "google.genai", "openrouter": "openai", "acp": "acp"}
_INSTALL = {
    "claude": "npm install --global @anthropic-ai/claude-code",
    "codex": "npm install --global @openai/codex",
    "gemini": "npm install --global @google/gemini-cli",
}


def checks(settings: Settings, environ: Mapping[str, str], *, root: str, config: str) -> list[Check]:
    """Return the checks for `farro doctor`."""
    return [
        Check(id="libraries", title="libraries of providers", look=lambda: _libraries(settings), quick=True),
        Check(
            id="programs",
            title="programs of providers and tools",
            look=lambda: _programs(settings, environ, root, config),
            quick=True,
        ),
        Check(id="secrets", title="variables of secrets", look=lambda: _secrets(settings, environ), quick=True),
        Check(id="agents", title="coding agents", look=lambda: _agents(settings, environ, root, config)),
    ]


def _libraries(settings: Settings) -> Finding:
    kinds = {provider.kind or name for name, provider in settings.providers.items()} & set(_OF_KIND)
    wanted = [*(_LIBRARIES if kinds & {*OVER_HTTP} else ()), *(_OF_KIND[kind] for kind in sorted(kinds))]
    users = sorted(kinds)
    if any(provider.uses_gateway for provider in settings.providers.values()):
        wanted += _OF_GATEWAY
        users.append("the model gateway")
    if not wanted:
        return ok("none needed")
    missing = [name for name in dict.fromkeys(wanted) if not _is_there(name)]
    if missing:
        return failed(
            f"{', '.join(missing)} cannot be imported",
            f"what needs the extra `agents`: {', '.join(users)}",
            f"{quoted(sys.executable)} -m pip install 'farro[agents]'",
        )
    return ok(f"there for {', '.join(users)}")


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # its parent package is missing, or imports of it are blocked
        return False


def _programs(settings: Settings, environ: Mapping[str, str], root: str, config: str) -> Finding:
    wanted = {f"providers.{name}": first for name, one in settings.providers.items() if (first := _first_word(one))}
    wanted |= {f"tools.{name}": tool.command or name for name, tool in settings.tools.items() if tool.python is None}
    path = environ.get("PATH")
    missing = {where: program for where, program in wanted.items() if which(program, path, root) is None}
    if not missing:
        return ok(f"{len(wanted)} found" if wanted else "none needed")
    known = [_INSTALL[program] for program in dict.fromkeys(missing.values()) if program in _INSTALL]
    others = any(program not in _INSTALL for program in missing.values())
    return failed(
        f"{', '.join(dict.fromkeys(missing.values()))} not found on PATH",
        "they are searched on the PATH with which the daemons start; install them, or name the whole path in the "
        "config",
        *known,
        *([edit(config)] if others else []),
        details=tuple(f"{where}: {program}" for where, program in missing.items()),
    )


def _first_word(provider: ProviderSettings) -> str | None:
    """Return the program that a provider starts; None if it starts none."""
    if provider.command:
        return provider.command[0]
    if provider.program in (None, GENERIC):
        return None
    from farro.agents.programs.registry import find_program  # here: most roots have no agents

    return find_program(provider.program).command[0]


def _agents(settings: Settings, environ: Mapping[str, str], root: str, config: str) -> Finding:
    """Start each coding agent in the sandbox, as its jobs do."""
    from farro.agents.provider_test import scratch_folder  # these: slow to import, and most roots have no agents
    from farro.agents.providers import program

    described = {name: one for name, one in settings.providers.items() if one.program not in (None, GENERIC)}
    started, troubles = [], []
    for name, provider in described.items():
        made = program.make(name, provider, Place(root=root, environ=environ))
        if which(made.words[0], environ.get("PATH"), root) is None:
            continue  # `programs` reports it
        try:
            with scratch_folder(root) as folder:
                started.append(f"{name}: {made.version(_version_request(settings, root, folder))}")
        except ProviderTrouble as trouble:
            troubles.append(str(trouble))
    if troubles:
        return failed(
            troubles[0],
            "it does not start in the sandbox; if it lacks a file there, name that in `read_paths` of the provider",
            edit(config),
            details=tuple(troubles[1:]),
        )
    return ok(", ".join(started) if started else "none")


def _version_request(settings: Settings, root: str, folder: str) -> Request:
    return Request(
        key="doctor/1/version/1",
        system="",
        messages=(),
        model=None,
        max_output_tokens=1,
        timeout_s=_VERSION_S,
        folder=folder,
        env={MARKER: folder},
        reach=Reach(root=root, guarding=Guarding.of(settings.security)),
    )


def _secrets(settings: Settings, environ: Mapping[str, str]) -> Finding:
    """Check that the variables are set. Their values are not read."""
    named = settings.secret_variables()
    if not named:
        return ok("none named")
    required = {
        secret.name
        for provider in settings.providers.values()
        if (secret := provider.api_key or provider.login) is not None
    }
    unset = [name for name in named if not environ.get(name, "").strip()]
    needed = [name for name in unset if name in required]
    commands = [f"read -rs {name} && export {name}" for name in needed or unset]
    if needed:
        return failed(
            f"{', '.join(needed)} not set",
            "calls need it; set it where daemons are started (here it is set for this shell)",
            *commands,
        )
    if len(unset) == len(named):
        return warning(
            f"none of {', '.join(unset)} is set",
            "a program that is not logged in needs one of them; set it where daemons are started",
            *commands[:1],
        )
    return ok(f"{len(named) - len(unset)} of {len(named)} set")
