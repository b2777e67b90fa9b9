"""Standard clients: redis-cli, redis-py in both forms, ioredis, redis-benchmark."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
import redis.asyncio

from agq.stage import Front, job, result
from servers import RedisServer
from support import ROOT, eventually, need, torture

HERE = Path(__file__).parent
IOREDIS = "ioredis@5.8.2"


def cli(front: Front, *words: str, stdin: str = "") -> str:
    done = subprocess.run(
        [need("redis-cli"), "-p", str(front.port), *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout.strip()


def test_the_pages_job_is_done_by_the_pages_worker(front: Front) -> None:
    page = Path(ROOT, "docs/agq.md").read_text(encoding="utf-8")
    pushed = re.search(r"LPUSH queue:ready '(\{.*?\]\})'\nredis-cli", page, re.DOTALL)
    program = re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert pushed is not None
    assert program is not None
    worker = subprocess.Popen([sys.executable, "-c", program[1].replace("6380", str(front.port))], cwd=front.root)
    try:
        assert cli(front, "LPUSH", "queue:ready", pushed[1]).strip().isdecimal()
        eventually(lambda: "succeeded" in cli(front, "GET", "job:job-123:status"), "the worker does not do it")
    finally:
        worker.kill()
        worker.wait()
    listed, counted = json.loads(cli(front, "GET", "job:job-123:result"))["step_results"]
    assert int(counted["stdout"]) == len(listed["stdout"].splitlines())


def test_redis_cli_pushes_pops_and_reads(front: Front) -> None:
    assert cli(front, "PING") == "PONG"
    assert cli(front, "-3", "PING") == "PONG"
    assert cli(front, "-x", "LPUSH", "queue:ready", stdin=job("a")) == "1"
    assert cli(front, "LPUSH", "queue:ready", "{}").startswith("ERR invalid job: id: is required")
    assert cli(front, "LLEN", "queue:ready") == "1"
    script = "CLIENT SETNAME cli-worker\nBRPOP queue:ready 5\nSET job:a:status completed\nLREM queue:processing 1 a\n"
    assert cli(front, stdin=script).splitlines()[-2:] == ["OK", "1"]
    assert cli(front, "GET", "job:a:status") == "succeeded"
    assert "status" in cli(front, "-3", "HGETALL", "job:a")
    assert cli(front, "--scan", "--pattern", "job:a").splitlines() == ["job:a"]


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_works_with_its_pool_and_health_checks(front: Front, protocol: int) -> None:
    with contextlib.closing(
        redis.Redis(
            port=front.port, protocol=protocol, decode_responses=True, health_check_interval=1, client_name="py-worker"
        )
    ) as client:
        client.lpush("queue:ready", job("a"))
        assert client.brpop("queue:ready", timeout=5) is not None
        # Another connection of the same pool, with the same name: the same worker.
        with contextlib.closing(redis.Redis(port=front.port, protocol=protocol, client_name="py-worker")) as other:
            assert other.set("job:a:result", result("a")) is True
        lock = client.pubsub()
        lock.subscribe("job:updates")
        eventually(lambda: lock.get_message(timeout=0.1) is not None, "subscribed")
        lock.check_health()
        lock.close()


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_asyncio_blocks_pipelines_and_listens(front: Front, protocol: int) -> None:
    async def play() -> None:
        async with redis.asyncio.Redis(port=front.port, protocol=protocol, decode_responses=True) as client:
            waiting = asyncio.ensure_future(client.brpop(["queue:ready"], timeout=0))
            async with client.pubsub() as channel:
                await channel.subscribe("job:updates")
                async with client.pipeline(transaction=False) as pipe:
                    for number in range(10):
                        pipe.lpush("queue:ready", job(f"j{number}"))
                    answers = await pipe.execute()
                assert len(answers) == 10
                assert json.loads((await waiting)[1])["id"] == "j0"
                async with asyncio.timeout(30):
                    async for message in channel.listen():
                        if message["type"] == "message" and json.loads(message["data"])["job_id"] == "j9":
                            break

    asyncio.run(play())


def test_ioredis_pushes_pops_subscribes_and_posts(front: Front) -> None:
    node = need("node")
    done = subprocess.run(
        [node, str(HERE / "client.js"), installed(), str(front.port)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.strip() == "ioredis is served", done.stdout + done.stderr


def installed() -> str:
    """Install ioredis in .build/node, once."""
    npm = need("npm")
    folder = Path(ROOT, ".build", "node")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "node_modules" / "ioredis").is_dir():
            done = subprocess.run(
                [npm, "install", "--no-audit", "--no-fund", "--silent", "--ignore-scripts", "--prefix", ".", IOREDIS],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            need(done.returncode == 0, f"npm cannot install ioredis: {done.stderr[-300:]}")
    return str(folder)


def rate(port: int, *words: str) -> float:
    """Return requests per second, as redis-benchmark measures them."""
    done = subprocess.run(
        [need("redis-benchmark"), "-p", str(port), "--csv", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    rates = [float(found) for found in re.findall(r'^".*?","([0-9.]+)"', done.stdout, re.MULTILINE)]
    assert rates, done.stdout + done.stderr
    return rates[-1]


def test_redis_benchmark_pings_and_its_rate_is_a_figure(
    front: Front, redis_server: RedisServer, figure: Callable[..., None]
) -> None:
    """Take the best of some alternating rounds: others use this machine, too."""
    count = "20000" if torture() else "4000"
    words = ("-c", "1", "-t", "ping_mbulk", "-n", count)
    rounds = [(rate(front.port, *words), rate(redis_server.port, *words)) for _ in range(3)]
    ours, theirs = max(pair[0] for pair in rounds), max(pair[1] for pair in rounds)
    figure("RESP front: PING of redis-server's rate", round(ours / theirs, 2))
    assert front.client().info("stats")["total_connections_received"] >= len(rounds), "it was this front that answered"


def test_redis_benchmark_pushes_jobs(front: Front, figure: Callable[..., None]) -> None:
    text = job("bench-__rand_int__")
    words = ("-c", "8", "-r", "100000000", "-n", "400", "LPUSH", "queue:ready", text)
    figure("RESP front: LPUSH of jobs, 8 connections, no power promise", round(rate(front.port, *words)), "/s")
    client = front.client()
    assert client.llen("queue:ready") >= 390  # some of the random ids are equal
    popped = json.loads(client.rpop("queue:ready"))
    assert popped["id"].startswith("bench-0000")
    assert popped["plan_id"].removeprefix("plan-of-").startswith("bench-")
