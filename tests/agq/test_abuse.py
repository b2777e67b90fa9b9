"""Hostile or broken clients are answered and closed, and never affect other clients."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable

import pytest

from agq.stage import Front, Raw, command, job
from farro.agq import connection, server
from farro.agq.handlers import connection as connecting
from farro.sandbox import callers
from support import eventually


def lives(front: Front) -> bool:
    with contextlib.closing(Raw(front.port)) as raw:
        raw.send(command("PING"))
        return raw.line() in (b"+PONG\r\n", b"-NOAUTH Authentication required.\r\n")


@pytest.mark.parametrize(
    "data",
    [
        b"*99999999999\r\n",
        b"*-5\r\n",
        b"*2\r\n$4\r\nPING\r\n$-7\r\n",
        b"*1\r\n$4294967296\r\n",
        b"*1\r\n+PING\r\n",
        b"*1\r\n*1\r\n*1\r\n*1\r\n",
        b"POST /queue HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nLPUSH queue:ready x\r\n",
        b"GET / HTTP/1.1\r\n",
        b"Host: x\r\n",
        b"\x16\x03\x01\x00\xa5\x01\x00\n",
        b"x" * (1 << 17),
        b"\xff\xfe\n",
    ],
)
def test_malformed_input_is_answered_and_closed_at_once(front: Front, data: bytes) -> None:
    raw = front.raw()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        raw.send(data)
    said = raw.rest()
    assert said == b"" or (said.startswith(b"-ERR Protocol error: ") and said.count(b"\r\n") == 1)
    assert lives(front)
    assert front.store.list() == []


def test_commands_before_malformed_input_are_answered(front: Front) -> None:
    raw = front.raw()
    raw.send(command("PING") + command("LLEN", "queue:ready") + b"*x\r\n" + command("PING"))
    assert raw.rest().startswith(b"+PONG\r\n:0\r\n-ERR Protocol error")


def test_garbage_is_an_unknown_command_and_is_not_echoed_raw(front: Front) -> None:
    raw = front.raw()
    raw.send(command(b"\x1b[31m\r\nEVIL" * 50, "x") + command(b"\xff\xff"))
    one, two = raw.line(), raw.line()
    assert one.startswith(b"-ERR unknown command '?[31m")
    assert b"\x1b" not in one + two
    assert len(one) < 200


def test_an_unauthenticated_client_may_send_little_and_not_for_long(
    make_front: Callable[..., Front], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "AUTH_S", 0.3)
    front = make_front(key="secret")
    for data in (
        command("LPUSH", "queue:ready", "x" * 5000),
        b"*17\r\n",
        b"x" * 5000,
        command("AUTH", "x" * 5000),
        b"*2\r\n$4\r\nAUTH\r\n$4096\r\n" + b"x" * 20_000,
    ):
        raw = front.raw()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            raw.send(data)
        assert raw.rest()[:5] in (b"-ERR ", b"-NOAU", b"")
    raw = front.raw()
    raw.send(command("LPUSH", "queue:ready", job("a")) + command("KEYS", "*") + command("JOB.LIST"))
    assert [raw.line() for _ in range(3)] == [b"-NOAUTH Authentication required.\r\n"] * 3
    assert raw.rest() == b"", "who does not say the key is let go"
    assert lives(front)


def test_a_command_that_arrives_too_slowly_is_dropped(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "COMMAND_S", 0.3)
    raw = front.raw()
    raw.send(b"*2\r\n$3\r\nGET\r\n$50\r\n")
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(400):
            raw.send(b"x" if _ < 40 else b"")
            raw.socket.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                if raw.socket.recv(1) == b"":
                    break
        else:
            pytest.fail("it drips for ever")
    assert lives(front)


def test_more_connections_than_allowed_are_refused(make_front: Callable[..., Front]) -> None:
    front = make_front(max_connections=3)
    kept = [front.raw() for _ in range(3)]
    for raw in kept:
        raw.send(command("PING"))
        assert raw.line() == b"+PONG\r\n"
    assert front.raw().rest() == b"-ERR max number of clients reached\r\n"
    kept[0].close()
    eventually(lambda: lives(front), "a place is free again")


def test_a_very_large_pipeline_is_answered_piece_by_piece(front: Front) -> None:
    """It waits in the sender's buffers while a command runs: nothing of it is lost, and little of it is kept."""
    raw = front.raw()
    raw.socket.settimeout(0.2)
    piece = command("LLEN", "queue:ready") * 200
    sent = received = 0
    want = 40 * len(piece)
    data = piece * 40
    until = time.monotonic() + 60
    most = 0
    while received < 40 * 200 * 4:
        assert time.monotonic() < until
        if sent < want:
            with contextlib.suppress(TimeoutError, BlockingIOError):
                sent += raw.socket.send(data[sent : sent + 65536])
        with contextlib.suppress(TimeoutError, BlockingIOError):
            raw.socket.settimeout(0.001 if sent < want else 0.2)
            received += len(raw.socket.recv(65536))
        raw.socket.settimeout(0.01)
        most = max([most, *(each._parser.waiting for each in front.server.connections.values())])
    assert received == 40 * 200 * len(b":0\r\n")
    assert most <= connection.AHEAD + (512 << 10)


def test_a_client_that_does_not_read_is_not_served_and_then_disconnected(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "READ_S", 0.5)
    raw = front.raw()
    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.socket.settimeout(0.5)
    flood = command("INFO") * 500
    with contextlib.suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
        for _ in range(400):
            raw.socket.sendall(flood)
    eventually(lambda: not front.server.connections, "it is let go")
    assert lives(front)


def test_a_subscriber_that_does_not_read_is_disconnected(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "UNREAD_MESSAGES", 100_000)
    raw = front.raw()
    raw.send(command("SUBSCRIBE", "job:updates"))
    raw.rest_until(b":1\r\n")
    loop = front.server._loop
    assert loop is not None
    for _ in range(200):
        loop.call_soon_threadsafe(front.server.channels.publish, b"job:updates", [b"x" * 100_000])
    eventually(lambda: not front.server.connections, "it is let go")


def test_five_hundred_slow_connections_cost_little_and_delay_no_other(
    make_front: Callable[..., Front], figure: Callable[..., None]
) -> None:
    front = make_front(max_connections=600)
    before = _rss()
    slow = [front.raw() for _ in range(500)]
    for raw in slow:  # each announces 60 KB, and sends a little of it
        raw.send(b"*3\r\n$5\r\nLPUSH\r\n$11\r\nqueue:ready\r\n$60000\r\n" + b"x" * 2000)
    eventually(lambda: len(front.server.connections) == 500, "all are there")
    greedy = [front.raw() for _ in range(20)]
    refused = 0
    for raw in greedy:
        raw.send(b"*3\r\n$5\r\nLPUSH\r\n$11\r\nqueue:ready\r\n$16777216\r\n")
    for raw in greedy:
        raw.socket.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            refused += raw.socket.recv(200).startswith(b"-ERR Protocol error: too much input is under way")
    assert refused >= 4, "what is announced on all connections together is bounded"
    client = front.client()
    assert client.ping() is True
    assert client.lpush("queue:ready", job("a")) == 1
    grown = _rss() - before
    figure("RSS of 500 slow connections", round(grown / (1 << 20), 1), "MiB")
    assert grown < 100 << 20
    for raw in greedy:
        raw.close()
    eventually(lambda: front.server._in_flight == 0, "what they announced is free again")


def _rss() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_memory_of_large_commands_is_released_in_a_pipeline(front: Front) -> None:
    raw = front.raw()
    big = command("LPUSH", "queue:ready", b"x" * 100_000)
    raw.send(big + big + command("PING"))
    assert [raw.line()[:5] for _ in range(3)] == [b"-ERR ", b"-ERR ", b"+PONG"]
    assert front.server._in_flight == 0
    raw.send(big[:-50_000])
    eventually(lambda: front.server._in_flight == len("LPUSHqueue:ready") + 100_000, "it is counted while it comes")
    raw.close()
    eventually(lambda: front.server._in_flight == 0, "and not any more")


def test_a_hostile_result_writes_nowhere_else(front: Front) -> None:
    client = front.client()
    client.lpush("queue:ready", job("a"))
    client.rpop("queue:ready")
    steps = [
        {"step_number": 1, "id": "../../../evil", "stdout": "x", "exit_code": 0, "success": True},
        {
            "step_number": 999,
            "id": "/etc/evil",
            "stdout": "y",
            "exit_code": 0,
            "success": True,
            "stdout_path": "/etc/x",
            "added_by": "1",
        },
    ]
    client.set("job:a:result", json.dumps({"plan_id": "plan-of-a", "success": True, "step_results": steps}))
    answer = json.loads(client.get("job:a:result"))
    assert [step["id"] for step in answer["step_results"]] == ["1", "999"]
    assert [step["stdout_path"] for step in answer["step_results"]] == ["steps/1/stdout", "steps/999/stdout"]


@pytest.mark.parametrize("key", ["job:../a:result", "job:a/b", "queue:../../x", "worker:../x:alive", "job:"])
def test_keys_are_never_paths(front: Front, key: str) -> None:
    raw = front.raw()
    for words in (
        ("GET", key),
        ("SET", key, "1"),
        ("LLEN", key),
        ("HGETALL", key),
        ("EXISTS", key),
        ("LPUSH", key, "x"),
    ):
        raw.send(command(*words))
        assert raw.line()[:1] in (b"$", b"-", b":", b"*")


def test_guessing_keys_is_slow_and_logged_and_ends_the_connection(make_front: Callable[..., Front]) -> None:
    front = make_front(key="open sesame")
    raw = front.raw()
    raw.send(command("AUTH", "guess") * (connecting.WRONG_KEYS + 1))
    said = [raw.line() for _ in range(connecting.WRONG_KEYS)]
    assert all(line.startswith(b"-WRONGPASS") for line in said)
    assert raw.line() == b""  # closed before the last key was checked
    times = [fields["times"] for _, message, fields in front.log if message == "a wrong key"]
    assert times == list(range(1, connecting.WRONG_KEYS + 1))
    assert not any("guess" in str(entry) for entry in front.log)


def test_a_server_without_a_key_refuses_whom_it_must_not_serve(
    make_front: Callable[..., Front], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user, or a sandboxed process whose job has a network. [test_callers.py has who that is]"""
    monkeypatch.setattr(callers, "refusals", lambda connections: ["it is somebody else" for _ in connections])
    front = make_front()
    raw = front.raw()
    raw.send(command("PING"))
    assert raw.line() == (
        b"-NOPERM this server has no key (agq.key) and serves its own user only: it is somebody else\r\n"
    )
    assert raw.line() == b""
    assert ("warning", "a client was refused") in [entry[:2] for entry in front.log]
    with_key = make_front(key="sesame").raw()
    with_key.send(command("AUTH", "sesame"))
    assert with_key.line() == b"+OK\r\n"
