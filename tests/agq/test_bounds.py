"""What one client, and all together, can make the server keep; and which clients are disconnected."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from agq.stage import Front, command, job
from farro.agq import connection, resp
from farro.agq.handlers import queues
from farro.agq.keys import GlobPattern
from farro.agq.server import IN_FLIGHT
from support import eventually


def test_many_small_arguments_count_as_one_large_one() -> None:
    asked: list[int] = []

    def reserve(size: int) -> bool:
        asked.append(size)
        return sum(asked) <= 1 << 20

    parser = resp.Parser(resp.AUTHENTICATED, reserve)
    parser.feed(b"*100\r\n" + 100 * (b"$60000\r\n" + b"x" * 60_000 + b"\r\n"))
    with pytest.raises(resp.Malformed, match="too much input"):
        parser.next()
    assert parser.reserved <= 1 << 20


def test_commands_between_multi_and_exec_are_bounded(front: Front) -> None:
    raw = front.raw()
    large = command("SET", "job:a:stdout", b"x" * 1_000_000)
    raw.send(command("MULTI"))
    assert raw.line() == b"+OK\r\n"
    said = b""
    for _ in range(64):
        raw.send(large)
        said = raw.line()
        if said != b"+QUEUED\r\n":
            break
    assert said.startswith(b"-ERR")
    assert 0 < front.server._in_flight <= IN_FLIGHT
    raw.send(command("EXEC"))
    assert raw.line().startswith(b"-EXECABORT")
    assert front.server._in_flight == 0
    raw.send(command("MULTI") + large)
    assert [raw.line(), raw.line()] == [b"+OK\r\n", b"+QUEUED\r\n"]
    raw.close()
    eventually(lambda: front.server._in_flight == 0, "what it kept is free")


def test_the_answers_of_one_exec_are_bounded(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWERS", 5000)
    pipe = front.client().pipeline(transaction=True)
    for _ in range(20):
        pipe.info()
    replies = pipe.execute(raise_on_error=False)
    assert isinstance(replies[0], dict)
    assert isinstance(replies[-1], redis.ResponseError)
    assert len(replies) == 20


def test_channel_names_are_bounded(front: Front) -> None:
    client = front.client()
    for word in ("SUBSCRIBE", "PSUBSCRIBE"):
        with pytest.raises(redis.ResponseError, match="at most 1024 bytes"):
            client.execute_command(word, "x" * 1025)


def test_client_info_accepts_only_the_library(front: Front) -> None:
    client = front.client()
    client.execute_command("CLIENT", "SETINFO", "LIB-NAME", "mine")
    for number in range(3):
        with pytest.raises(redis.ResponseError, match="LIB-NAME"):
            client.execute_command("CLIENT", "SETINFO", f"more-{number}", "x")


def test_the_jobs_in_one_reply_are_bounded(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "SHOWN_BYTES", 300)
    client = front.client()
    client.lpush("queue:ready", *(job(f"j{number}") for number in range(20)))
    assert 1 <= len(client.lrange("queue:ready", 0, -1)) < 20
    popped = client.rpop("queue:ready", 20)
    assert 1 <= len(popped) < 20
    while client.rpop("queue:ready", 20):
        pass
    assert 1 <= len(client.lrange("queue:processing", 0, -1)) < 20


def test_patterns_are_matched_outside_the_event_loop(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    where: list[threading.Thread] = []
    fits = GlobPattern.fits

    def seen(self: GlobPattern, name: bytes) -> bool:
        where.append(threading.current_thread())
        return fits(self, name)

    monkeypatch.setattr(GlobPattern, "fits", seen)
    client = front.client()
    client.lpush("queue:ready", job("a"))
    assert client.keys("job:*") == ["job:a", "job:a:status"]
    assert client.scan(0, _type="hash")[1] == ["job:a"]
    assert client.scan(0, _type="list")[1] == ["queue:ready"]
    assert where
    assert front._thread not in where


# --- disconnected clients ---


@pytest.fixture
def later(front: Front, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let time pass; on return the server has checked all connections."""
    now_s, gone = front.server.now_s, [0.0]
    sweeps: list[Any] = []
    overdue = front.server.workers.overdue
    monkeypatch.setattr(front.server.workers, "overdue", lambda: (sweeps.append(None), overdue())[1])
    monkeypatch.setattr(front.server, "now_s", lambda: now_s() + gone[0])

    def go(seconds: float) -> None:
        gone[0] += seconds
        before = len(sweeps)
        eventually(lambda: len(sweeps) > before + 1, "it looks")

    return go


def test_a_client_whose_pipeline_arrives_in_pieces_is_served(front: Front, later: Callable[[float], None]) -> None:
    raw = front.raw()
    raw.send(b"PING\r\nPI")
    for _ in range(4):
        assert raw.line() == b"+PONG\r\n"
        later(40.0)
        raw.send(b"NG\r\nPI")
    assert raw.line() == b"+PONG\r\n"
    later(61.0)
    assert raw.rest() == b"", "but a command that does not come whole is given up"


def test_a_client_that_quits_and_does_not_read_is_disconnected(
    front: Front, later: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "UNREAD", 64 << 20)  # otherwise it is not read any more, and cannot quit
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect(("127.0.0.1", front.port))
        eventually(lambda: front.server.connections, "it is here")
        (there,) = front.server.connections.values()
        assert there._transport is not None
        text = command("PING", b"x" * 50_000 + b" ")
        while not there._transport.get_write_buffer_size():
            silent.sendall(text)
        silent.sendall(command("QUIT"))
        eventually(lambda: there.closed, "it said goodbye")
        assert there.id in front.server.connections
        later(61.0)
        eventually(lambda: there.id not in front.server.connections, "it is let go")


def test_a_client_that_floods_behind_a_blocking_pop_is_disconnected(front: Front) -> None:
    """Its input is not read any more, so its end would not be noticed: it would wait for ever."""
    raw = front.raw()
    raw.send(command("BRPOP", "queue:ready", "0"))
    eventually(lambda: front.server.waiting().get("Runner") == 1, "it waits")
    with contextlib.suppress(ConnectionError):  # a send may fail before everything is sent
        raw.send(command("PING") * 1_000_000)
    eventually(lambda: not front.server.waiting()["Runner"], "it is let go")


def test_the_facts_of_a_worker_are_bounded(front: Front) -> None:
    client = front.client()
    assert client.hset("worker:w1", mapping={f"f{number}": "x" * 4000 for number in range(3)}) == 3
    with pytest.raises(redis.ResponseError, match="16384"):
        client.hset("worker:w1", mapping={f"g{number}": "x" * 4000 for number in range(3)})
    client.set("worker:w1:tools", "y" * 4000)
    with pytest.raises(redis.ResponseError, match="16384"):
        client.set("worker:w1:tags", "y" * 4000)
