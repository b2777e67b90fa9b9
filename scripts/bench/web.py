"""Measure the HTTP API: lists of very many jobs with a hundred viewers, the delay of an event, and the cost."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from bench import contestants
from bench.machine import tell
from bench.places import FARRO, Scratch
from bench.rounds import Broken, stand, steady_rate, wait_until_done, workers

QUERIES = (
    "?limit=50",
    "?limit=50&status=queued&role=Runner",
    "?limit=50&order=changed",
    "?limit=50&order=oldest&status=queued",
    "?limit=50&text=bench",
    "?limit=50&text=nothing-like-that",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    jobs: int = 100_000
    viewers: int = 100
    lists: int = 300
    events: int = 100
    drained: int = 4000
    turns: int = 5


QUICK = Size(jobs=2000, viewers=10, lists=30, events=10, drained=500, turns=1)


def measure(scratch: Scratch, size: Size) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with stand(contestants.farro("process"), scratch, None) as place:
        tell(f"web: lists of {size.jobs} jobs, {size.viewers} viewers")
        place.drive("many", size.jobs, limit_s=60 + size.jobs / 100)
        with server(place.home, place.env) as front, contextlib.ExitStack() as looking:
            found["ready_s"] = front.ready(300 + size.jobs / 200)
            for _ in range(size.viewers):
                looking.enter_context(contextlib.closing(front.viewer()))
            found["list_ms"] = [front.timed_ms(f"/api/jobs{QUERIES[n % len(QUERIES)]}") for n in range(size.lists)]
            found["event_ms"] = [_event_ms(front, place) for _ in range(size.events)]
            found["rss_mb"] = front.rss_mb()
    found["jobs"], found["viewers"] = size.jobs, size.viewers
    tell("web: a queue drained with and without a server beside it")
    found["drain"] = [_drained(scratch, size.drained, beside) for _ in range(size.turns) for beside in (False, True)]
    return {**found, **_summed(found)}


def _summed(found: dict[str, Any]) -> dict[str, float]:
    alone, beside = found["drain"][0::2], found["drain"][1::2]
    lists, events = sorted(found["list_ms"]), sorted(found["event_ms"])
    return {
        "list_p95_ms": lists[int(len(lists) * 0.95)],
        "list_p50_ms": lists[len(lists) // 2],
        "event_p95_ms": events[int(len(events) * 0.95)],
        "event_p50_ms": events[len(events) // 2],
        "slower_percent": 100 * (statistics.median(a / b for a, b in zip(alone, beside, strict=True)) - 1),
    }


def _event_ms(front: Front, place: Any) -> float:
    """Measure from the acknowledgement of the enqueue to the arrival of the event; both clocks are this machine's."""
    with contextlib.closing(front.viewer()) as viewer, ThreadPoolExecutor(1) as listener:
        _until(viewer, b"event: hello")
        arrived = listener.submit(_arrival_ns, viewer)  # beside it: the driver ends some time after it was answered
        told = place.drive("many", 1)
        return max(0.0, (arrived.result() - told["end_ns"]) / 1e6)


def _arrival_ns(viewer: http.client.HTTPResponse) -> int:
    _until(viewer, b"event: changes")
    return time.monotonic_ns()


def _until(viewer: http.client.HTTPResponse, start: bytes) -> None:
    while not (line := viewer.readline()).startswith(start):
        if not line:
            raise Broken("the stream of events ended")


def _drained(scratch: Scratch, jobs: int, beside: bool) -> float:
    """Return jobs per second between the first and the last tenth."""
    with stand(contestants.farro("process"), scratch, None) as place, contextlib.ExitStack() as running:
        place.drive("many", jobs)
        os.sync()
        if beside:
            front = running.enter_context(server(place.home, place.env))
            front.ready(120)
            running.enter_context(contextlib.closing(front.viewer()))
        with workers(place) as at_work:
            wait_until_done(place, jobs, at_work)
        return steady_rate(place.tally, 0, jobs)


class Front:
    """A `farro web`, queried over one connection as a page does."""

    def __init__(self, home: str, port: int, process: subprocess.Popen[bytes]) -> None:
        self._home = home
        self._port = port
        self._process = process
        self._connection: http.client.HTTPConnection | None = None

    def _headers(self) -> dict[str, str]:
        with open(f"{self._home}/jobs/.web/token", encoding="utf-8") as file:
            return {"Authorization": f"Bearer {file.read().strip()}"}

    def ready(self, limit_s: float) -> float:
        """Return the seconds until all jobs are counted."""
        start = time.monotonic()
        while time.monotonic() < start + limit_s:
            with contextlib.suppress(OSError):
                if json.loads(self._ask("/api"))["ready"]:
                    self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
                    return time.monotonic() - start
            if self._process.poll() is not None:
                raise Broken("farro web ended")
            time.sleep(0.05)
        raise Broken(f"farro web is not ready after {limit_s:.0f} s")

    def _ask(self, path: str) -> bytes:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            connection.request("GET", path, headers=self._headers())
            return connection.getresponse().read()

    def timed_ms(self, path: str) -> float:
        assert self._connection is not None
        headers = self._headers()
        start = time.perf_counter()
        self._connection.request("GET", path, headers=headers)
        answer = self._connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise Broken(f"{path}: {answer.status}")
        return (time.perf_counter() - start) * 1000

    def viewer(self) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        connection.request("GET", "/api/events", headers=self._headers())
        return connection.getresponse()

    def rss_mb(self) -> float:
        with open(f"/proc/{self._process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextlib.contextmanager
def server(home: str, env: dict[str, str]) -> Iterator[Front]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [FARRO, "web", "--bind", f"127.0.0.1:{port}", "--root", home]
    with open(f"{home}/web.log", "wb") as log:
        process = subprocess.Popen(command, env=env, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield Front(home, port, process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
