"""Share between these tests a folder for one attempt, short ways to write steps, and processes that escape.

The fixture is in conftest.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farro.execution import PlanResult, PlanRun, Stop, Tools, run_plan
from farro.execution.runner import Work
from farro.host import process_table
from farro.host.clock import SystemClock
from farro.plans.loading import load_data
from farro.plans.model import DEFAULT_TIMEOUT_S

STUBBORN = 'trap "" TERM; echo $$ > "$FIFO"; exec sleep 1000'
ESCAPE = "setsid sh -c 'sh -c \"$STUBBORN\" & exit' & "  # forked twice, in its own session, ignores SIGTERM


class Bench:
    """A folder for one attempt, and all arguments of `run_plan`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attempt = folder / "0001"
        self.attempt.mkdir()
        self.work = folder / "work"
        self.work.mkdir()
        self.fifo = folder / "fifo"
        os.mkfifo(self.fifo)
        self.clock = SystemClock()
        self.stop = Stop(self.clock)
        self.ticks = 0
        self.on_tick: Callable[[], None] = lambda: None

    def tick(self) -> None:
        self.ticks += 1
        self.on_tick()

    def run(self, *steps: dict[str, Any], tools: Tools | None = None, **options: Any) -> PlanResult:
        plan = {name: options.pop(name) for name in ("timeout", "parallel", "input", "keep_going") if name in options}
        own = {name: options.pop(name) for name in Work.__slots__ if name in options}
        work = Work(
            **{
                "job_id": "job-1",
                "prompt": {},
                "folder": str(self.attempt),
                "env": {"PATH": os.environ["PATH"], "FIFO": str(self.fifo), "STUBBORN": STUBBORN},
                "cwd": str(self.work),
                "marker": f"marker-{self.folder}",
                "root": "/the/root",
                "step_timeout_s": DEFAULT_TIMEOUT_S,
                **own,
            }
        )
        run = PlanRun(
            work=work,
            tools=tools or Tools(),
            tick=self.tick,
            stop=self.stop,
            clock=self.clock,
            **{"tick_every_s": 60.0, "term_grace_s": 0.05, **options},
        )
        return run_plan(load_data({"plan_id": "p1", "steps": list(steps), **plan}, "test"), run)

    def bytes_of(self, step: int | str, stream: str = "stdout") -> bytes:
        return (self.attempt / "steps" / str(step) / stream).read_bytes()

    def told_pid(self) -> int:
        """Block until a process has written its PID into the FIFO."""
        return int(self.fifo.read_text())

    def in_background(self, action: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=action)
        thread.start()
        return thread

    def living(self) -> list[int]:
        return [
            entry.pid
            for entry in process_table.entries()
            if entry.alive and process_table.carries(entry.pid, f"FARRO_CLAIM=marker-{self.folder}")
        ]


def step(number: int, command: str, *args: str, **fields: Any) -> dict[str, Any]:
    return {"step_number": number, "command": command, "args": list(args), **fields}


def shell(number: int, script: str, **fields: Any) -> dict[str, Any]:
    return step(number, "sh", "-c", script, **fields)


def lives(pid: int) -> bool:
    entry = process_table.entry(pid)
    return entry is not None and entry.alive
