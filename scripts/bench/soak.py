"""Run a root for a while under `farro up`, and draw what grows: memory, descriptors, inodes, and the time of a job.

A producer enqueues one job at a time and waits until it starts. Half-way through, `farro prune` removes the finished
jobs, as a person would; whatever goes on growing is a leak.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench import contestants, own
from bench.machine import tell
from bench.places import FARRO, Scratch
from bench.results import percentile
from bench.rounds import Broken, Stand, stand

BLOCKS = 60  # points of each curve


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    jobs_a_block: int = 50


QUICK = Size(jobs_a_block=5)


def measure(scratch: Scratch, size: Size) -> dict[str, Any]:
    """Return the curves: one point of each after every block of jobs."""
    contestant = replace(contestants.farro("process"), name="farro up", workers=lambda home: [])
    with stand(contestant, scratch, None) as place:
        pids = _up(place)
        try:
            return _blocks(place, pids, size)
        finally:
            subprocess.run([FARRO, "down", "--root", place.home], check=False, capture_output=True, env=place.env)


def _blocks(place: Stand, pids: Sequence[int], size: Size) -> dict[str, Any]:
    found: dict[str, Any] = {name: [] for name in ("memory_mb", "descriptors", "inodes", "pickup_p50_ms")}
    began_s = time.monotonic()
    for block in range(BLOCKS):
        took_ns = place.drive("pickup", size.jobs_a_block)["pickup_ns"]
        found["memory_mb"].append(sum(map(own.pss_mb, pids)))
        found["descriptors"].append(sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids))
        found["inodes"].append(sum(len(folders) + len(files) for _, folders, files in os.walk(place.home)))
        found["pickup_p50_ms"].append(percentile([ns / 1e6 for ns in took_ns], 0.5))
        if block == BLOCKS // 2:
            prune = [FARRO, "prune", "--keep", "0", "--root", place.home]
            subprocess.run(prune, check=True, capture_output=True, env=place.env)
    found["jobs"], found["seconds"] = BLOCKS * size.jobs_a_block, time.monotonic() - began_s
    tell(f"soak: {found['jobs']} jobs in {found['seconds']:.0f} s")
    return found


def _up(place: Stand) -> list[int]:
    """Start the services; return their pids."""
    command = [FARRO, "up", "--detach", "--no-web", "--json", "--root", place.home]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=place.env, cwd=place.home)
    if done.returncode != 0:
        raise Broken(f"farro up: exit {done.returncode}: {done.stderr[-300:]}")
    return [item["pid"] for item in json.loads(done.stdout)["components"]]
