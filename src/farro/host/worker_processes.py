"""Identify a worker process in its lease, and end what a dead worker left: by its cgroup and its attempts' markers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farro.host import process_identity

_cgroup: str | None = None
_tool_names: tuple[str, ...] = ()  # tools in this process's identity; () if it is not a worker


def announce(tools: tuple[str, ...]) -> None:
    """Set the tools that the steps of this process may use. Call it before its slots join."""
    global _tool_names
    _tool_names = tools


def enclose() -> None:
    """Prepare this worker process: its children can be reaped, and can be ended as a whole after its death
    (RELIABILITY 23). Call it once, in the first thread."""
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
    """End what a dead agent's attempts left: by cgroup where the worker had one, and by the marker in the environment.

    The cgroup is killed only if the whole worker is dead: a slot that merely left shares it with a live worker. That no
    process has the worker's identity is no proof: the machine may have been renamed since, or the worker may have its
    own namespace. Whether the worker is a member of its cgroup decides.
    [test_a_live_worker_is_not_ended_for_a_slot_that_left_under_any_host_name]
    """
    from farro.host import cgroup, process_tree

    path = of.get("cgroup")
    if isinstance(path, str) and not process_identity.matches(of) and not cgroup.has_member(path, of.get("start")):
        cgroup.kill_cgroup(path)
        cgroup.remove_cgroup(path)
    agent = of.get("agent")
    if isinstance(agent, str):  # also what it started after it lost its job, which no marker names
        process_tree.end_marked(f"FARRO_AGENT={agent}")
    for marker in markers:
        process_tree.end_marked(marker)
