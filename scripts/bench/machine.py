"""Prepare the machine: the peers' environments, a Redis server, and the facts for the report.

Nothing but the duration of one sync is measured here.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from bench.places import BUILD, FARRO, PYTHON, ROOT, environment_python


class Missing(Exception):
    """Report that a peer or a tool is not installed and cannot be; the message says why."""


def make_environment(package: str, requirements: Sequence[str]) -> None:
    """Make the peer's own environment, or reuse it. Missing: it cannot be made."""
    folder = os.path.join(BUILD, package)
    python = environment_python(package)
    stamp = os.path.join(folder, "ready.json")
    wanted = {"requirements": list(requirements), "python": sys.version}
    with contextlib.suppress(OSError, ValueError), open(stamp, encoding="utf-8") as file:
        if json.load(file) == wanted and os.access(python, os.X_OK):
            return
    tell(f"making the environment of {package}")
    os.makedirs(folder, exist_ok=True)
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    commands = [
        [PYTHON, "-m", "venv", "--clear", os.path.join(folder, "venv")],
        [python, "-m", "pip", "install", "-q", "--no-input", "--disable-pip-version-check", *requirements],
    ]
    for command in commands:
        done = subprocess.run(command, check=False, **quiet)  # type: ignore[call-overload]
        if done.returncode != 0:
            said = (done.stdout or "").strip().splitlines() or ["no output"]
            raise Missing(f"{' '.join(command[1:3])} failed: {said[-1][:200]}")
    with open(stamp, "w", encoding="utf-8") as file:
        json.dump(wanted, file)


def versions(package: str, requirements: Sequence[str]) -> str:
    """Return the installed versions: "rq 2.12.0, redis 8.1.0"."""
    names = [item.split("~")[0].split("[")[0] for item in requirements]
    script = (
        "import importlib.metadata as m, json, sys\n"
        "have = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
        "names = dict.fromkeys([n.lower() for n in sys.argv[1:]] + ['redis'])\n"
        "print(', '.join(f'{n} {have[n]}' for n in names if n in have))"
    )
    command = [environment_python(package), "-c", script, *names]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


# --- Redis -------------------------------------------------------------------------------------------------------


def find_redis() -> str:
    """Return a server's executable. Debian's redis-tools has it under another name, without a service."""
    for attempt in range(2):
        for name in ("redis-server", "valkey-server", "redis-check-rdb"):
            found = shutil.which(name)
            if found is not None:
                return found
        if attempt == 0:
            subprocess.run([os.path.join(ROOT, "scripts", "packages.sh"), "redis-tools"], check=False)
    raise Missing("no redis-server here, and the Debian package redis-tools could not be installed")


def redis_version(executable: str) -> str:
    said = subprocess.run(
        ["redis-server", "--version"], executable=executable, capture_output=True, text=True, check=False
    ).stdout
    return next((word[2:] for word in said.split() if word.startswith("v=")), "of unknown version")


@contextlib.contextmanager
def redis(executable: str, folder: str, persistence: str) -> Iterator[str]:
    """Run a server on a free loopback port, with `always` or `none`; yield its address, and end it afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", "always"] if persistence == "always" else ["--appendonly", "no"]
    with open(os.path.join(folder, "redis.log"), "wb") as log:
        server = subprocess.Popen(command, executable=executable, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        _wait_for_redis(server, port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_for_redis(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as line:
            line.sendall(b"PING\r\n")
            if line.recv(16).startswith(b"+PONG"):
                return
        time.sleep(0.02)
    raise Missing("the Redis server did not start")


@contextlib.contextmanager
def agq(home: str, env: Mapping[str, str]) -> Iterator[str]:
    """Run `farro agq` in front of a root; yield its HOST:PORT, and end it afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with open(os.path.join(home, "agq.log"), "wb") as log:
        command = [FARRO, "agq", "--bind", address, "--root", home]
        server = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=dict(env))
    try:
        _wait_for_redis(server, int(address.rpartition(":")[2]))
        yield address
    finally:
        server.terminate()
        try:
            server.wait(timeout=15)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def pings_per_s(port: int, times: int) -> float:
    """Return the rate that redis-benchmark measures at one connection."""
    program = shutil.which("redis-benchmark")
    if program is None:
        raise Missing("no redis-benchmark here; the Debian package redis-tools has it")
    command = [program, "-p", str(port), "-c", "1", "-n", str(times), "-t", "ping_mbulk", "--csv"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    line = next(line for line in said.splitlines() if line.startswith('"PING'))
    return float(line.split(",")[1].strip('"'))


# --- facts -------------------------------------------------------------------------------------------------------


def facts(folder: str) -> dict[str, str]:
    """Describe the machine, without host names and paths."""
    return {
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "filesystem": _filesystem(folder),
        "one sync": f"{sync_ms(folder):.2f} ms (4 KiB written and fsynced, median of 50)",
        "Python": platform.python_version(),
        "load at the start": f"{os.getloadavg()[0]:.1f}",
    }


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def _filesystem(folder: str) -> str:
    """Return the kind of the filesystem and the options that matter."""
    kind, _, options = mount(folder)
    told = [o for o in options.split(",") if o.split("=")[0] in ("data", "barrier", "nobarrier", "discard")]
    return " ".join([kind or "unknown", *told])


def mount(folder: str) -> tuple[str, str, str]:
    """Return kind, device and options of the filesystem at the longest mount point above the folder; empty: unknown."""
    best, found = "", ("", "", "")
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8") as lines:
        for line in lines:
            left, _, right = line.partition(" - ")
            point = left.split()[4]
            if len(point) >= len(best) and (folder + "/").startswith(point.rstrip("/") + "/"):
                kind, device, options = right.split()[:3]
                best, found = point, (kind, device, options)
    return found


def sync_ms(folder: str) -> float:
    took = []
    path = os.path.join(folder, "sync-probe")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in range(50):
        os.write(fd, b"x" * 4096)
        start = time.monotonic()
        os.fsync(fd)
        took.append(1000 * (time.monotonic() - start))
    os.close(fd)
    return statistics.median(took)


def tell(text: str) -> None:
    """Print progress to stderr."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)
