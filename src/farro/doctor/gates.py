"""Before a daemon starts, check what its work depends on (SPEC-1 §3.2): valid schemas, one device, permissions, the log
folder. The config was read before. Only failures stop a daemon; doctor reports the rest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence

from farro.doctor import disk_checks
from farro.doctor.checks import Check, Finding, failed, ok, own, quoted
from farro.host import fs

_SCHEMAS = ("prompt.schema.json", "agents-config.schema.json")  # those that SPEC-1 names
_LIMIT = 4 << 20


def gates(root: str, *, folders: Sequence[str], apart: Callable[[], Sequence[str]], config: str) -> list[Check]:
    """Return the checks. `folders` and `apart` are those of disk_checks."""
    device = disk_checks.same_device(root, config, apart, allow_cross_volume=False)
    return [
        Check(id="schemas", title="schemas", look=lambda: _schemas(root)),
        device,
        disk_checks.permissions(root, folders),
        Check(id="log-folder", title="log folder", look=lambda: _log_folder(root)),
    ]


def _schemas(root: str) -> Finding:
    """Check that the schema files can be used. That they are those of this version is doctor's question: else no daemon
    would start after an upgrade."""
    folder = f"{root}/schemas"
    try:
        names = sorted({*_SCHEMAS, *(name for name in fs.listdir(folder) if name.endswith(".schema.json"))})
    except FileNotFoundError:
        return ok("none: an older farro made this root")
    for name in names:
        path = f"{folder}/{name}"
        try:
            valid = isinstance(json.loads(fs.read_regular(path, _LIMIT)), dict)
        except FileNotFoundError:
            return failed(f"{path} is missing", "editors and CI check by it", "farro init")
        except (OSError, ValueError, RecursionError):
            valid = False
        if not valid:
            return failed(f"{path} is no schema", "farro init writes it again", f"rm {quoted(path)}", "farro init")
    return ok(f"{len(names)} files")


def _log_folder(root: str) -> Finding:
    path = f"{root}/logs"
    if not os.path.isdir(path):
        moved = [f"mv {quoted(path)} {quoted(f'{path}.old')}"] if os.path.lexists(path) else []
        return failed(f"{path} is no folder", "transitions could not be audited", *moved, "farro init")
    if not os.access(path, os.W_OK | os.X_OK):
        return failed(f"{path} may not be written by this user", "transitions could not be audited", own(path))
    return ok("writable")
