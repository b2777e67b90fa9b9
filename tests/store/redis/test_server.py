"""The server goes away, comes back, is full, old, foreign or strict: what stays, and which error is shown."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hiredis
import pytest

from farro.errors import ClaimLost, FarroError, InputError, NotPermitted, NotReplicated, StorageTrouble
from farro.jobs.outcomes import Succeeded
from farro.jobs.states import Reason, Status
from farro.store.port import Agent
from farro.store.redis import RedisStore, checks
from one_job import claim_one, commit_one, release_one
from redis_rig import Rig, life
from servers import RedisServer, free_port
from stage import plan, report, submission
from support import ROOT, need

PATIENCE_S = 60.0


@contextlib.contextmanager
def rigged(server: RedisServer, folder: Path) -> Iterator[Rig]:
    rig = Rig(folder, server.url)
    try:
        yield rig
    finally:
        rig.close()
        server.stop()


def work_all(store: RedisStore, agent: Agent) -> int:
    done = 0
    while (claim := claim_one(store, agent)) is not None:
        commit_one(store, claim, Succeeded(report=report(claim)))
        done += 1
    return done


# --- killed ---


def test_acknowledged_changes_survive_a_kill_of_the_server(tmp_path: Path) -> None:
    server = RedisServer(folder=tmp_path / "redis", durable=True).start()
    with rigged(server, tmp_path) as rig:
        store = rig.store(real=True)
        agent = store.join("w", role="Runner")
        made = [job.id for job in store.enqueue_many([submission(n) for n in range(30)])]
        claims = [claim_one(store, agent) for _ in range(6)]
        for claim in claims[:3]:
            assert claim is not None
            commit_one(store, claim, Succeeded(report=report(claim)))
        server.kill()
        server.start()  # which lost the scripts
        assert [view.job_id for view in store.list()] == made
        assert store.count()[Status.SUCCEEDED] == 3
        for claim in claims[3:]:
            assert claim is not None
            assert commit_one(store, claim, Succeeded(report=report(claim))).status is Status.SUCCEEDED
        assert work_all(store, agent) == 24
        assert store.count()[Status.SUCCEEDED] == 30


def test_a_server_killed_during_work_loses_nothing(tmp_path: Path, figure: Callable[..., None]) -> None:
    server = RedisServer(folder=tmp_path / "redis", durable=True).start()
    with rigged(server, tmp_path) as rig:
        acknowledged: list[str] = []
        committed: list[str] = []
        troubles: list[BaseException] = []
        stop = threading.Event()

        def submit() -> None:
            try:
                store = rig.store(real=True, retry_s=PATIENCE_S)
                while not stop.is_set():
                    acknowledged.append(store.enqueue(submission()))
            except BaseException as error:
                troubles.append(error)

        def work() -> None:
            try:
                store = rig.store(real=True, retry_s=PATIENCE_S, lease_s=600)
                agent = store.join("w", role="Runner")
                while not stop.is_set() or threads[0].is_alive() or store.count()[Status.QUEUED]:
                    claim = claim_one(store, agent)
                    if claim is None:
                        continue
                    with contextlib.suppress(ClaimLost):
                        commit_one(store, claim, Succeeded(report=report(claim)))
                        committed.append(claim.job_id)
            except BaseException as error:
                troubles.append(error)

        threads = [threading.Thread(target=call) for call in (submit, work, work)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            goal, until = len(committed) + 20, time.monotonic() + PATIENCE_S
            while len(committed) < goal and not troubles and time.monotonic() < until:
                time.sleep(0.01)
            server.kill()
            server.start()
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert troubles == []
        store = rig.store(real=True)
        views = {view.job_id: view for view in store.list()}
        assert set(acknowledged) <= set(views), "LOST"
        assert len(committed) == len(set(committed)), "ACCEPTED TWICE"
        for job_id in committed:
            assert [hop.reason for hop in views[job_id].lifecycle.hops] == [Reason.COMMITTED]
        assert {view.status for view in views.values()} == {Status.SUCCEEDED}
        figure("redis: jobs done while the server was killed three times", len(committed), "jobs")


def test_a_server_that_is_away_for_a_while_ends_no_attempt(tmp_path: Path) -> None:
    server = RedisServer(folder=tmp_path / "redis", durable=True).start()
    with rigged(server, tmp_path) as rig:
        store = rig.store(lease_s=600.0, beat_s=0.0)
        store.enqueue(submission())
        agent = store.join("w", role="Runner")
        claim = claim_one(store, agent)
        assert claim is not None
        server.kill()
        for _ in range(5):
            rig.clock.advance(2)
            store.heartbeat(agent, claim)  # the server does not hear it, but the attempt goes on
        assert store.next_due("Runner") is None
        server.start()
        assert commit_one(store, claim, Succeeded(report=report(claim))).status is Status.SUCCEEDED
        server.kill()
        store.leave(agent)  # the server does not hear it: the lease ends by itself
        server.start()
        assert [view.id for view in store.agents()] == [agent.id]


def test_scripts_that_the_server_forgot_are_sent_again(rig: Rig) -> None:
    store = rig.store()
    store.enqueue(submission())
    agent = store.join("w", role="Runner")
    for _ in range(3):
        store._context.client.call("SCRIPT", "FLUSH")
        claim = claim_one(store, agent)
        assert claim is not None
        store._context.client.call("SCRIPT", "FLUSH")
        release_one(store, claim)


def test_a_waiter_for_changes_gets_a_gap_after_the_server_was_away(tmp_path: Path) -> None:
    server = RedisServer(folder=tmp_path / "redis", durable=True).start()
    with rigged(server, tmp_path) as rig:
        store = rig.store(real=True)
        cursor = store.changes(None, role="Runner").cursor
        answers: list[object] = []
        thread = threading.Thread(
            target=lambda: answers.append(store.changes(cursor, role="Runner", timeout_s=PATIENCE_S))
        )
        thread.start()
        until = time.monotonic() + PATIENCE_S
        while b"cmd=xread" not in store._context.client.call("CLIENT", "LIST") and time.monotonic() < until:
            time.sleep(0.01)
        server.kill()
        server.start()
        thread.join(PATIENCE_S)
        assert [answer.gap for answer in answers] == [True]  # type: ignore[attr-defined]
        cursor = answers[0].cursor  # type: ignore[attr-defined]
        job_id = store.enqueue(submission())
        changes = store.changes(cursor, role="Runner", timeout_s=PATIENCE_S)
        assert [item.job_id for item in changes.items] == [job_id]


def test_a_waiter_sends_no_requests(tmp_path: Path) -> None:
    server = RedisServer(folder=tmp_path / "redis").start()
    with rigged(server, tmp_path) as rig:
        store, other = rig.store(real=True), rig.store(real=True)
        cursor = store.changes(None, role="Runner").cursor
        answers: list[object] = []
        thread = threading.Thread(
            target=lambda: answers.append(store.changes(cursor, role="Runner", timeout_s=PATIENCE_S))
        )
        thread.start()

        until = time.monotonic() + PATIENCE_S
        blocked = rb" idle=[1-9]\d* flags=b .* cmd=xread"  # idle for a second, and blocked in the server
        while not re.search(blocked, other._context.client.call("CLIENT", "LIST")):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert answers == []
        job_id = other.enqueue(submission())
        thread.join(PATIENCE_S)
        assert [item.job_id for item in answers[0].items] == [job_id]  # type: ignore[attr-defined]


# --- errors ---


def test_an_unreachable_server_has_a_helpful_error(rig: Rig) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    store = rig.store(url=url, retry_s=2.0)
    before = rig.clock.monotonic_s()
    with pytest.raises(StorageTrouble, match="no answer from the Redis server") as caught:
        store.enqueue(submission())
    assert url in str(caught.value)
    assert f"redis-cli -u {url} PING" in str(caught.value)
    assert "not known" not in str(caught.value), "nothing was sent"
    assert 2.0 <= rig.clock.monotonic_s() - before < 4.0, "tried for that long"
    with pytest.raises(StorageTrouble):
        store.changes(None)


def test_a_wrong_password_has_a_helpful_error_and_is_never_shown(tmp_path: Path) -> None:
    server = RedisServer(folder=tmp_path / "redis", options=("--requirepass", "right")).start()
    with rigged(server, tmp_path) as rig:
        for password in (None, "wr0ng-secret"):
            with pytest.raises(InputError, match=r"redis\.password") as caught:
                rig.store(password=password).enqueue(submission())
            assert "wr0ng-secret" not in str(caught.value)
            assert caught.value.__context__ is None or "wr0ng-secret" not in str(caught.value.__context__)
        store = rig.store(password="right")
        assert store.enqueue(submission())
        assert "right" not in repr(store._context)


def test_an_old_server_has_a_helpful_error(rig: Rig) -> None:
    with old_server() as url, pytest.raises(InputError, match=r"Redis 6\.2\.14; farro needs Redis 7") as caught:
        rig.store(url=url).enqueue(submission())
    assert "Valkey" in str(caught.value)


@contextlib.contextmanager
def old_server(other: bytes = b"") -> Iterator[str]:
    """Speak enough of the protocol to be asked for a version, or reply `other`."""
    listener = socket.create_server(("127.0.0.1", 0))
    text = b"# Server\r\nredis_version:6.2.14\r\n"

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client:
                    reader = hiredis.Reader()
                    while data := client.recv(4096):
                        reader.feed(data)
                        while (request := reader.gets()) is not False:
                            is_info = request[0].upper() == b"INFO"
                            answer = b"$%d\r\n%b\r\n" % (len(text), text) if is_info else b"+OK\r\n"
                            client.sendall(other or answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def test_a_full_server_starts_no_job_but_running_jobs_end(tmp_path: Path) -> None:
    server = RedisServer(folder=tmp_path / "redis").start()
    with rigged(server, tmp_path) as rig:
        store = rig.store(lease_s=5.0, beat_s=0.0)
        for name in ("done", "runs", "waits"):
            store.enqueue(submission(job_id=name))
        agent, person = store.join("w", role="Runner"), store.join("p", role=None)
        done, runs = claim_one(store, agent), claim_one(store, agent)
        assert done is not None
        assert runs is not None
        commit_one(store, done, Succeeded(report=report(done)))
        store._context.client.call("CONFIG", "SET", "maxmemory", "1")
        for refused in (lambda: store.enqueue(submission()), lambda: claim_one(store, agent)):
            with pytest.raises(StorageTrouble, match=r"full \(maxmemory\)"):
                refused()
        for _ in range(4):  # longer than its lease
            rig.clock.advance(3.0)
            store.heartbeat(agent, runs)
            store.heartbeat(person)
        assert store.recover(person) == []
        assert store.leadership().take()
        assert commit_one(store, runs, Succeeded(report=report(runs))).status is Status.SUCCEEDED
        assert store.kill(person, "waits").status is Status.KILLED
        ended = store.find("done")
        assert ended is not None
        assert store.remove([ended], by="prune").jobs == 1  # `farro prune`, as the message says
        store.note("pruned", actor="prune", removed=1)
        store._context.client.call("CONFIG", "SET", "maxmemory", "0")
        assert {str(status): count for status, count in store.count().items() if count} == {"succeeded": 1, "killed": 1}


def test_a_replica_refuses_jobs_with_a_helpful_error(tmp_path: Path) -> None:
    server = RedisServer(folder=tmp_path / "redis").start()
    with rigged(server, tmp_path) as rig:
        store = rig.store(retry_s=1.0)
        store._context.client.call("REPLICAOF", "127.0.0.1", free_port())
        with pytest.raises(StorageTrouble, match="is a replica"):
            store.enqueue(submission())


def test_another_server_than_redis_has_a_helpful_error(rig: Rig) -> None:
    with old_server(b"HTTP/1.1 400 Bad Request\r\n") as url, pytest.raises(StorageTrouble, match="is not Redis"):
        rig.store(url=url, retry_s=0.5).enqueue(submission())
    with pytest.raises(InputError, match="not an address"):
        rig.store(url="redis://127.0.0.1:6379/first").enqueue(submission())


# --- other connections ---


def test_a_unix_socket_and_another_database_work(tmp_path: Path, shm: Path) -> None:
    path = f"{shm}/redis.sock"
    server = RedisServer(folder=tmp_path / "redis", options=("--unixsocket", path)).start()
    with rigged(server, tmp_path) as rig:
        store = rig.store(url=f"unix://{path}?db=3")
        job_id = store.enqueue(submission())
        assert rig.store(url=f"redis://localhost:{server.port}/3").find(job_id) is not None
        assert rig.store().find(job_id) is None, "that is database 0"
        with pytest.raises(FarroError, match="DB index is out of range"):
            rig.store(url=f"redis://127.0.0.1:{server.port}/99").enqueue(submission())


def test_tls_needs_a_certificate_that_is_trusted(tmp_path: Path) -> None:
    need("openssl")
    key, cert = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", cert]
    subprocess.run([*made, *subject], check=True, capture_output=True)
    port = free_port()
    options = ("--tls-port", str(port), "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)
    server = RedisServer(folder=tmp_path / "redis", options=(*options, "--tls-auth-clients", "no")).start()
    with rigged(server, tmp_path) as rig:
        url = f"rediss://localhost:{port}/0"
        with pytest.raises(InputError, match="certificate is not trusted"):
            rig.store(url=url).enqueue(submission())
        store = rig.store(url=f"{url}?ssl_ca_certs={cert}", real=True)
        cursor = store.changes(None, role="Runner").cursor
        job_id = store.enqueue(submission())
        assert [item.job_id for item in store.changes(cursor, role="Runner", timeout_s=PATIENCE_S).items] == [job_id]
        assert work_all(store, store.join("w", role="Runner")) == 1
        with pytest.raises(InputError, match="cannot be read"):
            rig.store(url=f"{url}?ssl_ca_certs={tmp_path}/none").enqueue(submission())


# --- replicas ---


def test_acknowledged_changes_have_reached_the_configured_replicas(tmp_path: Path) -> None:
    server = RedisServer(folder=tmp_path / "redis").start()
    replica = RedisServer(folder=tmp_path / "replica", options=("--replicaof", f"127.0.0.1 {server.port}")).start()
    try:
        with rigged(server, tmp_path) as rig:
            plain = rig.store()
            until = time.monotonic() + PATIENCE_S
            while b"state=online" not in plain._context.client.call("INFO", "replication"):
                assert time.monotonic() < until
                time.sleep(0.02)
            store = rig.store(wait_replicas=1, wait_s=30.0)
            store.enqueue(submission(job_id="safe"))
            copy = rig.store(url=replica.url)
            found = copy._context.client.call("HGET", copy._context.keys.job("safe"), "wh")
            assert found == b"queued"
            before = store._context.client.requests
            store.enqueue(submission(job_id="safe-too"))
            assert store._context.client.requests == before + 1, "the wait goes with the request"
            replica.kill()
            short = rig.store(wait_replicas=1, wait_s=0.05)
            with pytest.raises(NotReplicated, match="done on the master, but only 0 of 1 replicas"):
                short.enqueue(submission(job_id="alone"))
            assert plain.find("alone") is not None
    finally:
        replica.stop()


# --- rights ---


def acl_line() -> str:
    text = (Path(ROOT) / "docs/redis.md").read_text(encoding="utf-8")
    found = re.search(r"^ACL SETUSER farro .*$", text, re.MULTILINE)
    assert found is not None, "docs/redis.md has no ACL SETUSER line"
    return found[0].replace("NAME", "PLACE").replace(">PASSWORD", ">secret")


def test_doctor_checks_every_right_of_the_documentation() -> None:
    written = {word[1:].upper() for word in acl_line().split() if word.startswith("+")}
    assert set(checks.COMMANDS) == written


def test_the_rights_of_the_documentation_are_enough_and_no_more(tmp_path: Path) -> None:
    server = RedisServer(folder=tmp_path / "redis").start()
    with rigged(server, tmp_path) as rig:
        admin = rig.store()
        rig.name = "PLACE"
        admin._context.client.call(*acl_line().split())
        store = rig.store(user="farro", password="secret", beat_s=0.0)
        life(store)
        store.enqueue(submission(job_id="j"))
        view = store.find("j")
        assert view is not None
        assert store.folder(view)
        assert store.list()
        assert list(store.audit_lines())
        assert store.pending("Runner")
        assert store.load(None)
        assert store.next_due("Runner") is None
        cursor = store.changes(None, role="Runner").cursor
        store.enqueue(submission())
        assert store.changes(cursor, role="Runner", timeout_s=PATIENCE_S).items
        leadership = store.leadership()
        assert leadership.take()
        assert leadership.silent_s() is not None
        leadership.drop()
        for beyond in (("FLUSHALL",), ("KEYS", "*"), ("CONFIG", "GET", "*"), ("GET", "elsewhere"), ("ACL", "LIST")):
            with pytest.raises(NotPermitted, match=r"docs/redis\.md"):
                store._context.client.call(*beyond)
        rig.name = "another"
        with pytest.raises(FarroError):
            rig.store(user="farro", password="secret").enqueue(submission(plan_id=plan()["plan_id"]))
