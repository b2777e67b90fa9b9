"""Orchestrator, controller, components and broker are killed and stopped at random, while commands come and items flow.

Each command has one end and one distinct confirmation, nothing is deleted, the swarm gets the state of the last
command, and no item that the bus accepted is lost. A quarter of a minute here; a minute with FARRO_TORTURE. STORM_SEED
repeats the same random choices.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farro.errors import FarroError
from farro.host.clock import SystemClock
from farro.swarm import files, processes, requests, views
from farro.swarm.bus import open_bus
from farro.swarm.bus.port import Binding
from farro.swarm.processes import environment
from farro.swarm.wire import names
from farro.swarm.wire.names import Signal
from farro.worker.process_runtime import ProcessRuntime
from servers import RabbitServer
from support import ROOT, torture, write_figure

PATIENCE_S = 150.0
SWARM = "storm"
LISTENER = "storm-listener"
CONTROLLER = files.controller_instance(SWARM)
COMPONENTS = ("storm-numbers", "storm-pass-1", "storm-pass-2", "storm-record")


def bee(role: str, work: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"role": role, "command": ["python", "-m", "swarm.storm_bees", role], "work": work, **more}


PLAN = {
    "id": SWARM,
    "bees": [
        bee("numbers", {"out": "raw"}, restart="always"),
        bee("pass", {"in": "raw", "out": "done"}, instances=2, restart="always"),
        bee("record", {"in": "done"}, restart="always"),
    ],
}


class Storm:
    def __init__(self, root: Path, broker: RabbitServer | None, seed: int) -> None:
        self.root = root
        self.broker = broker
        self.dice = random.Random(seed)
        self.folder = str(root / files.FOLDER)
        self.runtime = ProcessRuntime(f"{self.folder}/{files.COMPONENTS}", SystemClock())
        self.address = f"files:{root}/bus" if broker is None else broker.url
        self.asked: list[str] = []
        self.did: Counter[str] = Counter()
        self._starting: threading.Thread | None = None  # starts the broker again
        self._resume: list[tuple[float, str, int]] = []  # when, whom, and its pid
        env = {**environment(), "STORM": str(root / "items"), "PYTHONPATH": f"{ROOT}/tests:{ROOT}/src"}
        program = [sys.executable, "-m", "farro"]
        self.orchestrator = processes.orchestrator_spec(str(root), program, env)

    # --- commands ---

    def ask(self, what: Signal, args: dict[str, Any] | None = None, **more: Any) -> str:
        request = requests.CommandRequest(signal=what, swarm=SWARM, args=args, **more)
        asked = requests.submit(self.folder, request, durable=False)
        self.asked.append(asked.correlation_id)
        return asked.correlation_id

    def done(self, correlation: str) -> views.CommandView:
        """Wait for the end of a command, and keep the orchestrator running meanwhile."""
        until_s = time.monotonic() + PATIENCE_S
        while (end := requests.wait(self.folder, correlation, 1.0)) is None:
            self.tend()
            assert time.monotonic() < until_s, f"{correlation} has no end: {self.shown()}"
        return end

    def good(self, correlation: str) -> None:
        end = self.done(correlation)
        assert end.result == "success", (end, self.shown())

    def tend(self) -> None:
        """Start the orchestrator as `farro swarm` does."""
        with contextlib.suppress(FarroError):  # it was killed while it came up: tried again at the next look
            processes.ensure_orchestrator(self.runtime, self.orchestrator, SystemClock())

    # --- the storm ---

    def rage(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._wake()
            self.dice.choice((self.strike, self.strike, self.strike, self.command))()
            time.sleep(self.dice.uniform(0.1, 0.8))
            if self.dice.random() < 0.5:
                self.tend()
        self._wake(everybody=True)
        if self._starting is not None:
            self._starting.join()

    def strike(self) -> None:
        whom = self.dice.choice((files.ORCHESTRATOR, CONTROLLER, *COMPONENTS, "broker"))
        if whom == "broker":
            self._strike_broker()
            return
        seen = self.runtime.look(whom)
        if seen is None or not seen.alive or seen.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self.dice.random() < 0.6:
                os.kill(seen.pid, signal.SIGKILL)
                self.did[f"kill {whom}"] += 1
            else:
                os.kill(seen.pid, signal.SIGSTOP)
                self._resume.append((time.monotonic() + self.dice.uniform(0.1, 3.0), whom, seen.pid))
                self.did[f"stop {whom}"] += 1

    def _strike_broker(self) -> None:
        if self.broker is None or self.broker.process is None or self._broker_starts():
            return
        if self.dice.random() < 0.5:
            self.broker.kill()
            self.did["kill broker"] += 1
            self._starting = threading.Thread(target=self.broker.start)  # others are killed meanwhile
            self._starting.start()
        else:
            os.killpg(self.broker.process.pid, signal.SIGSTOP)
            time.sleep(self.dice.uniform(0.1, 2.0))
            os.killpg(self.broker.process.pid, signal.SIGCONT)
            self.did["stop broker"] += 1

    def _broker_starts(self) -> bool:
        return self._starting is not None and self._starting.is_alive()

    def _wake(self, *, everybody: bool = False) -> None:
        for one in list(self._resume):
            at_s, whom, pid = one
            if everybody or time.monotonic() >= at_s:
                self._resume.remove(one)
                seen = self.runtime.look(whom)
                if seen is not None and seen.pid == pid:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)

    def command(self) -> None:
        key = str(uuid.uuid4())
        what = self.dice.choice((Signal.STOP, Signal.START, Signal.CONFIG))
        with contextlib.suppress(FarroError):  # not allowed in this state: refused at once, and nothing was requested
            if what is Signal.CONFIG:
                args = {"rate": self.dice.randint(50, 150)}
                self.ask(what, args, role="numbers", instance="storm-numbers", idempotency_key=key)
            else:
                self.ask(what, idempotency_key=key)
                if self.dice.random() < 0.3:
                    self.ask(what, idempotency_key=key)  # an impatient client
            self.did[what.value] += 1

    # --- looking ---

    def shown(self) -> str:
        lines = [f"did {dict(self.did)}"]
        with contextlib.suppress(FarroError):
            lines.append(str(views.swarm(self.folder, SWARM)))
        for view in views.commands(self.folder, SWARM)[-6:]:
            lines.append(f"{view.signal} {view.result} {view.code} {view.message}")
        for log in sorted(self.root.glob(f"{files.FOLDER}/**/*.log")):
            lines.append(f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-12:]))
        return "\n".join(lines)

    def until(self, what: str, holds: Any) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not holds():
            self.tend()
            assert time.monotonic() < until_s, f"not {what}: {self.shown()}"
            time.sleep(0.2)

    def running(self) -> bool:
        view = views.swarm(self.folder, SWARM)
        return view.state == "Running" and all(one.enabled for one in view.components) and len(view.components) == 4

    def arrived(self) -> Counter[int]:
        path = self.root / "items" / "arrived"
        return Counter(map(int, path.read_text().split())) if path.exists() else Counter()

    def accepted(self) -> int:
        """All numbers below it were accepted by the bus."""
        path = self.root / "items" / "next"
        return int(path.read_text()) if path.exists() else 0

    async def heard(self) -> tuple[dict[str, set[str]], dict[str, int | None]]:
        """Return the message ids of the confirmations of each signal, and the depth of each work queue."""
        bus = await open_bus(self.address, durable=False)
        try:
            found: dict[str, set[str]] = {}
            consumer = await bus.consume(LISTENER, prefetch=1000)
            with contextlib.suppress(TimeoutError):
                while True:
                    async with asyncio.timeout(3.0):
                        delivery = await anext(aiter(consumer))
                    body = json.loads(delivery.message.body)
                    found.setdefault(body.get("correlationId", ""), set()).add(delivery.message.message_id)
            work = [names.work_queue(SWARM, name) for name in ("raw", "done")]
            depths: dict[str, int | None] = {}
            for queue in (*work, *map(names.dead_letters, work)):
                depth = await bus.depth(queue)
                depths[queue] = None if depth is None else depth.ready
            return found, depths
        finally:
            await bus.close()

    async def listen(self) -> None:
        bus = await open_bus(self.address, durable=False)
        keys = [f"ev.{outcome}.{what}.#" for outcome in ("ready", "error") for what in Signal]
        await bus.declare(LISTENER, [Binding(names.CONTROL, key) for key in keys])
        await bus.close()


@pytest.fixture(params=["files", "amqp"])
def storm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storm]:
    seed = int(os.environ.get("STORM_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"STORM_SEED={seed}")
    root = tmp_path / "root"
    subprocess.run([sys.executable, "-m", "farro", "init", "--root", str(root)], check=True, capture_output=True)
    (root / "items").mkdir()
    broker = None
    if request.param == "amqp":
        broker = RabbitServer(folder=tmp_path / "rabbit").start()
        path = root / "agents-config.json"
        bus = f"amqp://127.0.0.1:{broker.port}/"  # as guest, who may come from loopback
        path.write_text(json.dumps({**json.loads(path.read_text()), "bus": bus}))
    made = Storm(root, broker, seed)
    try:
        yield made
    finally:
        made.runtime.stop([files.ORCHESTRATOR], 2)
        made.runtime.stop([CONTROLLER], 2)
        made.runtime.stop([seen.name for seen in made.runtime.list()], 2)
        if broker is not None:
            broker.stop()


def test_nothing_is_lost_under_random_kills(storm: Storm) -> None:
    asyncio.run(storm.listen())
    storm.tend()
    for what, args in ((Signal.CREATE, None), (Signal.TEMPLATE, {"plan": PLAN}), (Signal.START, None)):
        storm.good(storm.ask(what, args))
    storm.until("running", storm.running)
    storm.rage(60.0 * torture() if torture() else 15.0)

    storm.tend()
    for correlation in storm.asked:
        storm.done(correlation)  # each has an end; which one depends on the kills
    storm.good(storm.ask(Signal.START))
    storm.until("running", storm.running)
    assert {seen.name for seen in storm.runtime.list() if seen.alive} >= {*COMPONENTS, CONTROLLER}

    before = storm.accepted()
    storm.until("working", lambda: storm.accepted() > before + 20)
    storm.good(storm.ask(Signal.CONFIG, {"enabled": False}, role="numbers", instance="storm-numbers"))
    made = storm.accepted()
    with contextlib.suppress(AssertionError):  # what is missing is reported below
        storm.until("through", lambda: all(number in storm.arrived() for number in range(made)))
    confirmations, depths = asyncio.run(storm.heard())
    arrived = storm.arrived()
    lost = [number for number in range(made) if number not in arrived]
    twice = sum(count - 1 for count in arrived.values())
    assert not lost, (len(lost), lost[:20], made, depths, storm.shown())
    assert all(depth is not None for depth in depths.values())  # nothing is deleted
    shown = {correlation: len(confirmations.get(correlation, ())) for correlation in storm.asked}
    wrong = {correlation: count for correlation, count in shown.items() if count != 1}
    assert not wrong, (wrong, storm.shown())
    dead = sum(depth or 0 for queue, depth in depths.items() if queue.endswith("dlq"))
    kind = "files" if storm.broker is None else "amqp"
    strikes = sum(number for what, number in storm.did.items() if what.startswith(("kill", "stop ")))
    write_figure(
        f"swarm storm, {kind}: strikes, commands, items, of them twice, dead letters",
        f"{strikes}, {len(storm.asked)}, {made}, {twice}, {dead}",
    )
    print(dict(storm.did), f"{made} items, {twice} twice, {dead} dead letters, {len(storm.asked)} commands")
