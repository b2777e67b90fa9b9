"""Install farro as systemd user services: write the units, and remove them again.

Only files with our first line are ever overwritten or removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Sequence

from farro.errors import InputError
from farro.host import fs, systemd, trees
from farro.jobs import ids
from farro.lazy_dataclass import dataclass, field

MARK = "# Made by `farro service install`; `farro service uninstall` removes it."
_ROLES = "# Roles: "

_UNIT = """{mark}
{more}[Unit]
Description={description}

[Service]
Type=exec
WorkingDirectory={folder}
Environment={path}
ExecStart={command}
Restart=on-failure
RestartSec=2
KillMode=mixed
TimeoutStopSec=15
{service}
[Install]
WantedBy=default.target
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """The units of one root: file name → text, and the names to start (of a template, with its instances)."""

    files: dict[str, str]
    started: tuple[str, ...]


@dataclass(kw_only=True, slots=True)
class ServiceChanges:
    """The result of an install or removal, and the commands that are left to the user."""

    written: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    todo: list[str] = field(default_factory=list)  # commands to type
    why: str | None = None  # why they are left to you


def units(root: str, *, roles: Sequence[str], workers: int, python: str, path: str, store: str | None = None) -> Units:
    """Return the units of a root, with absolute paths of this interpreter."""
    if any(not char.isprintable() for char in root + python):
        raise InputError("a path with control characters in it cannot stand in a systemd unit; move the root")
    name = f"farro-{slug(root)}"
    # -P: a file called farro in the working directory must not shadow the program.
    where = [] if store is None else ["--store", _quoted(store)]
    start = [_quoted(python, program=True), "-P", "-m", "farro"]

    def unit(what: str, *arguments: str, more: str = "", service: str = "") -> str:
        return _UNIT.format(
            mark=MARK,
            more=more,
            description=f"farro {what} in {_percent(root)}",
            folder=_percent(root),
            path=_quoted(f"PATH={path}", expands=False),
            command=" ".join([*start, *arguments, "--root", _quoted(root), *where]),
            service=service,
        )

    worker = unit(
        "worker of %i",
        *("worker", "--role", "%i", "--workers", str(workers)),
        more=f"{_ROLES}{' '.join(roles)}\n",
        service="Delegate=yes\n",  # a worker makes cgroups for the processes that it starts
    )
    files = {
        f"{name}-worker@.service": worker,
        f"{name}-watchdog.service": unit("watchdog", "watchdog"),
        f"{name}-manager.service": unit("manager", "manager"),
    }
    started = [f"{name}-worker@{role}.service" for role in roles]
    return Units(files=files, started=(*started, f"{name}-watchdog.service", f"{name}-manager.service"))


def slug(root: str) -> str:
    """Return a readable name that is unique for the root."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", os.path.basename(root)).strip("-")[:24] or "root"
    return f"{plain}-{hashlib.sha256(os.fsencode(root)).hexdigest()[:8]}"


def _percent(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(text: str, *, expands: bool = True, program: bool = False) -> str:
    """Quote a word for systemd. `$` is doubled where variables are expanded: in arguments, not in the program path."""
    text = _percent(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text.replace("$", "$$") if expands and not program else text}"'


def install(folder: str, wanted: Units) -> ServiceChanges:
    """Write new and changed units, and start them. Safe to repeat."""
    done = ServiceChanges()
    for name in wanted.files:
        if not _is_ours(f"{folder}/{name}"):
            raise InputError(f"{folder}/{name} is there, and farro did not make it; move it away. Nothing was written")
    before = _started(folder, wanted.files)
    trees.make_folders(folder)
    for name, text in wanted.files.items():
        if _read(f"{folder}/{name}") != text:
            fs.write_atomic(f"{folder}/{name}", text.encode(), sync=True)
            done.written.append(name)
    gone = [name for name in before if name not in wanted.started]
    orders = [["daemon-reload"]]
    orders += [["disable", "--now", *gone]] if gone else []
    orders.append(["enable", "--now", *wanted.started])
    orders += [["try-restart", *wanted.started]] if done.written and before else []  # they run what was written before
    _order(done, orders)
    return done


def uninstall(folder: str, root: str) -> ServiceChanges:
    """Stop and remove the units that `install` wrote for this root, and no others."""
    done = ServiceChanges()
    prefix = f"farro-{slug(root)}-"
    names = [f"{prefix}{part}.service" for part in ("worker@", "watchdog", "manager")]
    ours = [name for name in names if fs.exists(f"{folder}/{name}") and _is_ours(f"{folder}/{name}")]
    if not ours:
        return done
    started = _started(folder, ours)
    _order(done, [["stop", *started]] if started else [])
    for name in started:  # the link of `enable`; removed here, so that it also goes if systemd is unreachable
        link = f"{folder}/default.target.wants/{name}"
        if os.path.islink(link):
            fs.unlink(link)
    for name in ours:
        fs.unlink(f"{folder}/{name}")
        done.removed.append(name)
    _order(done, [["daemon-reload"]])
    return done


def status(folder: str, root: str) -> list[dict[str, str]]:
    """Return every installed unit of this root with its state according to systemd."""
    prefix = f"farro-{slug(root)}-"
    files = [f"{prefix}{part}.service" for part in ("worker@", "watchdog", "manager")]
    started = _started(folder, [name for name in files if fs.exists(f"{folder}/{name}")])
    why = systemd.unavailable() if started else None
    if why is not None:
        return [{"unit": name, "enabled": "unknown", "active": f"unknown: {why}"} for name in started]
    return [
        {"unit": name, "enabled": systemd.ask("is-enabled", name)[1], "active": systemd.ask("is-active", name)[1]}
        for name in started
    ]


def _started(folder: str, names: Sequence[str] | dict[str, str]) -> list[str]:
    """Return the units that these files define; the head of a template lists its roles."""
    found: list[str] = []
    for name in names:
        text = _read(f"{folder}/{name}")
        if text is None:
            continue
        if "@" not in name:
            found.append(name)
            continue
        head = next((line for line in text.splitlines() if line.startswith(_ROLES)), _ROLES)
        roles = [role for role in head.removeprefix(_ROLES).split() if ids.ROLE.fullmatch(role)]
        found += [name.replace("@", f"@{role}") for role in roles]
    return found


def _order(done: ServiceChanges, orders: Sequence[Sequence[str]]) -> None:
    """Run systemctl; commands that cannot run or fail are left to the user."""
    if done.why is None and orders:
        done.why = systemd.unavailable()
    for order in orders:
        if done.why is None:
            code, said = systemd.ask(*order)
            if code == 0:
                continue
            done.why = said or f"systemctl --user {order[0]} failed"
        done.todo.append(f"systemctl --user {' '.join(order)}")


def _is_ours(path: str) -> bool:
    """Return whether the file is absent or was written by farro."""
    text = _read(path)
    return text.startswith(MARK) if text is not None else not fs.exists(path)


def _read(path: str) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        return fs.read_bytes(path, 1 << 16).decode()
    return None
