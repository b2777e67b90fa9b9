"""Servers that refuse for a while, replicas that lag, late answers: what is retried, and what is guaranteed."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hiredis
import pytest

from farro.errors import NotReplicated
from farro.jobs.outcomes import Succeeded
from farro.store.redis.client import RedisAddress, RedisConnection, pack
from one_job import claim_one, commit_one
from redis_rig import Rig, proxied
from servers import RedisServer, free_port
from stage import report, submission
from support import eventually, need

PATIENCE_S = 60.0


@contextlib.contextmanager
def served(folder: Path, *options: str) -> Iterator[tuple[RedisServer, Rig]]:
    server = RedisServer(folder=folder / "redis", options=options).start()
    rig = Rig(folder, server.url)
    try:
        yield server, rig
    finally:
        rig.close()
        server.stop()


class Admin:
    """A connection that stays open when the server accepts no more."""

    def __init__(self, url: str) -> None:
        self._link = RedisConnection(RedisAddress(url=url), 30.0)

    def ask(self, *command: str) -> Any:
        self._link.send(pack(command))
        answer = self._link.receive()
        assert not isinstance(answer, hiredis.ReplyError), answer
        return answer

    def close(self) -> None:
        self._link.close()


@pytest.mark.parametrize(
    ("setting", "strict", "lax", "sign"),
    [
        ("maxclients", "1", "100", b"max number of clients"),
        ("min-replicas-to-write", "1", "0", b"NOREPLICAS"),
    ],
)
def test_a_passing_refusal_is_retried(tmp_path: Path, setting: str, strict: str, lax: str, sign: bytes) -> None:
    with served(tmp_path) as (server, rig):
        admin = Admin(server.url)
        store = rig.store(real=True, retry_s=PATIENCE_S)
        store.find("nothing")
        store._context.client.drop()
        admin.ask("CONFIG", "SET", setting, strict)
        made = []
        thread = threading.Thread(target=lambda: made.append(store.enqueue(submission(job_id="j"))), daemon=True)
        thread.start()

        def refused() -> bool:
            info = admin.ask("INFO", "everything")
            return b"errorstat_NOREPLICAS" in info or b"rejected_connections:0" not in info or not thread.is_alive()

        eventually(refused)
        admin.ask("CONFIG", "SET", setting, lax)
        thread.join(PATIENCE_S)
        assert made == ["j"], sign
        admin.close()


@pytest.mark.parametrize("what", ["enqueue", "commit"])
def test_a_repeated_call_waits_for_the_replicas_as_the_first_did(tmp_path: Path, what: str) -> None:
    with served(tmp_path, "--repl-diskless-sync-delay", "0") as (server, rig):
        options = ("--replicaof", f"127.0.0.1 {server.port}")
        replica = RedisServer(folder=tmp_path / "replica", options=options).start()
        assert replica.process is not None
        try:
            plain = rig.store()
            eventually(lambda: b"state=online" in plain._context.client.call("INFO", "replication"))
            with proxied(server.port) as proxy:
                store = rig.store(url=proxy.url, wait_replicas=1, wait_s=0.3)
                other = plain.join("w", role="Runner")  # now the server knows the scripts
                mine = plain.enqueue_claimed(other, submission(job_id="other"))
                assert mine is not None
                commit_one(plain, mine, Succeeded(report=report(mine)))
                plain.enqueue(submission(job_id="known"))
                claim = claim_one(store, store.join("w", role="Runner"))
                assert claim is not None
                replica.process.send_signal(signal.SIGSTOP)
                proxy.cut, proxy.after = len(proxy.requests), True
                calls: dict[str, Callable[[], object]] = {
                    "enqueue": lambda: store.enqueue(submission(job_id="j")),
                    "commit": lambda: commit_one(store, claim, Succeeded(report=report(claim))),
                }
                with pytest.raises(NotReplicated):
                    calls[what]()
                assert proxy.cuts == 1
                store._context.client.close()
        finally:
            replica.process.send_signal(signal.SIGCONT)
            replica.stop()


def test_a_repeated_call_does_not_take_back_a_reassigned_name(rig: Rig) -> None:
    store = rig.store()
    server, sent = store._context.client, []
    run = server.run

    def noted(script: Any, *args: Any, **how: Any) -> Any:
        sent.append((script, args))
        return run(script, *args, **how)

    server.run = noted  # type: ignore[method-assign]
    store.enqueue_named("nightly", submission(1, job_id="one"))
    ((script, args),) = sent
    server.run = run  # type: ignore[method-assign]
    store.enqueue_named("nightly", submission(2, job_id="two"), instead_of="one")
    answer = server.call("EVALSHA", script.sha, 1, store._context.keys.prefix, *args, 1)
    assert answer[:2] == [b"ok", [1]], "the first call's own work"
    assert store.names() == {"nightly": "two"}


def test_a_copied_folder_shows_the_job_as_it_was_read(rig: Rig) -> None:
    store = rig.store()
    store.enqueue(submission(job_id="j"))
    before = store.find("j")
    assert before is not None
    claim = claim_one(store, store.join("w", role="Runner"))
    assert claim is not None
    commit_one(store, claim, Succeeded(report=report(claim)))
    store.folder(before)  # the job as it was read before
    now = store.find("j")
    assert now is not None
    record = json.loads(Path(store.folder(now), "job.json").read_bytes())
    assert record["status"] == "succeeded"


def test_a_client_that_waits_over_tls_is_woken(tmp_path: Path) -> None:
    need("openssl")
    key, cert = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", cert]
    subprocess.run([*made, *subject], check=True, capture_output=True)
    port = free_port()
    options = ("--tls-port", str(port), "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)
    with served(tmp_path, *options, "--tls-auth-clients", "no") as (_, rig):
        store = rig.store(url=f"rediss://localhost:{port}/0?ssl_ca_certs={cert}", real=True)
        cursor = store.changes(None, role="Runner").cursor
        wait = {"role": "Runner", "timeout_s": PATIENCE_S}
        thread = threading.Thread(target=lambda: store.changes(cursor, **wait), daemon=True)  # type: ignore[arg-type]
        thread.start()
        eventually(lambda: b"blocked_clients:1" in store._context.client.call("INFO", "clients"))
        time.sleep(0.3)  # let it start to wait
        store.wake("Runner")
        thread.join(15)  # the server answers by itself only after 30 s
        assert not thread.is_alive()
