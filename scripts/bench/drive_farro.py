"""farro's producer, and the run that counts its calls. Workers are plain `farro worker` processes.

python -m bench.drive_farro enqueue|pickup N    one by one, through the Store port
python -m bench.drive_farro many N              enqueue_many, BATCH a call
python -m bench.drive_farro commands N          the same, of jobs of one command
python -m bench.drive_farro pipelines N         the same, of jobs of three piped commands
python -m bench.drive_farro count N             N jobs enqueued and drained with a counter in the fs seam
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from bench import gear

BATCH = 100
PROMPT = {"plan_id": "bench", "steps": [{"step_number": 1, "tool": "noop", "command": "noop"}]}
COMMAND = {"plan_id": "bench", "steps": [{"step_number": 1, "command": "true"}]}
PIPELINE = {
    "plan_id": "bench",
    "steps": [
        {"step_number": 1, "command": "seq", "args": ["100"]},
        {"step_number": 2, "command": "sort", "args": ["-rn"], "input_from_step": 1},
        {"step_number": 3, "command": "head", "args": ["-n", "3"], "input_from_step": 2},
    ],
}
PROMPTS = {"many": PROMPT, "commands": COMMAND, "pipelines": PIPELINE}


class Counting:
    """A seam that counts. Every mutating call of farro goes through it (host/fs.py)."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()
        self.lock = threading.Lock()

    def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        with self.lock:
            self.counted[op] += 1
        return call(*args)

    def look(self, op: str, path: str) -> None: ...


def open_store() -> Any:
    from farro.app import App
    from farro.config import reader

    return App().open_store(gear.home(), reader.load(gear.home()))


def submission(prompt: dict[str, Any] = PROMPT) -> Any:
    from farro.store.port import Submission

    return Submission(role="Runner", prompt=prompt)


def many(jobs: int, prompt: dict[str, Any]) -> dict[str, Any]:
    store = open_store()
    start_ns = time.monotonic_ns()
    for done in range(0, jobs, BATCH):
        store.enqueue_many([submission(prompt) for _ in range(min(BATCH, jobs - done))])
    return {"start_ns": start_ns, "end_ns": time.monotonic_ns()}


def count(jobs: int) -> dict[str, Any]:
    """All calls of enqueueing and of one draining worker, its joining and leaving included."""
    from farro.cli.main import run
    from farro.host import fs

    seam = Counting()
    fs.set_seam(seam)
    store = open_store()
    for _ in range(jobs):
        store.enqueue(submission())
    enqueued = Counter(seam.counted)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        code = run(["worker", "--drain", "--root", gear.home()])
    if code != 0:
        raise SystemExit(f"farro worker --drain: exit {code}")
    return {"all": seam.counted, "enqueue": enqueued}


def main() -> None:
    if sys.argv[1] == "count":
        gear.answer(count(int(sys.argv[2])))
    elif sys.argv[1] in PROMPTS:
        gear.answer(many(int(sys.argv[2]), PROMPTS[sys.argv[1]]))
    else:
        store = open_store()
        gear.drive(lambda number: store.enqueue(submission()))


if __name__ == "__main__":
    main()
