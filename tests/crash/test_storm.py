"""Run a storm of kills and stops over real processes; then check the history: nothing lost, duplicated or unexpected.

The checker is tested too, with forged histories.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import stage
from crash.history import (
    Answer,
    Committed,
    Effect,
    History,
    Hop,
    Job,
    Tree,
    check,
    read_effects,
    read_notes,
    read_tree,
    read_worker_log,
)
from crash.storm import Storm
from support import torture

SECONDS = 1800.0 * torture() if torture() else 10.0  # each of the three storms: 30 in all
HITS = 3  # at least so many kills of a worker with claimed jobs


@pytest.mark.linux
@pytest.mark.parametrize(
    ("durability", "runner"),
    [("process", "inline"), ("power", "inline"), ("power", "process")],
    ids=["process", "power", "runners"],
)
def test_a_storm_of_kills_and_stops_loses_nothing(
    durability: str, runner: str, tmp_path: Path, figure: Callable[..., None]
) -> None:
    seed = int(os.environ.get("FARRO_STORM_SEED") or (time.time_ns() if torture() else 1))
    with Storm(str(tmp_path / "storm"), durability=durability, seed=seed, runner=runner) as storm:
        try:
            storm.blow(SECONDS, HITS)
            storm.calm(180)
            orphans = storm.end()
            storm.watch_once()
            left = storm.journals_now()
            publish_what_was_staged(storm.root)
            storm.drain()
        except BaseException as error:
            error.add_note(f"FARRO_STORM_SEED={seed}")
            raise
        history = History(orphans=orphans)
        history.effects += read_effects(f"{storm.folder}/effects")
        history.committed += read_worker_log(storm.worker_logs())
        with open(f"{storm.folder}/notes", encoding="utf-8") as notes:
            read_notes(notes, history)
        tree = read_tree(storm.root)
        verdict = check(history, tree)
        assert verdict.clean, f"{verdict}\nFARRO_STORM_SEED={seed}\n{storm.last_words()}"
        assert storm.tracebacks() == []
        assert left == [], "journals of the dead are freed by a watchdog's pass, those of the living at their end"
        assert bool(storm.journals) is (durability == "power")
    # A storm in which nothing happened would prove nothing.
    assert storm.hits >= HITS, "no worker was killed with a claimed job: this machine is too busy for a storm"
    assert len(history.enqueued) > 20
    figure(f"storm, durability {durability}, runner {runner}, jobs", len(tree.jobs))
    figure(f"storm, durability {durability}, runner {runner}, kills and stops", storm.kills + storm.stops + storm.terms)
    figure(f"storm, durability {durability}, runner {runner}, seconds", int(SECONDS))
    if durability == "power" and runner == "inline":
        figure("storm, journals of its processes", len(storm.journals))


def publish_what_was_staged(root: str) -> None:
    """Run clean-up as if hours later: it publishes staged jobs with a registered id and removes the rest."""
    clock = stage.QuickClock()
    clock.offset_s = time.time() - stage.EPOCH.timestamp() + 7200
    store = stage.open_files(root, seed=time.time_ns(), clock=clock)
    store.recover(store.join("keeper", role=None))
    store.close()


# --- what the checker would say --------------------------------------------------------------------------------------

DONE = "agents/Runner/completed/succeeded"
COMMIT = Hop(reason="committed", attempt=2, by="w.0.1", to=DONE)
DEATH = Hop(reason="agent_died", attempt=1, by="watchdog.0.1", to="jobs/stale")
AGAIN = Hop(reason="requeued", attempt=1, by="manager.0.1", to="agents/Runner/incoming")
GONE = "agents/Runner/completed/killed"
KILL = Hop(reason="killed", attempt=0, by="operator.0.1", to=GONE)


def good() -> tuple[History, Tree]:
    """One job that succeeded in its second attempt, and one that an operator killed in the queue."""
    worked = Job(id="a", place=DONE, status="succeeded", token="ta", hops=(DEATH, AGAIN, COMMIT), attempts=2)
    killed = Job(id="b", place=GONE, status="killed", token="tb", hops=(KILL,))
    history = History(
        tried={"ta", "tb", "tc"},
        enqueued=[("a", "ta"), ("b", "tb"), ("b", "tb")],
        committed=[Committed(job="a", attempt=2, agent="w.0.1", status="succeeded")],
        answers=[Answer(verb="kill", job="b", status="killed", hops=(KILL,))],
        effects=[Effect(job="a", attempt=1), Effect(job="a", attempt=2)],
    )
    return history, Tree(jobs=[worked, killed], registered={"b"})


def test_the_checker_accepts_a_good_history() -> None:
    verdict = check(*good())
    assert verdict.clean
    assert str(verdict) == "nothing lost, nothing duplicated, nothing unexpected"


Spoil = Callable[[History, Tree], None]


def change(number: int, **changes: object) -> Spoil:
    def spoil(history: History, tree: Tree) -> None:
        tree.jobs[number] = dataclasses.replace(tree.jobs[number], **changes)

    return spoil


@pytest.mark.parametrize(
    ("kind", "words", "spoil"),
    [
        # lost
        ("lost", "a (ta) was acknowledged and is nowhere", lambda h, t: t.jobs.pop(0) and h.effects.clear()),
        ("lost", "committed by w.0.1 and is nowhere", lambda h, t: t.jobs.pop(0) and h.effects.clear()),
        ("lost", "answered killed, and it is nowhere", lambda h, t: t.jobs.pop(1)),
        ("lost", "ta was acknowledged, but tc lies there", change(0, token="tc")),
        ("lost", "c is registered and there is no such job", lambda h, t: t.registered.add("c")),
        ("lost", "is not in its hops", lambda h, t: h.committed.append(dataclasses.replace(h.committed[0], attempt=1))),
        (
            "lost",
            "acknowledged as failed and is succeeded",
            lambda h, t: h.committed.append(dataclasses.replace(h.committed[0], status="failed")),
        ),
        ("lost", "that attempt did nothing", lambda h, t: h.effects.pop()),
        (
            "lost",
            "kill b was answered killed, and its hops do not say so any more",
            change(1, status="failed", place="agents/Runner/completed/failed", hops=(DEATH,)),
        ),
        (
            "lost",
            "requeue a was answered queued, and its hops do not say so any more",
            lambda h, t: h.answers.append(Answer(verb="requeue", job="a", status="queued", hops=(AGAIN,))),
        ),
        (
            "lost",
            "kill a was answered killed, and it is succeeded",
            lambda h, t: h.answers.append(Answer(verb="kill", job="a", status="killed", hops=(DEATH,))),
        ),
        # duplicated
        ("duplicated", "a lies in", lambda h, t: t.jobs.append(dataclasses.replace(t.jobs[0], place="jobs/stale"))),
        ("duplicated", "ended 2 times", change(0, hops=(DEATH, AGAIN, COMMIT, COMMIT))),
        ("duplicated", "acknowledged as final 2 times", lambda h, t: h.committed.append(h.committed[0])),
        ("duplicated", "acknowledged for tb and for tc", lambda h, t: h.enqueued.append(("b", "tc"))),
        ("duplicated", "ta was submitted once and is 2 jobs", change(1, token="ta")),
        # unexpected
        ("unexpected", "nobody submitted ta", lambda h, t: h.tried.remove("ta")),
        (
            "unexpected",
            "did not end: it is queued",
            change(1, status="queued", place="x/incoming", hops=()),
        ),
        ("unexpected", "did not end: it is failed", change(1, status="failed", finalized=False)),
        ("unexpected", "its hops do not say so", change(1, hops=())),
        ("unexpected", "z acted in attempt 1", lambda h, t: h.effects.append(Effect(job="z", attempt=1))),
        ("unexpected", "a acted in attempt 3", lambda h, t: h.effects.append(Effect(job="a", attempt=3))),
        ("unexpected", "attempt 1 acted after attempt 2", lambda h, t: h.effects.append(Effect(job="a", attempt=1))),
        ("unexpected", "outlived its attempt", lambda h, t: h.orphans.append("4711 sleep 600")),
        ("unexpected", "a lock is left", lambda h, t: t.stray.append("a lock is left in x")),
    ],
)
def test_the_checker_says_what_is_wrong(kind: str, words: str, spoil: Spoil) -> None:
    history, tree = good()
    spoil(history, tree)
    verdict = check(history, tree)
    assert any(words in line for line in getattr(verdict, kind)), str(verdict)


def test_the_checker_reads_the_tree(tmp_path: Path) -> None:
    root = stage.make(str(tmp_path / "root"))
    store = stage.open_files(root)
    history = stage.History()
    job_id = store.enqueue(stage.submission(7, job_id="one"))
    stage.work_one(store, store.join("w", role="Runner"), history)
    store.close()
    tree = read_tree(root)
    assert [(job.id, job.place, job.token, job.attempts) for job in tree.jobs] == [(job_id, DONE, "p7", 1)]
    assert tree.registered == {job_id}
    assert tree.stray == []
    folder = Path(root, DONE, job_id)
    (folder / "lock").symlink_to("w.0.1")
    (folder / "attempts" / "0001" / "result.json").write_text('{"half')
    Path(root, "jobs", "stale", "x").mkdir()
    Path(root, "agents", "Runner", "incoming", "debris").mkdir()
    told = "\n".join(read_tree(root).stray)
    for words in ("a lock is left", "result.json of", "x is left in jobs/stale", "debris is not a job"):
        assert words in told
    (folder / "job.json").write_text("")
    assert read_tree(root).jobs == []
    assert "job.json of" in "\n".join(read_tree(root).stray)


def test_the_checker_reads_what_the_actors_wrote() -> None:
    said = {"job_id": "a", "attempt": 1, "agent": "w.0.1", "event": {"to": "failed"}, "message": "job status changed"}
    whole = json.dumps(said) + "\n"
    assert list(read_worker_log([whole, whole[:40]])) == [Committed(job="a", attempt=1, agent="w.0.1", status="failed")]
    history = History()
    life = {"job_id": "b", "status": "killed", "hops": [{**dataclasses.asdict(KILL), "at": "now"}]}
    notes = [
        {"what": "try", "token": "tb"},
        {"what": "enqueued", "token": "tb", "id": "b"},
        {"what": "told", "verb": "kill", "life": life},
        {"what": "refused", "token": "tc"},
    ]
    read_notes(map(json.dumps, notes), history)
    assert history.tried == {"tb"}
    assert history.enqueued == [("b", "tb")]
    assert history.answers == [Answer(verb="kill", job="b", status="killed", hops=(KILL,))]
