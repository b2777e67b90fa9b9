"""Presets of the cli provider for coding agents that people have installed: `farro init --agents claude`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from farro import documents
from farro.doctor.root import CONFIG, YAML_CONFIG, as_text, first_config
from farro.errors import InputError
from farro.host import fs
from farro.lazy_dataclass import dataclass
from farro.roles.names import AGENTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """The settings of one coding agent."""

    provider: dict[str, Any]  # as in the config
    needs: str  # for a person: what is needed besides the program


def _preset(program: str, key: str, call_usd: float, needs: str) -> Preset:
    provider = {
        "kind": "cli",
        "program": program,
        "api_key": f"${{{key}}}",
        "call_usd": call_usd,
        "workspace": "root",
    }
    return Preset(provider=provider, needs=f"{needs}, set where workers are started")


_CLAUDE_LOGIN = "CLAUDE_CODE_OAUTH_TOKEN"
PRESETS = {
    "claude": _preset("claude", "ANTHROPIC_API_KEY", 5, "ANTHROPIC_API_KEY"),
    "codex": _preset("codex", "OPENAI_API_KEY", 2, "OPENAI_API_KEY"),
    "gemini": _preset("gemini", "GEMINI_API_KEY", 2, "GEMINI_API_KEY"),
}


def preset(name: str, environ: Mapping[str, str]) -> Preset:
    """Return a preset: claude's with a login, if the environment has one and no key."""
    usual = PRESETS[name]
    if name != "claude" or environ.get("ANTHROPIC_API_KEY") or not environ.get(_CLAUDE_LOGIN):
        return usual
    provider = {key: value for key, value in usual.provider.items() if key != "api_key"}
    return Preset(
        provider={**provider, "login": f"${{{_CLAUDE_LOGIN}}}"},
        needs=f"{_CLAUDE_LOGIN}, which `claude setup-token` makes, set where workers are started",
    )


_READERS = ("CodeReviewer", "Architect")  # these roles judge and plan; nothing they run may write


@dataclass(frozen=True, kw_only=True, slots=True)
class AddedPresets:
    """What was added to the config."""

    made: tuple[str, ...]  # "providers.claude", "roles.Architect"
    kept: tuple[str, ...]  # already configured otherwise
    by_hand: str | None = None  # the lines to add by hand, if the config is YAML


def add(root: str, names: tuple[str, ...], environ: Mapping[str, str]) -> AddedPresets:
    """Add the presets to the root's config, and make them the providers of every agent role that names none.

    The first preset answers for all roles but the reviewer, for which the last one does. Present settings stay.
    """
    wanted = list(dict.fromkeys(names))
    path = f"{root}/{CONFIG}"
    if in_yaml := not os.path.lexists(path):
        path = f"{root}/{YAML_CONFIG}"
    config = documents.parse(fs.read_regular(path, documents.DEFAULT.size), path).data or {}
    if not isinstance(config, dict):
        raise InputError(f"{path}: must be an object")
    merged, made, kept = _merged(config, {name: preset(name, environ).provider for name in wanted})
    if in_yaml:
        return AddedPresets(made=(), kept=tuple(kept), by_hand=_yaml(_added(config, merged)) if made else None)
    if made:
        fs.write_atomic(os.path.realpath(path), as_text(merged).encode(), sync=True)
    return AddedPresets(made=tuple(made), kept=tuple(kept))


def _added(config: dict[str, Any], merged: dict[str, Any]) -> dict[str, Any]:
    """Return what `merged` has and `config` lacks, recursively."""
    more: dict[str, Any] = {}
    for name, value in merged.items():
        there = config.get(name)
        if name not in config:
            more[name] = value
        elif isinstance(there, dict) and isinstance(value, dict) and (inside := _added(there, value)):
            more[name] = inside
    return more


def _yaml(value: dict[str, Any], indent: str = "") -> str:
    """Write a line for each name. Lists and texts are written as JSON, which is YAML, too."""
    lines = []
    for name, member in value.items():
        if isinstance(member, dict) and member:
            lines.append(f"{indent}{name}:\n{_yaml(member, indent + '  ')}")
        else:
            lines.append(f"{indent}{name}: {json.dumps(member, ensure_ascii=False)}\n")
    return "".join(lines)


def _merged(
    config: dict[str, Any], providers: Mapping[str, dict[str, Any]]
) -> tuple[dict[str, Any], list[str], list[str]]:
    merged = json.loads(json.dumps(config))  # a deep copy
    made: list[str] = []
    kept: list[str] = []
    names = list(providers)
    for name, provider in providers.items():
        there = merged.setdefault("providers", {}).get(name)
        if there is not None:
            kept += [f"providers.{name}"] if there != provider else []
        else:
            merged["providers"][name] = provider
            made.append(f"providers.{name}")
    roles = merged.setdefault("roles", {})
    for role in AGENTS[1:]:
        settings = roles.setdefault(role, {})
        if settings.get("provider") is not None:
            kept += [f"roles.{role}.provider"] if settings["provider"] not in names else []
            continue
        settings["provider"] = names[-1] if role == "CodeReviewer" else names[0]
        made.append(f"roles.{role}.provider")
        if role in _READERS:
            settings.setdefault("read_only", True)
    first = first_config()
    for name in ("version", "security"):
        if name not in merged:
            merged[name] = first[name]
            made.append(name)
    for name, value in dict(first["security"]).items():  # type: ignore[call-overload]
        if name not in merged["security"]:
            merged["security"][name] = value
            made.append(f"security.{name}")
    return merged, made, kept
