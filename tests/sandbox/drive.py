"""Run plans of one hostile step, or call a hostile provider, as a given user: JSON in and out, one process for each.

hostile_stage.py starts it as `drive.py FD` and checks the effects; a copy (copies.py) serves each order.
"""

from __future__ import annotations

import codecs
import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import copies
from farro.agents.providers.cli import CliProvider
from farro.agents.providers.port import ChatMessage, ProviderTrouble, Reach, Request
from farro.config.settings import ProviderSettings
from farro.execution import process_watch
from farro.execution.confined import Confined
from farro.execution.runner import Guarding, Work
from farro.execution.stop import Stop
from farro.execution.tools import Tools
from farro.execution.work import PlanCache, perform_work
from farro.host import process_tree
from farro.host.clock import SystemClock
from farro.host.process_limits import ProcessLimits
from farro.jobs.outcomes import Failed, Succeeded
from farro.sandbox import bubblewrap, landlock, leftovers, levels, seccomp, supervised_connects, syscalls, violations
from farro.sandbox import confinement as bounding
from farro.sandbox.confinement import LocalService
from sandbox.greeting import greet_callers


class Everything(list[Any]):
    def __contains__(self, _: object) -> bool:
        return True


def become(user: int) -> None:
    """Become that user for good. The process cannot be started as that user, who may lack access to its Python."""
    if user != os.geteuid():
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # its files in /proc belong to its user again


def take_away(name: str) -> None:
    """Remove one protection of the sandbox."""
    if name == "seccomp":
        seccomp.program = lambda *_, **__: seccomp._line(0x06, 0x7FFF0000)
    elif name == "landlock":
        syscalls.landlock_enter = lambda _: None
    elif name == "capabilities":
        syscalls.drop_capabilities = lambda: None
    elif name == "the comparison":
        violations.changed = lambda *_, **__: []
    elif name == "the end of strays":
        leftovers.end = lambda _: None
    elif name == "the closed list":
        start = Confined.start
        Confined.start = lambda self, launch, **more: start(self, launch, **{**more, "reads": None})  # type: ignore[method-assign]
    elif name == "the check of addresses":
        landlock.supervise = lambda fd, _: supervised_connects.supervise(fd, Everything())
        supervised_connects.frozenset = lambda allowed: allowed  # type: ignore[attr-defined]
    elif name == "bounds":
        for level in (bubblewrap, landlock, levels):
            level.limits_of = lambda *_, **__: ProcessLimits()  # type: ignore[attr-defined]
        bounding.SharedLimits.exceeded = lambda *_: None  # type: ignore[method-assign]
        bounding.cgroup.make = lambda **_: None
    elif name == "the pipe":
        levels._piped = lambda path: os.open(path, os.O_RDONLY)
    else:  # arguments of bubblewrap
        given = bubblewrap.arguments
        old, new = name.split(" -> ")
        bubblewrap.arguments = lambda *args, **more: _spelled(given(*args, **more), old.split(), new.split())


def _spelled(words: list[str], old: list[str], new: list[str]) -> list[str]:
    at = next((number for number in range(len(words)) if words[number : number + len(old)] == old), len(words))
    return [*words[:at], *(new if at < len(words) else ()), *words[at + len(old) :]]  # the probe has fewer


def give_services(port: int) -> None:
    """Let every confined process reach one service of the worker."""

    def serve(listener: socket.socket) -> Callable[[], None]:
        greet_callers(listener)
        return lambda: listener.shutdown(socket.SHUT_RDWR)

    start, services = Confined.start, (LocalService(port, serve),)
    Confined.start = lambda self, launch, **more: start(self, launch, **{**more, "services": services})  # type: ignore[method-assign]


def main(order: dict[str, Any]) -> dict[str, Any]:
    codecs.lookup("unicode_escape")  # found now: another user cannot access the folder of root's Python
    become(order["user"])
    process_tree.adopt_orphans()
    if order["without_cgroup"]:
        bounding.cgroup.make = lambda **_: None
    for name in order["without"]:
        take_away(name)
    if order["way"] == "outlive":
        process_watch._watches.add(object())  # type: ignore[arg-type]  # another plan runs here: its orphan may be that one's
    if order["services"]:
        give_services(order["hostile"]["service"])
    inherited = os.open(f"{order['hostile']['out']}/file", os.O_RDWR)
    os.set_inheritable(inherited, True)
    if order["way"] == "inherited_descriptors" and order["level"] is None:
        # As if no process closed them.
        env = {**os.environ, "HOSTILE": json.dumps(order["hostile"])}
        done = subprocess.run(order["command"], env=env, close_fds=False, check=False)
        return {"succeeded": done.returncode == 0, "category": None, "message": ""}
    if order["provider"]:
        return as_provider(order)
    step = {"id": "hostile", "command": order["command"][0], "args": order["command"][1:], "timeout": 60}
    steps = [step]
    if order["way"].startswith("stdin"):
        steps = [{"id": "before", "command": "cat", "args": [f"{order['hostile']['out']}/file"]}, step]
        step["input_from_step"] = "before"
    prompt: dict[str, Any] = {"steps": steps}
    if order["level"] is not None:
        prompt["allowed_paths"] = ["in/"]
    work = Work(
        job_id="hostile",
        prompt=prompt,
        folder=order["attempt"],
        marker=f"hostile-{order['root']}",
        env={"PATH": os.environ["PATH"], "HOSTILE": json.dumps(order["hostile"])},
        cwd=order["root"],
        root=order["root"],
        step_timeout_s=60,
        durable=False,
        guarding=Guarding(sandbox=order["level"] or "none", required=True, **order["guarding"]),
    )
    clock = SystemClock()
    stop = Stop(clock)
    came = perform_work(work, plans=PlanCache(), tools=Tools(), clock=clock, tick=lambda: None, stop=stop)
    assert isinstance(came, Succeeded | Failed)
    error = came.error if isinstance(came, Failed) else None
    return {
        "succeeded": error is None,
        "category": None if error is None else error.category,
        "message": "" if error is None else f"{error.message}\n{came.report.markdown}",
        "left": process_tree.reap_adopted(),
    }


def as_provider(order: dict[str, Any]) -> dict[str, Any]:
    """Call the same program as the provider of a role."""
    guarding = Guarding(sandbox=order["level"], required=True, **order["guarding"])
    environ = {"PATH": os.environ["PATH"], "HOSTILE": json.dumps(order["hostile"])}
    provider = CliProvider(
        name="hostile",
        settings=ProviderSettings(kind="cli", command=tuple(order["command"]), environment=("HOSTILE",)),
        environ=environ,
    )
    marker = f"hostile-{order['root']}"
    request = Request(
        key="hostile/0001/1/1",
        system="Be good.",
        messages=(ChatMessage(author="user", text="untouched"),),
        model=None,
        max_output_tokens=1,
        timeout_s=60,
        folder=order["attempt"],
        env={"FARRO_CLAIM": marker},
        reach=Reach(root=order["root"], writable=("in/",), guarding=guarding),
    )
    category, message = None, ""
    try:
        provider.answer(request)
    except ProviderTrouble as trouble:
        category, message = "path_violation" if trouble.violation else "step_failed", str(trouble)
    return {
        "succeeded": category is None,
        "category": category,
        "message": message,
        "left": process_tree.reap_adopted(),
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(copies.await_order(int(sys.argv[1]))))))
