"""Make a root: its folders, and the files that a person edits. Existing ones are kept."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from farro import documents
from farro.config.settings import ROLES, Settings
from farro.doctor.schemas import schemas
from farro.errors import InputError
from farro.host import fs
from farro.jobs import ids, places
from farro.jobs.states import Status

CONFIG = "agents-config.json"
YAML_CONFIG = "agents-config.yaml"
SCHEMA_LINE = "schemas/agents-config.schema.json"

_DECLARED = """---
version: 1.0.0
role: {role}
---
# {role}

{text}

## Responsibilities
- Say here what this role does, and where its work ends.

## What you answer
Markdown: what was done, what was not, and what the next role needs to know.

## How it is judged
- Say here what good work of this role looks like.
"""

_TASKS = """# Tasks

A file here describes a piece of work that goes through several roles. `farro enqueue --task ID` names one for a prompt;
the manager follows its workflow. `<id>.json` has the form of `schemas/task.schema.json`; `<id>.md` has the same as YAML
between two lines `---` at its head, or is words only. A step whose role is `human` waits for a person: `farro inbox`.
Only `title` and `workflow` are required, and of a step only its `role`.

```json
{
  "$schema": "../schemas/task.schema.json",
  "id": "task-0001",
  "title": "Greet people by name",
  "allowed_paths": ["src/", "tests/"],
  "success": "greet --name Ann says: Hello, Ann",
  "workflow": [
    {"role": "SeniorEngineer", "rubric": "Add the option --name to greet, with a test."},
    {"role": "CodeReviewer", "rubric": "Judge the change: does it greet, also without a name?"},
    {"role": "DocWriter", "rubric": "Describe the option.", "allowed_paths": ["docs/"]}
  ]
}
```
"""

_IGNORED = """# farro: the state of the queue and of swarms. Its policies, config, schemas and tasks are yours to keep.
/agents/*/incoming/
/agents/*/in-progress/
/agents/*/completed/
/agents/*/waiting/
/agents/*/.heartbeat
/agents/*/.lease
/agents/*/.paused
/bus/
/jobs/
/logs/
/swarms/
"""
# Earlier versions. Each has its own first line, which distinguishes lines that were never there from removed ones.
_IGNORED_BEFORE = (
    """# farro: the state of the queue. Its policies, config, schemas and tasks are yours to keep.
/agents/*/incoming/
/agents/*/in-progress/
/agents/*/completed/
/agents/*/waiting/
/agents/*/.heartbeat
/agents/*/.lease
/jobs/
/logs/
""",
)


def wanted_folders(roles: Iterable[str]) -> list[str]:
    """Return every folder that the store needs, relative to the root, parents first."""
    wanted = ["agents", "jobs", "logs"]
    wanted += [
        f"jobs/{name}"
        for name in (".staging", ".ids", ".names", ".held", ".snapshots", ".trash", "outbox", "stale", "quarantine")
    ]
    for role in roles:
        ids.check_role(role)
        wanted += [f"agents/{role}", places.incoming(role), places.in_progress(role), f"agents/{role}/completed"]
        wanted += [places.completed(role, status) for status in (Status.SUCCEEDED, Status.FAILED, Status.KILLED)]
    return list(dict.fromkeys([*wanted, "agents/Manager", places.WAITING]))


def make_root(root: str, roles: Iterable[str]) -> list[str]:
    """Make every folder that the store needs; return those that were missing. The store itself never makes a parent
    folder (R7)."""
    wanted = wanted_folders(roles)
    missing = [name for name in wanted if not os.path.isdir(f"{root}/{name}")]
    for name in missing:
        fs.mkdir(f"{root}/{name}")
    fs.sync_all(dict.fromkeys([root, *(os.path.dirname(f"{root}/{name}") for name in wanted)]))
    return missing


def init(root: str, settings: Settings) -> list[str]:
    """Make `root` a farro root; return what was missing, relative to it. Safe to repeat."""
    from farro.doctor import policy_lock  # here: `farro up` imports this module, too

    _make_folder(root)
    roles = settings.all_roles()
    made = make_root(root, roles)
    for name in ("tasks", "schemas"):
        if not os.path.isdir(f"{root}/{name}"):
            fs.mkdir(f"{root}/{name}")
            made.append(name)
            if name == "tasks":  # only with the folder: a person who deleted this file does not want it back
                fs.write_atomic(f"{root}/tasks/README.md", _TASKS.encode(), sync=True)
                made.append("tasks/README.md")
    files = {"AGENTS.md": _policy("every-role")}
    if not os.path.exists(f"{root}/{YAML_CONFIG}"):
        files[CONFIG] = as_text(first_config())
    for role in roles:
        text = settings.roles[role].description if role in settings.roles else ""
        files[f"agents/{role}/AGENTS-ROLE.md"] = (
            _policy(role)
            if role in ROLES
            else _DECLARED.format(role=role, text=text or "Describe what this role does.")
        )
    files.update((f"schemas/{name}", text) for name, text in schemas().items())
    for name, content in files.items():
        if not os.path.lexists(f"{root}/{name}"):
            fs.write_atomic(f"{root}/{name}", content.encode(), sync=True)
            made.append(name)
    if not os.path.lexists(f"{root}/{policy_lock.FILE}"):
        policy_lock.write(root, policy_lock.lock(root, settings))
        made.append(policy_lock.FILE)
    return made + _ignore_state(root)


def set_store(root: str, address: str) -> str | None:
    """Set the store in the config of a root. A YAML config is not changed: the line to add is returned."""
    path = f"{root}/{CONFIG}"
    if not os.path.lexists(path):
        return f"store: {json.dumps(address)}"
    config = documents.parse(fs.read_regular(path, documents.DEFAULT.size), path).data or {}
    if not isinstance(config, dict):
        raise InputError(f"{path}: must be an object")
    fs.write_atomic(os.path.realpath(path), as_text({**config, "store": address}).encode(), sync=True)
    return None


def first_config() -> dict[str, object]:
    """Return the config of a new root: what SPEC-1 requires, at its defaults."""
    defaults = Settings()
    return {
        "$schema": SCHEMA_LINE,
        "version": defaults.version,
        "durability": defaults.durability,
        "providers": {},
        "security": {
            "max_job_bytes": defaults.security.max_job_bytes,
            "payload_allowlist": list(defaults.security.payload_allowlist),
        },
        "tools": {},
    }


def as_text(config: object) -> str:
    return _spelled(config, "") + "\n"


def _spelled(value: object, indent: str) -> str:
    """Format JSON as a person writes it: lists of words on one line."""
    more = indent + "  "
    if isinstance(value, dict) and value:
        members = (f"{more}{json.dumps(name)}: {_spelled(member, more)}" for name, member in value.items())
        return "{\n" + ",\n".join(members) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(f"{more}{_spelled(item, more)}" for item in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


def _policy(name: str) -> str:
    return fs.read_bytes(f"{os.path.dirname(__file__)}/policies/{name}.md").decode()


def renew_ignored(root: str) -> list[str]:
    """Add the missing lines to the .gitignore of a root that an older farro made: else `git add --all` adds logs and
    plans of swarms, which may contain passwords. Only if farro's lines are unchanged: a person who removed some meant
    it. [test_init_adds_missing_lines_to_an_older_gitignore_unless_it_was_edited]"""
    there = _ignored(root) or ""
    whole = there if there.endswith("\n") else f"{there}\n"
    for before in _IGNORED_BEFORE:
        if before in whole:
            _write_ignored(root, whole.replace(before, _IGNORED, 1))
            return [".gitignore"]
    return []


def _ignore_state(root: str) -> list[str]:
    """Add farro's lines to .gitignore once; other lines are kept."""
    there = _ignored(root)
    if there is None:
        return []
    if any(text.partition("\n")[0] in there for text in (_IGNORED, *_IGNORED_BEFORE)):
        return renew_ignored(root)
    gap = "" if not there else "\n" if there.endswith("\n") else "\n\n"
    _write_ignored(root, f"{there}{gap}{_IGNORED}")
    return [".gitignore"]


def _ignored(root: str) -> str | None:
    """Return the content of .gitignore; None for a link or an unreadable file, which a person arranged."""
    path = f"{root}/.gitignore"
    try:
        return fs.read_bytes(path).decode("utf-8", "surrogateescape") if os.path.lexists(path) else ""
    except OSError:
        return None


def _write_ignored(root: str, text: str) -> None:
    fs.write_atomic(f"{root}/.gitignore", text.encode("utf-8", "surrogateescape"), sync=True)


def _make_folder(path: str) -> None:
    """Make the root's folder and its missing parents."""
    missing: list[str] = []
    while not os.path.isdir(path):
        if os.path.lexists(path):
            raise InputError(f"{path} is not a folder; a root is one, and so is all above it")
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        fs.mkdir(folder)
