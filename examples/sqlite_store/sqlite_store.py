"""Keep the jobs of a root in one SQLite database: a store of another package, for farro's Store port.

The rules are farro's (TransactionalStore). This module keeps the state in tables: every call is one `BEGIN IMMEDIATE`
transaction in WAL mode, so a crash at any point leaves it done or not begun. An agent is alive while its process holds
the lock on its lease file, which the kernel drops at its death. In the config: `store: sqlite_store:open_store`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from farro.errors import StorageTrouble
from farro.host import leases
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Report
from farro.jobs.retry import Uniform
from farro.jobs.states import Status
from farro.store.feed import ChangeFeed
from farro.store.port import (
    Agent,
    Change,
    Claim,
    JobView,
    QueuePause,
    RecoveryAction,
    StoreContext,
    Submission,
    marker,
)
from farro.store.redis.workspace import LocalWorkspace
from farro.store.transactional import StoredAgent, StoredJob, StoreState, TransactionalStore
from farro.store.workspace import JobFiles, PostedFiles

KEPT_CHANGES = 65536
_DICE = random.SystemRandom()
POLL_S = 0.05  # how often a waiting process looks for what others changed
FILE_BYTES = 16 << 20  # of one file of a result; what is longer is cut

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, role TEXT NOT NULL, status TEXT NOT NULL, waits INTEGER NOT NULL, owner TEXT,
    priority TEXT NOT NULL, number INTEGER NOT NULL, attempts INTEGER NOT NULL, digest TEXT,
    lifecycle BLOB NOT NULL, prompt TEXT NOT NULL, before TEXT
);
CREATE INDEX IF NOT EXISTS queues ON jobs (role, status, waits, priority, number);
CREATE INDEX IF NOT EXISTS owners ON jobs (owner) WHERE owner IS NOT NULL;
CREATE INDEX IF NOT EXISTS waiting ON jobs (waits) WHERE waits;
CREATE TABLE IF NOT EXISTS agents (
    id TEXT PRIMARY KEY, role TEXT, tags TEXT NOT NULL, alive INTEGER NOT NULL, beat_s REAL NOT NULL,
    identity TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS names (name TEXT PRIMARY KEY, job TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS named ON names (job);
CREATE TABLE IF NOT EXISTS pauses (role TEXT PRIMARY KEY, pause BLOB NOT NULL);
-- Attempt 0: the payload and the narrative of the submission. `whole`: the size of a file that was cut.
CREATE TABLE IF NOT EXISTS files (
    job TEXT, attempt INTEGER, name TEXT, data BLOB NOT NULL, whole INTEGER, PRIMARY KEY (job, attempt, name)
);
-- Without a job: every reader of that role's feed lists the queue.
CREATE TABLE IF NOT EXISTS changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT, role TEXT NOT NULL, status TEXT, enters INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS counter (number INTEGER NOT NULL);
INSERT INTO counter SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM counter);
"""
_COLUMNS = "lifecycle, prompt, digest, priority, number, waits, owner, attempts, before"


class SqliteState:
    """The tables, inside a transaction that `SqliteStore.begin` began."""

    def __init__(self, db: sqlite3.Connection, is_alive: Callable[[str], bool]) -> None:
        self.db = db
        self._is_alive = is_alive

    def job(self, job_id: str) -> StoredJob | None:
        row = self.db.execute(f"SELECT {_COLUMNS} FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else _job(row)

    def jobs(
        self,
        *,
        roles: Collection[str] | None = None,
        statuses: Collection[Status] | None = None,
        waits: bool | None = None,
        owner: str | None = None,
    ) -> Iterable[StoredJob]:
        where, values = ["1"], list[Any]()
        for column, wanted in (("role", roles), ("status", None if statuses is None else map(str, statuses))):
            if wanted is not None:
                values += (some := list(wanted))
                where.append(f"{column} IN ({', '.join('?' * len(some))})")
        for column, value in (("waits", waits), ("owner", owner)):
            if value is not None:
                values.append(value)
                where.append(f"{column} = ?")
        rows = self.db.execute(f"SELECT {_COLUMNS} FROM jobs WHERE {' AND '.join(where)} ORDER BY id", values)
        return map(_job, rows.fetchall())

    def queue(self, role: str) -> Iterable[StoredJob]:
        query = f"SELECT {_COLUMNS} FROM jobs WHERE role = ? AND status = ? AND NOT waits ORDER BY priority, number"
        return map(_job, self.db.execute(query, (role, str(Status.QUEUED))))

    def save(self, job: StoredJob) -> None:
        life, before = job.lifecycle, None
        if job.before is not None:
            before = json.dumps([job.before[0].to_json().decode(), *job.before[1]])
        place = (life.role, str(life.status), job.waits, job.owner, *job.entered)
        row = (life.job_id, *place, job.attempts, job.digest, life.to_json(), json.dumps(job.prompt), before)
        self.db.execute(f"INSERT OR REPLACE INTO jobs VALUES ({', '.join('?' * len(row))})", row)

    def delete(self, job_id: str) -> None:
        for table, column in (("jobs", "id"), ("names", "job"), ("files", "job")):
            self.db.execute(f"DELETE FROM {table} WHERE {column} = ?", (job_id,))

    def next_number(self) -> int:
        self.db.execute("UPDATE counter SET number = number + 1")
        (number,) = self.db.execute("SELECT number FROM counter").fetchone()
        return int(number)

    def agents(self) -> Mapping[str, StoredAgent]:
        rows = self.db.execute("SELECT id, role, tags, alive, beat_s, identity FROM agents ORDER BY id").fetchall()
        found = {}
        for name, role, tags, known, beat_s, identity in rows:
            agent, alive = Agent(id=name, role=role, tags=frozenset(json.loads(tags))), known and self._is_alive(name)
            found[name] = StoredAgent(agent=agent, alive=bool(alive), beat_s=beat_s, identity=json.loads(identity))
        return found

    def save_agent(self, agent: StoredAgent) -> None:
        own = agent.agent
        row = (own.id, own.role, json.dumps(sorted(own.tags)), agent.alive, agent.beat_s, json.dumps(agent.identity))
        self.db.execute("INSERT OR REPLACE INTO agents VALUES (?, ?, ?, ?, ?, ?)", row)

    def delete_agent(self, agent_id: str) -> None:
        self.db.execute("DELETE FROM agents WHERE id = ?", (agent_id,))

    def names(self) -> Mapping[str, str]:
        return dict(self.db.execute("SELECT name, job FROM names ORDER BY name").fetchall())

    def set_name(self, name: str, job_id: str) -> None:
        self.db.execute("INSERT OR REPLACE INTO names VALUES (?, ?)", (name, job_id))

    def paused(self) -> Mapping[str, QueuePause]:
        rows = self.db.execute("SELECT role, pause FROM pauses ORDER BY role").fetchall()
        return {role: QueuePause.from_json(pause) for role, pause in rows}

    def set_paused(self, role: str, paused: QueuePause | None) -> None:
        self.db.execute("DELETE FROM pauses WHERE role = ?", (role,))
        if paused is not None:
            self.db.execute("INSERT INTO pauses VALUES (?, ?)", (role, paused.to_json()))

    def publish(self, change: Change, *, enters: bool) -> None:
        self._add_change(change.job_id, change.role, str(change.status), enters)

    def publish_gap(self, role: str) -> None:
        self._add_change(None, role, None, True)

    def _add_change(self, *row: object) -> None:
        made = self.db.execute("INSERT INTO changes (job, role, status, enters) VALUES (?, ?, ?, ?)", row)
        self.db.execute("DELETE FROM changes WHERE number <= ?", ((made.lastrowid or 0) - KEPT_CHANGES,))


def _job(row: tuple[Any, ...]) -> StoredJob:
    lifecycle, prompt, digest, priority, number, waits, owner, attempts, before = row
    held = None
    if before is not None:
        text, *entered = json.loads(before)
        held = (Lifecycle.from_json(text.encode()), (entered[0], entered[1]))
    return StoredJob(
        prompt=json.loads(prompt),
        digest=digest,
        lifecycle=Lifecycle.from_json(lifecycle),
        entered=(priority, number),
        waits=bool(waits),
        owner=owner,
        attempts=attempts,
        before=held,
    )


class SqliteChanges:
    """Poll the table of changes: SQLite wakes no other process."""

    def __init__(self, store: SqliteStore, role: str | None) -> None:
        self._store = store
        self._role = role
        self._woken = threading.Event()
        self._seen = store.newest_change()

    def read(self, timeout_s: float) -> tuple[list[Change], bool]:
        until_s = time.monotonic() + timeout_s
        while True:
            newest = self._store.newest_change()
            if newest > self._seen:
                found, gap = self._store.changes_between(self._seen, newest, self._role)
                self._seen = newest
                if found or gap:
                    return found, gap
            left_s = until_s - time.monotonic()
            if left_s <= 0 or self._woken.wait(min(left_s, POLL_S)):
                self._woken.clear()
                return [], False

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None: ...


class SqliteStore(TransactionalStore):
    """The Store port over one database in the root."""

    def __init__(
        self,
        context: StoreContext,
        *,
        random_bits: Callable[[int], int] = _DICE.getrandbits,
        uniform: Uniform = _DICE.uniform,
    ) -> None:
        super().__init__(
            roles=context.roles,
            policy=context.policy,
            clock=context.clock,
            random_bits=random_bits,
            uniform=uniform,
            audit=context.audit,
        )
        self._context = context
        self._home = f"{context.root}/jobs/.sqlite"
        os.makedirs(self._home, exist_ok=True)
        self._scope = hashlib.sha256(os.path.realpath(context.root).encode()).hexdigest()[:8]
        self._workspace = LocalWorkspace(context.root, name="sqlite", clock=context.clock, inline_bytes=FILE_BYTES)
        self.leases: dict[str, leases.Lease] = {}  # of the agents of this process
        self._db = sqlite3.connect(f"{self._home}/jobs.db", timeout=60, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(f"PRAGMA synchronous = {'FULL' if context.policy.durable else 'OFF'}")
        self._db.executescript(SCHEMA)

    @property
    def root(self) -> str:
        return self._context.root

    @contextlib.contextmanager
    def begin(self) -> Iterator[StoreState]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield SqliteState(self._db, self._is_alive)
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise StorageTrouble(f"{self._home}/jobs.db: {error}; what was stored before is intact") from error

    # --- leases ---

    def identity(self) -> Mapping[str, Any]:
        return self._context.identity()

    def hold_lease(self, agent: Agent) -> None:
        self.leases[agent.id] = leases.create(f"{self._home}/{agent.id}", b"")

    def drop_lease(self, agent: Agent) -> None:
        if agent.id in self.leases:
            self.leases.pop(agent.id).drop()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._home}/{agent.id}")
        self._workspace.leave(agent.id)

    def _is_alive(self, agent_id: str) -> bool:
        return agent_id in self.leases or leases.is_held(f"{self._home}/{agent_id}")

    def recover(self, agent: Agent) -> list[RecoveryAction]:
        done = super().recover(agent)
        for action in done:
            if action.what == "agent_removed":
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{self._home}/{action.agent}")
        self._workspace.sweep()
        return done

    def end_processes(self, job_id: str, attempt: int, agent: StoredAgent) -> None:
        self._context.reap([marker(job_id, attempt, self._scope)], agent.identity)

    # --- files ---

    def keep_submission(self, state: StoreState, job_id: str, submission: Submission) -> None:
        files = {f"payload/{name}": data for name, data in submission.payload.items()}
        if submission.narrative is not None:
            files["prompt.md"] = submission.narrative.encode()
        if submission.carried is not None:
            files["carried/steps.jsonl"] = submission.carried.records
            for name, path in submission.carried.files.items():
                with open(path, "rb") as file:
                    files[f"carried/{name}"] = file.read()
        self._keep(job_id, 0, PostedFiles(files=files))

    def open_claim(self, state: StoreState, claim: Claim) -> Claim:
        material = self._material(claim.envelope.lifecycle, claim.envelope.prompt)
        folder = self._workspace.begin(claim.agent.id, claim.job_id, claim.attempt, material)
        return replace(claim, folder=folder, scope=self._scope)

    def keep_report(self, state: StoreState, claim: Claim, report: Report, *, good: bool) -> None:
        self._keep(claim.job_id, claim.attempt, self._workspace.post(claim.folder, report, good=good))

    def keep_answer(self, state: StoreState, job_id: str, attempt: int, text: str) -> None:
        result = json.dumps({"job_id": job_id, "success": True}).encode()
        self._keep(job_id, attempt, PostedFiles(files={"result.md": text.encode(), "result.json": result}))

    def close_claim(self, claim: Claim) -> None:
        self._workspace.end(claim.agent.id, claim.job_id)

    def folder(self, view: JobView) -> str:
        with self.transaction() as state:
            job = self._job(state, view.job_id)
            material = self._material(view.lifecycle, job.prompt)
        return self._workspace.look(view.job_id, view.lifecycle.to_json().decode(), material)

    def _keep(self, job_id: str, attempt: int, posted: PostedFiles) -> None:
        rows = [(job_id, attempt, name, data, posted.cut.get(name)) for name, data in posted.files.items()]
        self._db.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", rows)

    def _material(self, lifecycle: Lifecycle, prompt: Mapping[str, Any]) -> JobFiles:
        query = "SELECT attempt, name, data, whole FROM files WHERE job = ?"
        files: dict[int, dict[str, bytes]] = {0: {}}
        cut: dict[int, dict[str, int]] = {}
        for attempt, name, data, whole in self._db.execute(query, (lifecycle.job_id,)).fetchall():
            files.setdefault(attempt, {})[name] = data
            cut.setdefault(attempt, {}).update({} if whole is None else {name: whole})
        submitted = files.pop(0)
        return JobFiles(
            lifecycle=lifecycle.to_json(),
            prompt=json.dumps(prompt).encode(),
            narrative=submitted["prompt.md"].decode() if "prompt.md" in submitted else None,
            payload={name[8:]: data for name, data in submitted.items() if name.startswith("payload/")},
            carried={name[8:]: data for name, data in submitted.items() if name.startswith("carried/")},
            attempts={number: PostedFiles(files=files[number], cut=cut[number]) for number in sorted(files)},
        )

    # --- changes ---

    def make_feed(self, role: str | None) -> ChangeFeed:
        return ChangeFeed(SqliteChanges(self, role))

    def newest_change(self) -> int:
        with self._lock:  # else it would see changes of a transaction that may yet be undone
            (number,) = self._db.execute("SELECT coalesce(max(number), 0) FROM changes").fetchone()
        return int(number)

    def changes_between(self, first: int, last: int, role: str | None) -> tuple[list[Change], bool]:
        """Return the changes after `first` up to `last`, and whether some of them were deleted meanwhile."""
        query = "SELECT job, role, status, enters FROM changes WHERE number > ? AND number <= ? ORDER BY number"
        with self._lock:
            rows = self._db.execute(query, (first, last)).fetchall()
        own = [(job, of, status) for job, of, status, enters in rows if role is None or (enters and of == role)]
        found = [Change(job_id=job, role=of, status=Status(status)) for job, of, status in own if job is not None]
        return found, len(rows) < last - first or (role is not None and len(found) < len(own))

    def close(self) -> None:
        super().close()
        for agent_id in list(self.leases):
            self.leave(Agent(id=agent_id, role=None))
        self._workspace.close()
        self._context.on_close()


def open_store(context: StoreContext) -> SqliteStore:
    """Open the store of a root: `store: sqlite_store:open_store` in the config."""
    return SqliteStore(context)
