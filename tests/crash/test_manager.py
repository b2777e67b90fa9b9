"""Kill the manager and a person's answer at every mutating call, repeatedly: the task completes, no hop counts twice.

The task has four roles: Architect (with two drafts), engineer, a review that asks for a change once, a person,
Doc Writer. Roles answer from a script, at the level of the store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import stage
from crash.seams import Counting, KillAt, Open, Seam, placed
from crash.tally import add_figure
from farro.agents import inbox
from farro.agents.auto_plan import AutoPlan
from farro.agents.manager import Manager
from farro.config.settings import Settings
from farro.doctor.root import make_root
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import waits_for_person
from farro.jobs.outcomes import ErrorInfo, Failed, Report, Succeeded
from farro.jobs.states import Reason, Status
from farro.queue.admission import Gate
from farro.store.files import FilesStore
from farro.store.leadership import FileLeadership
from farro.store.port import Submission
from farro.worker.snapshot import Snapshots
from one_job import claim_one, commit_one
from stage import Crash
from support import torture

ROLES = ("Architect", "CodeReviewer", "DocWriter", "Manager", "SeniorEngineer")
TASK = {
    "id": "greet",
    "title": "A greeting",
    "allowed_paths": ["src/"],
    "success": "It greets.",
    "workflow": [
        {"role": "Architect", "rubric": "Plan."},
        {"role": "SeniorEngineer", "rubric": "Build."},
        {"role": "CodeReviewer", "rubric": "Judge."},
        {"role": "human", "rubric": "Ship it?"},
        {"role": "DocWriter", "rubric": "Tell."},
    ],
}
PROMPT = {
    "role": "Architect",
    "rubric": "Greet.",
    "allowed_paths": ["src/"],
    "success": "It greets.",
    "routing": {"mode": "manager"},
    "inputs": {"task_id": "greet"},
}
DRAFT = {"role": "DocWriter", "rubric": "More.", "allowed_paths": ["src/"], "success": "Done."}
WORKED = ["Architect", "SeniorEngineer", "CodeReviewer", "SeniorEngineer", "CodeReviewer", "DocWriter"]
DECIDED = ["next", "next", "changes", "next", "human", "approved", "next", "complete"]
Kill = Callable[[], Seam]


def answer(life: Lifecycle) -> Mapping[str, Any]:
    if life.role == "Architect":
        return {"analysis": "So.", "prompts": [DRAFT, DRAFT]}
    if life.role == "CodeReviewer":
        again = any((hop.route or {}).get("code") == "changes" for hop in life.hops)
        return {"verdict": "approve" if again else "changes_requested", "findings": [{"message": "louder"}]}
    return {"summary": "done"}


def begin(root: str) -> None:
    Path(root).mkdir()
    make_root(root, ROLES)
    Path(root, "tasks").mkdir(exist_ok=True)
    Path(root, "tasks/greet.json").write_text(json.dumps(TASK))
    store = stage.open_files(root, seed=1)
    store.enqueue(Submission(role="Architect", prompt=PROMPT, job_id="one"))
    store.close()


class Seeds:
    def __init__(self) -> None:
        self.last = 100

    def __call__(self) -> int:
        self.last += 1
        return self.last


def manage(root: str, seed: int, seam: Seam) -> None:
    """Run one turn of a manager process, which is killed during it or dies afterwards."""
    store = stage.open_files(root, seed=seed)
    clock = stage.QuickClock()
    gate = Gate()
    plans = AutoPlan(
        store=store, root=root, settings=Settings(), gate=gate, clock=clock, log=lambda *told: None, _looked_s=1e9
    )
    seat = FileLeadership(root=root, clock=clock)
    boss = Manager(
        store=store,
        log=lambda *told: None,
        leadership=seat,
        snapshots=Snapshots(root=root, clock=clock),
        auto_plan=plans,
    )
    try:
        with placed(seam):
            boss.run_once()
    except Crash:
        pass
    finally:
        seat.drop()
        stage.die(store)


def say(root: str, seed: int, seam: Seam, text: str | None) -> None:
    """Give a person's answer from a process that is killed during it or dies afterwards."""
    store = stage.open_files(root, seed=seed)
    vars(store)["leave"] = lambda agent: None  # a dead process does not leave: `die` drops its leases
    try:
        with placed(seam):
            if text is None:
                inbox.approve(store, "one", by="ann")
            else:
                inbox.edit(store, "one", text, by="ann")
    except Crash:
        pass
    finally:
        stage.die(store)


def look(store: FilesStore) -> Lifecycle:
    view = store.find("one")
    assert view is not None
    return view.lifecycle


def recover(root: str, seed: int) -> Lifecycle:
    """Run a watchdog's pass; return the job's lifecycle."""
    store = stage.open_files(root, seed=seed)
    store.recover(store.join("dog", role=None))
    life = look(store)
    store.close()
    return life


def work(root: str, seed: int, role: str) -> None:
    store = stage.open_files(root, seed=seed)
    claim = claim_one(store, store.join("w", role=role))
    while claim is not None and claim.job_id != "one":  # a child, which this test does not run
        commit_one(store, claim, Succeeded(report=stage.report(claim)))
        claim = claim_one(store, store.join("w", role=role))
    if claim is not None:
        told = answer(claim.envelope.lifecycle)
        result = {"success": True, "agent": {"answer": told}}
        commit_one(store, claim, Succeeded(report=Report(result=result, markdown=f"{role}: {json.dumps(told)}\n")))
    store.close()


def live(root: str, manager: Kill, person: Kill, *, times: int, text: str | None = None) -> Lifecycle:
    """Play the whole task: each turn of the manager and each answer is killed `times` times, then runs undisturbed."""
    begin(root)
    seeds = Seeds()
    for _ in range(60):
        life = recover(root, seeds())
        if life.terminal:
            return life
        if waits_for_person(life):
            for seam in (*(person() for _ in range(times)), Open()):
                if waits_for_person(recover(root, seeds())):
                    say(root, seeds(), seam, text)
        elif life.role == "Manager" or life.status is Status.STALE:
            for seam in (*(manager() for _ in range(times)), Open()):
                found = recover(root, seeds())
                if found.role == "Manager" and not waits_for_person(found):
                    manage(root, seeds(), seam)
        else:
            work(root, seeds(), life.role)
    raise AssertionError(f"not at its end: {stage.tree(root)}")


def judge(root: str, life: Lifecycle, how: str, decided: list[str] = DECIDED) -> None:
    assert life.status is Status.SUCCEEDED, f"{how}: {life.status} {life.error}"
    worked = [hop.role for hop in life.hops if hop.reason is Reason.ROUTED and hop.role != "Manager"]
    assert worked == WORKED, f"{how}: {worked}"
    codes = [hop.route["code"] for hop in life.hops if hop.route]
    # A person whose process died between the text and the answer is asked again; all other decisions occur once.
    assert [code for n, code in enumerate(codes) if codes[n : n + 2] != ["human", "human"]] == decided, (
        f"{how}: {codes}"
    )
    where = stage.everywhere(root)
    assert all(len(places) == 1 for places in where.values()), f"{how}: {where}"
    assert len(where) == 3, f"{how}: {len(where) - 1} children, not 2: {sorted(where)}"
    home = Path(root, where["one"][0], "one")
    assert "DocWriter:" in (home / "result.md").read_text(), how
    assert not (home / "error.md").exists(), how
    for name in ("agents/Manager/incoming", "agents/Manager/waiting", "jobs/outbox", "jobs/stale"):
        assert not list(Path(root, name).glob("[!.]*")), f"{how}: something is left in {name}"


def kills(upto: int) -> Iterator[tuple[int, bool]]:
    """Yield a kill before each call. A kill after it equals one before the next call, and every process dies after its
    last call anyway."""
    for n in range(1, upto + 1):
        for after in (False, True) if torture() else (False,):
            yield n, after


def longest(root: str, *, text: str | None) -> tuple[int, int]:
    """Return the number of calls in the manager's longest turn and in the longest answer."""
    seams: dict[str, list[Counting]] = {"manager": [], "person": []}

    def counting(who: str) -> Seam:
        seams[who].append(Counting())
        return seams[who][-1]

    life = live(root, lambda: counting("manager"), lambda: counting("person"), times=1, text=text)
    judge(root, life, "in peace", DECIDED if text is None else [*DECIDED[:5], "edited", *DECIDED[6:]])
    return max(seam.count for seam in seams["manager"]), max(seam.count for seam in seams["person"])


@pytest.mark.parametrize("times", [1, 4])
def test_a_manager_killed_at_every_call_of_every_turn_completes_the_task(shm: Path, times: int) -> None:
    calls, _ = longest(str(shm / "peace"), text=None)
    for n, after in kills(calls):
        root = str(shm / f"{n}-{after}")
        life = live(root, lambda n=n, after=after: KillAt(n, after=after), Open, times=times)  # type: ignore[misc]
        judge(root, life, f"manager killed {times} times {'after' if after else 'before'} call {n}")
    add_figure("kill points, a manager's turn", len(list(kills(calls))) * len(DECIDED), "points")


@pytest.mark.parametrize("text", [None, "as I want it\n"])
def test_a_person_killed_at_every_call_of_an_answer_answers_once(shm: Path, text: str | None) -> None:
    decided = DECIDED if text is None else [*DECIDED[:5], "edited", *DECIDED[6:]]
    _, calls = longest(str(shm / "peace"), text=text)
    for n, after in kills(calls):
        root = str(shm / f"{n}-{after}")
        life = live(root, Open, lambda n=n, after=after: KillAt(n, after=after), times=2, text=text)  # type: ignore[misc]
        judge(root, life, f"a person killed {'after' if after else 'before'} call {n}", decided)
    add_figure("kill points, a person's answer", len(list(kills(calls))), "points")


def test_a_manager_killed_while_it_finalises_a_failure_does_so_once(shm: Path) -> None:
    for n, after in [(0, False), *kills(30)]:
        root = str(shm / f"{n}-{after}")
        begin(root)
        seeds = Seeds()
        store = stage.open_files(root, seed=seeds())
        claim = claim_one(store, store.join("w", role="Architect"))
        assert claim is not None
        error = ErrorInfo(category="provider_refused", message="no")
        commit_one(store, claim, Failed(error=error, report=Report(result={"success": False}, markdown="no\n")))
        store.close()
        for seam in (KillAt(n, after=after), KillAt(n, after=after), Open(), Open()):
            manage(root, seeds(), seam)
            life = recover(root, seeds())
        finals = [hop for hop in life.hops if hop.reason is Reason.FINALIZED]
        assert (life.status, life.terminal, len(finals)) == (Status.FAILED, True, 1), f"{n} {after}: {life.hops}"
        assert life.error == {"category": "provider_refused", "message": "no"}
        assert stage.everywhere(root)["one"] == ["agents/Architect/completed/failed"]


def test_the_check_notices_duplicated_children(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prove that the check can fail: with a new id at each delivery, a crash in the outbox duplicates the children."""
    from farro.store.files import dispatch

    calls, _ = longest(str(shm / "peace"), text=None)
    count = iter(range(10_000))
    monkeypatch.setattr(dispatch.ids, "child_id", lambda job_id, attempt, index: f"child-{next(count)}")
    noticed = 0
    for n, after in reversed(list(kills(calls))):
        root = str(shm / f"{n}-{after}")
        try:
            life = live(root, lambda n=n, after=after: KillAt(n, after=after), Open, times=1)  # type: ignore[misc]
            judge(root, life, "")
        except AssertionError:
            noticed += 1
            break
    assert noticed
