"""Check that the checked-in trees load: every state that version 1.0.0 wrote, and files of an unknown version.

make_golden.py wrote them once; no test writes them again. A difference after a change to farro is a regression, or
needs a new schema version with its own golden tree.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import stage
from farro.doctor.root import make_root
from farro.errors import UnknownSchema
from farro.jobs.ids import child_id
from farro.jobs.states import Reason, Status
from farro.store.files import FilesStore
from one_job import claim_one
from stage import EPOCH, History, QuickClock

HERE = Path(__file__).parent
DAY_S = 86400.0

Q, P, S, F, K, T = (
    Status.QUEUED,
    Status.IN_PROGRESS,
    Status.SUCCEEDED,
    Status.FAILED,
    Status.KILLED,
    Status.STALE,
)
RUNNER = "agents/Runner"

# job → its status, place and attempts in the tree; then its final status and number of attempts.
TABLE: dict[str, tuple[Status, str, int, Status, int]] = {
    "queued-fresh": (Q, f"{RUNNER}/incoming", 0, S, 1),
    "queued-delayed": (Q, f"{RUNNER}/incoming", 0, S, 1),
    "queued-retried": (Q, f"{RUNNER}/incoming", 1, S, 2),
    "queued-routed": (Q, "agents/CodeReviewer/incoming", 1, S, 2),
    "queued-released": (Q, f"{RUNNER}/incoming", 1, S, 2),
    "queued-locked": (Q, f"{RUNNER}/incoming", 0, S, 1),
    "running-undecided": (P, f"{RUNNER}/in-progress/worker.0.6513270e269e0d37", 1, S, 2),
    "running-uncounted": (P, f"{RUNNER}/in-progress/worker.0.6018366cf658f7a7", 0, S, 1),
    "running-decided": (P, f"{RUNNER}/in-progress/worker.0.4462ebfc5f915ef0", 1, S, 1),
    "running-with-result": (P, f"{RUNNER}/in-progress/worker.0.7b89296c6dcbac50", 1, S, 2),
    "running-marked-stale": (T, f"{RUNNER}/in-progress/worker.0.db5b5fab8f4d3e27", 1, S, 3),
    "stale": (T, "jobs/stale", 1, S, 2),
    "quarantined": (F, "jobs/quarantine", 1, F, 1),
    "outbox-with-children": (S, "jobs/outbox", 1, S, 1),
    "held-undecided": (Q, "jobs/.held/operator.0.4dad2986ce834960", 0, S, 1),
    "held-decided": (K, "jobs/.held/operator.0.72e63ac7a9538322", 0, K, 0),
    "waiting-for-a-human": (Q, "agents/Manager/waiting", 0, Q, 0),
    "succeeded": (S, f"{RUNNER}/completed/succeeded", 1, S, 1),
    "failed": (F, f"{RUNNER}/completed/failed", 1, F, 1),
    "failed-open": (F, f"{RUNNER}/completed/failed", 1, F, 1),
    "killed": (K, f"{RUNNER}/completed/killed", 0, K, 0),
    "forced": (S, f"{RUNNER}/completed/succeeded", 1, S, 1),
}
LATER = ("registered-in-staging", child_id("outbox-with-children", 1, 0), child_id("outbox-with-children", 1, 1))
# Jobs that must not change: they have ended, or farro must not move them.
UNTOUCHED = ("succeeded", "failed", "failed-open", "killed", "forced", "quarantined", "waiting-for-a-human")


def unpack(name: str, folder: Path) -> str:
    """Copy a golden tree, restore its empty folders, and set the times that its files record."""
    root = folder / name
    shutil.copytree(HERE / name / "root", root, symlinks=True)
    for missing in (HERE / name / "folders.txt").read_text().splitlines():
        os.makedirs(root / missing, exist_ok=True)
    make_root(str(root), stage.ROLES)
    made = EPOCH.timestamp()
    for path, names, files in os.walk(root):
        for entry in (*names, *files):
            os.utime(os.path.join(path, entry), (made, made), follow_symlinks=False)
    return str(root)


def contents(folder: str) -> dict[str, bytes | str | None]:
    found: dict[str, bytes | str | None] = {}
    for path, names, files in os.walk(folder):
        for name in (*names, *files):
            whole = os.path.join(path, name)
            key = os.path.relpath(whole, folder)
            if os.path.islink(whole):
                found[key] = os.readlink(whole)
            else:
                found[key] = stage.read(whole) if name in files else None
    return found


def late_clock() -> QuickClock:
    clock = QuickClock()
    clock.sleep(DAY_S)
    return clock


@pytest.fixture
def root(shm: Path) -> str:
    return unpack("v1.0.0", shm)


def test_every_job_is_found_with_its_place_and_status(root: str) -> None:
    store = stage.open_files(root)
    for job_id, (status, place, attempt, _, _) in TABLE.items():
        seen = store.find(job_id)
        assert seen is not None, job_id
        assert (job_id, seen.status, seen.place, seen.lifecycle.attempt) == (job_id, status, place, attempt)
        assert (seen.damaged is None) == (job_id != "quarantined"), seen.damaged
    for job_id in LATER:
        assert store.find(job_id) is None, f"{job_id} is not a job yet"
    store.close()


def test_the_tree_can_be_listed_and_counted(root: str) -> None:
    store = stage.open_files(root)
    listed = {seen.job_id: seen.status for seen in store.list()}
    assert listed == {job_id: row[0] for job_id, row in TABLE.items()}
    by_place = Counter(place_status(row[1], row[0]) for row in TABLE.values())
    assert store.count() == {status: by_place[status] for status in Status}
    assert store.stale() == ["stale"]
    assert {view.alive for view in store.agents()} == {False}
    assert len(store.agents()) == 10
    assert {view.identity["host"] for view in store.agents()} == {"stage"}
    store.close()


def place_status(place: str, status: Status) -> Status:
    """Return the status under which a job is counted: in progress while an agent holds it."""
    return P if "/in-progress/" in place or place.startswith(("jobs/.held", "jobs/outbox")) else status


def test_the_hops_of_a_job_record_its_history(root: str) -> None:
    store = stage.open_files(root)
    lives = {job_id: [hop.reason for hop in view.lifecycle.hops] for job_id in TABLE if (view := store.find(job_id))}
    assert lives["queued-retried"] == [Reason.RETRIED]
    assert lives["queued-routed"] == [Reason.ROUTED]
    assert lives["queued-released"] == [Reason.RELEASED]
    assert lives["running-marked-stale"] == [Reason.ROUTING_EXHAUSTED]
    assert lives["stale"] == [Reason.AGENT_DIED]
    assert lives["succeeded"] == lives["failed"] == lives["failed-open"] == [Reason.COMMITTED]
    assert lives["killed"] == lives["held-decided"] == [Reason.KILLED]
    assert lives["forced"] == [Reason.FORCE_COMPLETED]
    assert lives["queued-fresh"] == lives["running-undecided"] == []
    store.close()


def test_read_commands_change_nothing(root: str) -> None:
    before = contents(root)
    store = stage.open_files(root)
    store.list()
    store.count()
    store.agents()
    for job_id in TABLE:
        store.find(job_id)
    store.close()
    assert contents(root) == before


def test_recovery_and_workers_bring_everything_to_its_end(root: str) -> None:
    kept = {job_id: contents(f"{root}/{TABLE[job_id][1]}/{job_id}") for job_id in UNTOUCHED}
    history = History()
    stage.drain(root, history, clock=late_clock())
    store = stage.open_files(root, seed=99)
    for job_id, (_, _, _, status, attempt) in TABLE.items():
        seen = store.find(job_id)
        assert seen is not None, job_id
        assert (job_id, seen.status, seen.lifecycle.attempt) == (job_id, status, attempt)
    for job_id in LATER:
        seen = store.find(job_id)
        assert seen is not None, job_id
        assert (job_id, seen.status, seen.lifecycle.attempt) == (job_id, S, 1)
    assert {seen.job_id for seen in store.list()} == {*TABLE, *LATER}
    assert store.agents() == []
    store.close()
    assert {job_id: contents(f"{root}/{TABLE[job_id][1]}/{job_id}") for job_id in UNTOUCHED} == kept
    assert os.listdir(f"{root}/jobs/.staging") == []
    assert all(len(places) == 1 for places in stage.everywhere(root).values())
    assert Counter(job_id for job_id, _ in history.executed)["running-decided"] == 0, "rolled forward, not repeated"


def test_an_earlier_attempt_is_kept_beside_the_new_one(root: str) -> None:
    home = f"{root}/{TABLE['running-with-result'][1]}/running-with-result"
    before = contents(f"{home}/attempts/0001")
    assert set(before) == {"result.json", "result.md"}
    stage.drain(root, History(), clock=late_clock())
    after = contents(f"{root}/{RUNNER}/completed/succeeded/running-with-result/attempts")
    assert {name: after[f"0001/{name}"] for name in before} == before
    assert "0002/result.json" in after


def test_prompts_are_never_written_back(root: str) -> None:
    def prompts() -> dict[str, bytes]:
        found = stage.everywhere(root)
        return {job_id: stage.read(f"{root}/{places[0]}/{job_id}/prompt.json") for job_id, places in found.items()}

    before = prompts()
    stage.drain(root, History(), clock=late_clock())
    after = prompts()
    assert {job_id: after[job_id] for job_id in before} == before


def test_a_delayed_job_still_waits_until_it_is_due(root: str) -> None:
    clock = QuickClock()
    clock.sleep(0.1)  # a lock this young would belong to a worker that is about to move the job
    store = stage.open_files(root, clock=clock)
    agent = store.join("worker", role="Runner")
    claimed = set()
    while (claim := claim_one(store, agent)) is not None:
        claimed.add(claim.job_id)
    assert claimed == {"queued-fresh", "queued-released", "queued-locked"}
    due = store.next_due("Runner")
    assert due is not None
    store.close()


def test_a_chosen_id_of_an_old_tree_is_still_reserved(root: str) -> None:
    store = stage.open_files(root)
    assert store.enqueue(stage.submission(81, job_id="registered-in-staging")) == "registered-in-staging"
    assert store.find("registered-in-staging") is not None
    assert [name for name in os.listdir(f"{root}/jobs/.staging") if name.startswith("registered")] == []
    before = contents(root)
    assert store.enqueue(stage.submission(81, job_id="registered-in-staging")) == "registered-in-staging"
    assert contents(root) == before
    store.close()


# --- a version that this farro does not know ----------------------------------------------------------------------

UNKNOWN = {
    "queued": f"{RUNNER}/incoming",
    "running": f"{RUNNER}/in-progress/worker.0.d95bafc8f2a4d27b",
    "stale": "jobs/stale",
    "outbox": "jobs/outbox",
    "held": "jobs/.held/operator.0.14a03569d26b9496",
    "succeeded": f"{RUNNER}/completed/succeeded",
}


def test_an_unknown_version_is_skipped_and_left_alone(shm: Path) -> None:
    root = unpack("unknown", shm)
    logged: list[tuple[str, str, Mapping[str, Any]]] = []
    store = stage.open_files(
        root, clock=late_clock(), log=lambda level, message, fields: logged.append((level, message, fields))
    )
    before = {job_id: contents(f"{root}/{place}/{job_id}") for job_id, place in UNKNOWN.items()}
    boss = store.join("boss", role=None)
    workers = [store.join("worker", role=role) for role in store.roles()]
    tagged = store.join("worker", role="Runner", tags=["other"])
    for _ in range(3):  # never a busy loop: the second pass finds nothing to do
        done = store.recover(boss)
        assert [each for each in done if each.job_id is not None] == []
        for job_id in store.stale():
            assert store.resolve_stale(boss, job_id) is None
        assert [claim_one(store, agent) for agent in (*workers, tagged)] == [None] * 4
    assert {job_id: contents(f"{root}/{place}/{job_id}") for job_id, place in UNKNOWN.items()} == before
    critical = Counter(fields["job_id"] for level, _, fields in logged if level == "critical")
    assert critical == {"queued": 1, "running": 1, "stale": 1, "outbox": 1, "held": 1}, "each said once"
    assert [entry for entry in logged if entry[0] not in ("critical", "info")] == []
    for job_id, place in UNKNOWN.items():
        seen = store.find(job_id)
        assert seen is not None
        assert seen.place == place
        assert "9.9.9" in (seen.damaged or "")
    store.close()


@pytest.mark.parametrize("job_id", ["queued", "running", "stale"])
def test_no_verb_touches_an_unknown_version(shm: Path, job_id: str) -> None:
    root = unpack("unknown", shm)
    store = stage.open_files(root)
    boss = store.join("boss", role=None)
    place = f"{root}/{UNKNOWN[job_id]}/{job_id}"
    before = contents(place)
    with pytest.raises(UnknownSchema, match=r"9\.9\.9"):
        store.kill(boss, job_id)
    assert contents(place) == before
    store.close()


def test_jobs_of_the_known_version_run_beside_an_unknown_one(shm: Path) -> None:
    root = unpack("unknown", shm)
    history = History()
    store = stage.open_files(root)
    store.enqueue(stage.submission(job_id="mine"))
    store.close()
    drained: FilesStore = stage.drain(root, history, clock=late_clock())
    seen = drained.find("mine")
    assert seen is not None
    assert seen.status is S
    assert {job_id for job_id, _ in history.executed} == {"mine"}
