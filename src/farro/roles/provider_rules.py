"""Check what no single field of `providers` and `roles` in a config can: kinds, fields that fit them, names that exist.

Works on the raw data, so that these faults are reported together with all others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

from farro.documents.model import Path, did_you_mean
from farro.documents.shapes import Fault
from farro.roles.names import RUNNER

OVER_HTTP = ("openai", "google", "openrouter")
KINDS = (*OVER_HTTP, "cli", "acp", "scripted")
GENERIC = "generic"  # any coding agent: the config names its command
PROGRAMS = ("claude", "codex", "gemini", "opencode", "goose", "aider", "cursor-agent", "amp", GENERIC)  # coding agents
HTTP_TRIES, CLI_TRIES = 4, 2  # of one call (SPEC-1 §9)
ENTRY_POINTS = "farro.providers"  # the entry point group with which an installed package adds a kind
PROGRAM_ENTRY_POINTS = "farro.programs"  # the same, for a program

_OF_ALL = frozenset({"kind", "model", "account", "timeout_s", "max_output_tokens", "prices", "call_usd", "budget_usd"})
_OF_HTTP = frozenset({"api_key", "base_url", "stream"})
_OF_PROGRAM = frozenset({"api_key", "base_url", "login", "idle_timeout_s"})
_FIELDS = {
    **dict.fromkeys(OVER_HTTP, _OF_HTTP),
    "cli": frozenset(
        {"program", "command", "environment", "workspace", "read_paths", "network"}
        | {"fatal_exit_codes", "answer_field", "cost_field"}
        | _OF_PROGRAM
    ),
    "acp": frozenset(
        {"command", "environment", "workspace", "read_paths", "network", "idle_timeout_s"}
        | {"permissions", "permission_timeout_s"}
    ),
    "scripted": frozenset({"file"}),
}
_NEEDED = {"scripted": ("file", '"answers.json"'), "acp": ("command", '["gemini", "--acp"]')}

# Compiled on use: every command imports this module.
_SENSITIVE = r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH"
_VARIABLE = r"(?<!\$)\$\{([A-Za-z_][A-Za-z0-9_]*)\}"


def names_a_secret(variable: str) -> bool:
    """Tell whether a variable of that name most likely holds a secret."""
    return re.search(_SENSITIVE, variable, re.IGNORECASE) is not None


Installed = Callable[[str], Collection[str]]  # the names that installed packages offer in an entry point group


def faults(data: Any, installed: Installed) -> Iterator[Fault]:
    """Yield what is wrong between the fields of a config as it was written.

    `installed` is called only for a kind or a program that is not built in.
    """
    providers = _members(data, "providers")
    for name, provider in providers.items():
        if isinstance(provider, dict):
            yield from _provider_faults(("providers", name), name, provider, installed)
    for role, settings in _members(data, "roles").items():
        yield from _role_faults(("roles", role), role, settings, providers)


def _provider_faults(at: tuple[str, ...], name: str, provider: dict[str, Any], installed: Installed) -> Iterator[Fault]:
    kind = provider.get("kind") or name
    if not isinstance(kind, str):
        return  # reported by the shape
    if kind not in KINDS:
        offered = sorted(installed(ENTRY_POINTS))
        if kind not in offered:
            known = ", ".join((*KINDS, *offered))
            path = (*at, "kind") if provider.get("kind") else at
            what = (
                "is not a kind of provider" if provider.get("kind") else "is not a kind of provider, and sets no kind"
            )
            yield Fault(path, f"{what}; known: {known}. Others come with packages that offer {ENTRY_POINTS}")
        return
    for member in provider:
        if member == "options":
            yield Fault((*at, member), f"belongs to providers of installed packages; this one is {kind}", True)
        elif member not in _OF_ALL | _FIELDS[kind] and (owners := [k for k in KINDS if member in _FIELDS[k]]):
            yield Fault((*at, member), f"belongs to the kind {', '.join(owners)}; this provider is {kind}", True)
    needed, example = _NEEDED.get(kind, ("", ""))
    if needed and provider.get(needed) is None:
        yield Fault((*at, needed), f"is required of a provider of kind {kind}, such as {example}")
    if kind in OVER_HTTP and provider.get("api_key") is None and provider.get("base_url") is None:
        example = f"${{{kind.upper()}_API_KEY}}"
        yield Fault((*at, "api_key"), f'is required of a provider of kind {kind}, such as "{example}"')
    if kind == "cli":
        yield from _cli_faults(at, provider, installed)
    yield from _url_faults(at, provider.get("base_url"))
    command = provider.get("command")
    for index, word in enumerate(command if isinstance(command, list) else ()):
        if isinstance(word, str) and any(map(names_a_secret, re.findall(_VARIABLE, word))):
            message = "a secret on a command line is seen by every user of this machine; name it under `environment`"
            yield Fault((*at, "command", index), message)


def _cli_faults(at: tuple[str, ...], provider: dict[str, Any], installed: Installed) -> Iterator[Fault]:
    program = provider.get("program")
    if program in (None, GENERIC) and provider.get("command") is None:
        others = "" if program else f", or set program to one of: {', '.join(PROGRAMS)}"
        yield Fault((*at, "command"), f'is required, such as ["my-agent"]{others}')
    if program is None:
        for member in sorted(_OF_PROGRAM & provider.keys()):
            yield Fault((*at, member), "belongs to a provider with `program`, which this one does not set")
    elif isinstance(program, str) and (unknown := _unknown_program(program, installed)) is not None:
        yield Fault((*at, "program"), unknown)
    elif provider.get("answer_field") is not None:
        yield Fault((*at, "answer_field"), f"is for other commands: farro reads the output of {program} itself")
    if provider.get("api_key") is not None and provider.get("login") is not None:
        yield Fault((*at, "login"), "is instead of api_key: set one of the two")
    if provider.get("cost_field") is not None and provider.get("answer_field") is None:
        yield Fault((*at, "answer_field"), "is required where cost_field is: both are fields of the same JSON output")


def _unknown_program(program: str, installed: Installed) -> str | None:
    if program in PROGRAMS or program in (offered := sorted(installed(PROGRAM_ENTRY_POINTS))):
        return None
    known = (*PROGRAMS, *offered)
    message = f"known: {', '.join(known)}; set program to {GENERIC}, and command, for another one"
    return f"is not a known program; {did_you_mean(program, known, message)}"


def _url_faults(at: tuple[str, ...], url: Any) -> Iterator[Fault]:
    if not isinstance(url, str) or "${" in url:
        return
    if not url.startswith(("https://", "http://")):
        yield Fault((*at, "base_url"), "must begin with https:// or http://")
    elif "@" in url.split("/", 3)[2]:
        yield Fault((*at, "base_url"), "has a user or a password in it; secrets go into api_key, as ${NAME}")


def _role_faults(at: tuple[str, ...], role: str, settings: Any, providers: Collection[str]) -> Iterator[Fault]:
    named: list[tuple[Path, Any]] = [((*at, "provider"), _member(settings, "provider"))]
    fallbacks = _member(settings, "fallbacks")
    for index, fallback in enumerate(fallbacks if isinstance(fallbacks, list) else ()):
        named.append(((*at, "fallbacks", index, "provider"), _member(fallback, "provider")))
    for path, name in named:
        if not isinstance(name, str) or "${" in name:
            continue
        if role == RUNNER:
            yield Fault(path, f"{RUNNER} runs command plans and asks no provider; take it out")
        elif name not in providers:
            there = f"known: {', '.join(providers)}" if providers else "there is none"
            hint = did_you_mean(name, providers, f"{there}; name it under `providers`")
            yield Fault(path, f"is not one of `providers`; {hint}")
    if _member(settings, "fallbacks") and _member(settings, "provider") is None:
        yield Fault((*at, "provider"), "is required where fallbacks are: they are asked when it does not answer")


def _member(data: Any, name: str) -> Any:
    return data.get(name) if isinstance(data, dict) else None


def _members(data: Any, name: str) -> dict[str, Any]:
    found = _member(data, name)
    return found if isinstance(found, dict) else {}
