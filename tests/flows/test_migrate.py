"""Move queued jobs between the folders of a root and a Redis server, also when the command is killed midway."""

from __future__ import annotations

import json
import os
import shutil
import uuid
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farro.app import App
from farro.config import reader
from farro.config.settings import RedisSettings, Settings
from farro.doctor.root import init
from farro.host import fs
from farro.host.clock import SystemClock
from farro.queue import migrate
from farro.queue.jobs import operator
from farro.store.port import Store, Submission
from farro.store.redis.client import RedisClient
from flows.program import Program
from one_job import claim_one
from servers import RedisServer
from support import torture

TRUE = {"plan_id": "p", "steps": [{"step_number": 1, "command": "true"}]}
QUEUED = ["first", "second", "urgent", "named", "later", "waits", "last"]


class Two:
    """A root with its folders and its keys in the server."""

    def __init__(self, path: Path, server: RedisServer) -> None:
        self.path = str(path)
        reader.load(self.path)
        self.settings = Settings(
            store=server.url, redis=RedisSettings(name=f"t-{uuid.uuid4().hex[:12]}"), durability="process"
        )

    def open(self, kind: str) -> Store:
        settings = self.settings if kind == "redis" else replace(self.settings, store="files")
        return App().open_store(self.path, settings, brief=True)

    def migrate(self, source: str, target: str) -> migrate.Migration:
        stores = self.open(source), self.open(target)
        try:
            return migrate.migrate(
                *stores, by="me", where=target, clock=SystemClock(), progress=lambda done, total: None
            )
        finally:
            for store in stores:
                store.close()

    def queued(self, kind: str) -> dict[str, tuple[Any, ...]]:
        """Return the queued jobs of a store with everything that must move with them."""
        store = self.open(kind)
        try:
            names = {job_id: name for name, job_id in store.names().items()}
            return {
                view.job_id: (
                    view.lifecycle.role,
                    view.lifecycle.not_before,
                    view.waits_for,
                    names.get(view.job_id),
                    _folder(store.folder(view)),
                )
                for view in store.list()
                if not view.lifecycle.terminal
            }
        finally:
            store.close()

    def order(self, kind: str) -> list[str]:
        store = self.open(kind)
        try:
            agent = store.join("w", role="Runner")
            found = []
            while (claim := claim_one(store, agent)) is not None:
                found.append(claim.job_id)
            return found
        finally:
            store.close()


def _folder(path: str) -> dict[str, bytes]:
    names = ("prompt.json", "prompt.md", "payload/data.json")
    data = {name: Path(path, name).read_bytes() for name in names if Path(path, name).exists()}
    return {**data, "prompt.json": json.dumps(json.loads(data["prompt.json"]), sort_keys=True).encode()}


def few(store: Store) -> None:
    """Queue one job of each kind, for tests that repeat a migration."""
    store.enqueue_named("nightly", Submission(role="Runner", prompt=TRUE, job_id="named", payload={"data.json": b"{}"}))
    store.enqueue(Submission(role="Runner", prompt={**TRUE, "metadata": {"after": ["named"]}}, job_id="waits"))
    store.close()


def fill(store: Store) -> None:
    now = SystemClock().now()
    store.enqueue(Submission(role="Runner", prompt=TRUE, job_id="first", payload={"data.json": b"{}"}, narrative="why"))
    store.enqueue(Submission(role="Runner", prompt=TRUE, job_id="second"))
    store.enqueue(Submission(role="Runner", prompt={**TRUE, "metadata": {"priority": "P0"}}, job_id="urgent"))
    store.enqueue_named("nightly", Submission(role="Runner", prompt=TRUE, job_id="named"))
    store.enqueue(Submission(role="Runner", prompt=TRUE, job_id="later", not_before=now.replace(year=now.year + 1)))
    store.enqueue(Submission(role="Runner", prompt={**TRUE, "metadata": {"after": ["second"]}}, job_id="waits"))
    store.enqueue(
        Submission(role="Runner", prompt={**TRUE, "metadata": {"after_any": ["waits", "first"]}}, job_id="last")
    )
    store.close()


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bare")
    init(str(path), Settings())
    return path


@pytest.fixture
def two(bare: Path, tmp_path: Path, redis_server: RedisServer) -> Callable[[], Two]:
    def make() -> Two:
        path = tmp_path / uuid.uuid4().hex[:8]
        shutil.copytree(bare, path)
        return Two(path, redis_server)

    return make


@pytest.mark.parametrize(("source", "target"), [("files", "redis"), ("redis", "files")])
def test_migration_keeps_jobs_and_their_order(two: Callable[[], Two], source: str, target: str) -> None:
    here = two()
    fill(here.open(source))
    before = here.queued(source)
    told = here.migrate(source, target)
    assert told.moved == told.moves
    assert sorted(told.moved) == sorted(QUEUED)
    assert here.queued(source) == {}
    assert here.queued(target) == before
    assert here.order(target) == ["urgent", "first", "second", "named"]


@pytest.mark.parametrize(("source", "target"), [("files", "redis"), ("redis", "files")])
def test_migration_killed_at_any_call_neither_loses_nor_duplicates_a_job(
    two: Callable[[], Two], source: str, target: str
) -> None:
    made = fill if torture() else few
    here = two()
    made(here.open(source))
    before, calls = here.queued(source), killed_at(here, source, target, 0)
    assert calls > 40
    for number in range(1, calls + 1):
        here = two()
        made(here.open(source))
        killed_at(here, source, target, number)
        both = {**here.queued(source), **here.queued(target)}
        assert not set(here.queued(source)) & set(here.queued(target)), f"in two queues, killed at call {number}"
        recovered(here)
        here.migrate(source, target)
        assert here.queued(source) == {}, f"killed at call {number}"
        after = here.queued(target)
        assert after.keys() == before.keys(), f"killed at call {number}: {before.keys() - after.keys()}"
        for job_id, told in after.items():
            assert told[2:] == before[job_id][2:], f"{job_id}, killed at call {number}"
        assert len(both) <= len(before)


def recovered(here: Two) -> None:
    """Recover as any watchdog does after the operator was killed."""
    for kind in ("files", "redis"):
        store = here.open(kind)
        with operator(store, "watchdog") as agent:
            store.recover(agent)
        store.close()


def killed_at(here: Two, source: str, target: str, number: int) -> int:
    """Migrate in a child process that is killed before its n-th call to the disk or the server (0: never).

    Return the number of calls.
    """
    end, told = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about a fork with threads: the child uses none of them
        pid = os.fork()
    if pid == 0:
        try:
            count = _Counted(number)
            fs.set_seam(count)
            ask = RedisClient._exchange

            def exchange(*args: Any) -> Any:
                count.one()
                return ask(*args)

            RedisClient._exchange = exchange  # type: ignore[method-assign]
            here.migrate(source, target)
            os.write(told, str(count.calls).encode())
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(3)
    os.close(told)
    with os.fdopen(end) as answer:
        said = answer.read()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) in ((0,) if number == 0 else (0, 9))
    return int(said or 0)


class _Counted:
    def __init__(self, number: int) -> None:
        self.calls = 0
        self._number = number

    def one(self) -> None:
        self.calls += 1
        if self.calls == self._number:
            os._exit(9)

    def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self.one()
        return call(*args)

    def look(self, op: str, path: str) -> None: ...


def test_started_jobs_are_not_migrated_and_are_counted(two: Callable[[], Two]) -> None:
    here = two()
    store = here.open("files")
    for name in ("running", "done", "queued"):
        store.enqueue(Submission(role="Runner", prompt=TRUE, job_id=name))
    store.enqueue(Submission(role="Runner", prompt={**TRUE, "metadata": {"after": ["running"]}}, job_id="follows"))
    agent = store.join("w", role="Runner")
    assert claim_one(store, agent) is not None
    with operator(store, "me") as me:
        store.kill(me, "done")
    told = here.migrate("files", "redis")
    assert told.moved == ["queued"]
    assert told.left == {migrate.RUNNING: ["running"], migrate.LINKED: ["follows"]}
    assert told.finished == 1
    store.close()


def test_job_with_a_taken_id_or_name_is_not_migrated(two: Callable[[], Two]) -> None:
    here = two()
    files, redis = here.open("files"), here.open("redis")
    redis.enqueue(Submission(role="Runner", prompt={**TRUE, "plan_id": "other"}, job_id="same"))
    redis.enqueue_named("nightly", Submission(role="Runner", prompt=TRUE, job_id="theirs"))
    files.enqueue(Submission(role="Runner", prompt=TRUE, job_id="same"))
    files.enqueue_named("nightly", Submission(role="Runner", prompt=TRUE, job_id="ours"))
    told = here.migrate("files", "redis")
    assert told.moved == []
    assert told.left == {migrate.TAKEN: ["same"], migrate.NAMED: ["ours"]}
    assert set(here.queued("files")) == {"same", "ours"}
    files.close()
    redis.close()


def test_migrate_announces_in_a_dry_run_what_it_then_does(farro: Program, redis_server: RedisServer) -> None:
    path = farro.path / "agents-config.json"
    name = f"t-{uuid.uuid4().hex[:12]}"
    path.write_text(json.dumps({**json.loads(path.read_text()), "redis": {"name": name}}))
    farro.call("enqueue", "--id", "one", "--", "true", code=0)
    assert "--store" in farro.call("migrate", "--from", "files", "--to", "redis", code=2).err
    words = ("migrate", "--from", "files", "--to", "redis", "--store", redis_server.url)
    assert farro.call(*words, "--dry-run", code=0).out.startswith("1 job would move")
    assert farro.call("ls", "--json", code=0).json["jobs"][0]["status"] == "queued"
    done = farro.call(*words, code=0)
    assert done.out.startswith("1 job moved")
    assert f"farro init --store {redis_server.url}" in done.err
    farro.call("init", "--store", redis_server.url, code=0)
    assert [job["job_id"] for job in farro.call("ls", "--json", code=0).json["jobs"]] == ["one"]
    back = farro.call("migrate", "--from", "redis", "--to", "files", "--json", code=0).json
    assert back["jobs"] == ["one"]
