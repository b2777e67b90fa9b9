"""What a worker process tells of itself, and ending what a dead one left: by its cgroup, and by its attempts' marks.

Who is dead is decided in the stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farro.host import process_identity

_cgroup: str | None = None
_tool_names: tuple[str, ...] = ()  # what this process announces; () where it is no worker


def announce(tools: tuple[str, ...]) -> None:
    """What the steps of this process may use; before its slots join."""
    global _tool_names
    _tool_names = tools


def enclose() -> None:
    """Called once by a worker process, in its first thread: what it starts can be waited for, and be ended as a whole
    after its death (RELIABILITY 23)."""
    # Here: every command imports this module, and only workers need them.
    from farro.host import cgroup, process_tree, signals

    global _cgroup
    signals.keep_exit_codes()
    process_tree.adopt_orphans()
    _cgroup = cgroup.own_cgroup()


def release() -> None:
    from farro.host import cgroup

    if _cgroup is not None:
        cgroup.remove_cgroup(_cgroup)


def identity() -> Mapping[str, Any]:
    more = {"cgroup": _cgroup, "tools": list(_tool_names) or None}
    return {**process_identity.identity(), **{name: value for name, value in more.items() if value is not None}}


def reap(markers: list[str], of: Mapping[str, Any]) -> None:
    """End what a dead agent's attempts left: by cgroup where the worker had one, and by the mark in the environment.

    A worker's cgroup outlives its agents only when the whole worker is dead; a slot that merely left is in a live one.
    That no process of its name lives here does not tell: the machine may be called otherwise since, or the worker have
    a namespace of its own. Whether it is among the members of its cgroup does.
    [test_a_live_worker_is_not_ended_for_a_slot_that_left_whatever_the_machine_is_called]
    """
    from farro.host import cgroup, process_tree

    path = of.get("cgroup")
    if isinstance(path, str) and not process_identity.matches(of) and not cgroup.has_member(path, of.get("start")):
        cgroup.kill_cgroup(path)
        cgroup.remove_cgroup(path)
    agent = of.get("agent")
    if isinstance(agent, str):  # also what it started after its job was taken from it, which no marker names
        process_tree.end_marked(f"FARRO_AGENT={agent}")
    for marker in markers:
        process_tree.end_marked(marker)
