"""Making a root: the folders, and the files that a person edits. What is there already is kept.

The folders that the store needs are listed in the store.
"""

from __future__ import annotations

import json
import os

from farro.errors import InputError
from farro.settings import Settings
from farro.stores.files.ground import make_root
from farro.system import fs

POLICY = """---
version: 1.0.0
role: {role}
---
# {role}

{text}
"""

_TEXTS = {
    "Manager": "Plans, routes and finishes work. Decides what becomes of stale jobs.",
    "SeniorEngineer": "Makes the change that the prompt asks for, with tests, inside the allowed paths.",
    "JuniorEngineer": "Makes small, well described changes, with tests, inside the allowed paths.",
    "Architect": "Analyses a task and splits it into prompts for the other roles.",
    "CodeReviewer": "Judges a change against its rubric: approve, or changes requested with findings.",
    "DocWriter": "Writes and updates the documents that a change needs.",
    "Runner": "Runs command plans: whole plans on one worker, step after step.",
}


def init(root: str, settings: Settings) -> list[str]:
    """Make `root` a farro root; answers what was missing, relative to it. Safe to repeat."""
    _make_folder(root)
    roles = settings.all_roles()
    made = make_root(root, roles)
    for name in ("tasks", "schemas"):
        if not os.path.isdir(f"{root}/{name}"):
            fs.mkdir(f"{root}/{name}")
            made.append(name)
    files = {"AGENTS.md": POLICY.format(role="All roles", text="Rules that hold for every role of this repository.")}
    if not os.path.exists(f"{root}/agents-config.yaml"):
        files["agents-config.json"] = _config()
    for role in roles:
        text = _TEXTS.get(role) or settings.roles[role].description or "Describe what this role does."
        files[f"agents/{role}/AGENTS-ROLE.md"] = POLICY.format(role=role, text=text)
    for name, content in files.items():
        if not os.path.lexists(f"{root}/{name}"):
            fs.write_atomic(f"{root}/{name}", content.encode(), sync=True)
            made.append(name)
    return made


def _make_folder(path: str) -> None:
    """The root's folder and what is missing above it."""
    missing: list[str] = []
    while not os.path.isdir(path):
        if os.path.lexists(path):
            raise InputError(f"{path} is not a folder; a root is one, and so is all above it")
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        fs.mkdir(folder)


def _config() -> str:
    """The config of a new root: what SPEC-1 requires, at its defaults."""
    defaults = Settings()
    data = {
        "version": defaults.version,
        "durability": defaults.durability,
        "providers": {},
        "security": {
            "max_job_bytes": defaults.security.max_job_bytes,
            "payload_allowlist": list(defaults.security.payload_allowlist),
        },
        "tools": {},
    }
    return json.dumps(data, indent=2) + "\n"
