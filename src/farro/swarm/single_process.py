"""One process at a time: the orchestrator of a root, the controller of a swarm. The kernel keeps the lease (flock).

What such a process does lives in orchestrator and controller; who is started when, in tending.
"""

from __future__ import annotations

import contextlib
import json

from farro.errors import AlreadyRunning
from farro.host import fs, leases, process_identity
from farro.host.clock import Clock
from farro.swarm.files import read_json

_TRIES, _PAUSE_S = 40, 0.05  # somebody who only looks whether it is held holds it for a moment


def hold(folder: str, what: str, clock: Clock) -> leases.Lease:
    """The lease of a folder, for as long as this process lives. AlreadyRunning: another has it."""
    path = f"{folder}/.lease"
    for _ in range(_TRIES):
        with contextlib.suppress(FileExistsError):
            fs.create(path, b"")
        lease = leases.take(path)
        if lease is not None:
            identity = json.dumps(process_identity.identity()).encode()
            fs.write_atomic(f"{folder}/.process.json", identity + b"\n", sync=False)
            return lease
        clock.sleep(_PAUSE_S)
    raise AlreadyRunning(f"{what} runs already; one is enough")


def kill(folder: str, clock: Clock) -> bool:
    """End exactly the process that holds the lease, at once, and nothing that it started; whether it is gone."""
    claimed = read_json(f"{folder}/.process.json")
    if isinstance(claimed, dict) and leases.is_held(f"{folder}/.lease"):
        process_identity.kill_identified(claimed)
    for _ in range(_TRIES):
        if not leases.is_held(f"{folder}/.lease"):
            return True
        clock.sleep(_PAUSE_S)
    return False
