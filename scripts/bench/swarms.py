"""Measure swarms on both buses: the start of many components, the status of many more, and items through a pipeline.

It runs drive_swarm and drive_pipeline in turn, with its own RabbitMQ.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.machine import Missing, tell
from bench.places import PYTHON, SCRIPTS, Scratch
from bench.rounds import Broken, last_line

LIMIT_S = 300.0
_PROGRAM = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # not Debian's wrapper, which switches to another user


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    components: int = 50
    starts: int = 3
    told: int = 500  # components that only send their status
    told_s: float = 20.0
    items: int = 10_000
    turns: int = 5


QUICK = Size(components=10, starts=1, told=100, told_s=3.0, items=1000, turns=1)


def measure(scratch: Scratch, size: Size) -> dict[str, Any]:
    """Measure all rows. Missing: there is no RabbitMQ."""
    with contextlib.ExitStack() as running:
        home, _ = scratch.fresh()
        address = running.enter_context(rabbit(home))
        tell("swarms: start of components, bare and by a controller")
        found: dict[str, Any] = {"start": _start(scratch, size)}
        tell(f"swarms: status of {size.told} components")
        found["fan_in"] = {
            bus: _drive(scratch, bus, address, "drive_swarm", "fan-in", size.told, size.told_s)
            for bus in ("files", "amqp")
        }
        tell("swarms: items through a pipeline, farro and bare aio-pika")
        found["pipeline"] = _pipeline(scratch, address, size)
        return found


def _start(scratch: Scratch, size: Size) -> dict[str, float]:
    """Return medians over rounds in which each has its turn. The bar is on CPU: on a shared machine, the seconds of a
    start depend on its other users."""
    bare, swarm = [], []
    for _ in range(size.starts):
        bare.append(_drive(scratch, "files", "", "drive_swarm", "start", "bare", size.components))
        swarm.append(_drive(scratch, "files", "", "drive_swarm", "start", "swarm", size.components))
    longer_s = statistics.median(mine["wall_s"] - plain["wall_s"] for mine, plain in zip(swarm, bare, strict=True))
    return {
        "components": size.components,
        "cpu_ms": statistics.median(one["cpu_s"] for one in swarm) * 1000 / size.components,
        "wall_ms": longer_s * 1000 / size.components,
        "enable_ms": statistics.median(one["enable_s"] for one in swarm) * 1000 / size.components,
        "controller_ms": statistics.median(one["controller_s"] for one in swarm) * 1000 / size.components,
        "bare_ms": statistics.median(one["cpu_s"] for one in bare) * 1000 / size.components,
    }


def _pipeline(scratch: Scratch, address: str, size: Size) -> dict[str, dict[str, float]]:
    kinds = {"bare": ("amqp", "bare"), "amqp": ("amqp", "farro"), "files": ("files", "farro")}
    told: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    for _ in range(size.turns):
        for name, (bus, kind) in kinds.items():
            told[name].append(_drive(scratch, bus, address, "drive_pipeline", kind, size.items))
            tell(f"pipeline, {name}: {told[name][-1]['per_s']:,.0f} items/s")
    found = {
        name: {key: statistics.median(one[key] for one in turns) for key in ("per_s", "cpu_us")}
        for name, turns in told.items()
    }
    pairs = zip(told["amqp"], told["bare"], strict=True)
    found["ratio"] = {"per_s": statistics.median(mine["per_s"] / bare["per_s"] for mine, bare in pairs)}
    return found


def _drive(scratch: Scratch, bus: str, address: str, module: str, *arguments: object) -> dict[str, float]:
    home, memory = scratch.fresh()
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("FARRO_")},
        "PYTHONPATH": SCRIPTS,
        "BENCH_HOME": home,
        "BENCH_BUS": address if bus == "amqp" else f"files:{home}/bus",
        "BENCH_TALLY": os.path.join(memory, "tally"),
    }
    command = [PYTHON, "-m", f"bench.{module}", *map(str, arguments)]
    try:
        done = subprocess.run(command, env=env, cwd=home, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise Broken(f"{module} {arguments[0]} on {bus} took longer than {LIMIT_S:.0f} s") from error
    if done.returncode != 0:
        raise Broken(f"{module} {arguments[0]} on {bus}: exit {done.returncode}: {last_line(done.stderr)}")
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


@contextlib.contextmanager
def rabbit(folder: str) -> Iterator[str]:
    """Run a RabbitMQ with its own node name, ports, home and epmd; yield its address, and end all of it afterwards."""
    if shutil.which(_PROGRAM) is None or shutil.which("epmd") is None:
        raise Missing("no rabbitmq-server here; scripts/packages.sh installs it")
    port, mapper, distribution = _free_ports(3)
    for name, text in (("plugins", "[].\n"), ("rabbitmq.conf", "loopback_users = none\n")):
        with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    env = {
        **os.environ,
        "HOME": folder,  # the cookie
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": f"{folder}/data",
        "RABBITMQ_LOG_BASE": f"{folder}/log",
        "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
        "ERL_EPMD_PORT": str(mapper),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    # Start epmd as our own child: one that the server starts would leave its group and stay.
    names = subprocess.Popen(["epmd"], env=env, **quiet)  # type: ignore[call-overload]
    server = subprocess.Popen([_PROGRAM], env=env, start_new_session=True, **quiet)  # type: ignore[call-overload]
    try:
        until_s = time.monotonic() + 90
        while not _speaks(port):
            if server.poll() is not None or time.monotonic() > until_s:
                raise Missing("rabbitmq-server did not start")
            time.sleep(0.1)
        yield f"amqp://guest:guest@127.0.0.1:{port}/"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        names.kill()
        names.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _speaks(port: int) -> bool:
    """Return whether the port speaks AMQP: then it answers a header of another version."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as line:
            line.sendall(b"AMQP\x00\x00\x00\x00")
            return line.recv(4) == b"AMQP"
    except OSError:
        return False
