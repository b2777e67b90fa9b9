"""Kill the ledger at every call, and cut the power: a provider call is absent, or counts once with a cost."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from crash.powermodel import Log, Order, Recorder, State, Synced, states
from crash.seams import Counting, Errno, KillAt, placed
from crash.tally import add_figure
from farro.agents.providers.port import Usage
from farro.errors import BudgetExceeded, FarroError
from farro.host import fs, leases
from farro.host.clock import ManualClock
from farro.store.files.ledger import FilesLedger
from farro.store.ledger import Budgets, CallRecord, Charge
from stage import Crash
from support import torture

BOTH = pytest.mark.parametrize("durable", [True, False], ids=["power", "process"])
DAY = "2026-11-16"
MOST, COST = Decimal("0.40"), Decimal("0.15")
LIMITS = Budgets(job_usd=Decimal(1), role_usd=Decimal(1), day_usd=Decimal(1))
USAGE = Usage(input_tokens=100, output_tokens=20)
Act = Callable[[FilesLedger], object]


def opened(root: str, seed: int, durable: bool = True) -> FilesLedger:
    clock = ManualClock(datetime(2026, 11, 16, 12, tzinfo=UTC))
    return FilesLedger(root, clock, durable=durable, random_bits=random.Random(seed).getrandbits)


def charge(job: str = "job-1", number: int = 1) -> Charge:
    return Charge(
        job_id=job,
        attempt=1,
        role="Architect",
        step="answer",
        number=number,
        provider="openai",
        model="gpt-5",
        request_sha256="0" * 64,
        most_usd=MOST,
    )


def ways_to_die(folder: Path, prepare: Act, act: Act, durable: bool) -> Iterator[tuple[str, KillAt]]:
    """Kill `act` at every mutating call; yield the root after each kill, and the seam that killed it."""
    before = str(folder / "before")
    os.makedirs(f"{before}/jobs")
    prepare(opened(before, 1, durable))
    whole = str(folder / "whole")
    shutil.copytree(before, whole, symlinks=True)
    with placed(Counting()) as calls:
        act(opened(whole, 2, durable))
    seams = [KillAt(n, after=after) for n in range(1, calls.count + 1) for after in (False, True)]
    seams += [KillAt(n, torn=True) for n, op in enumerate(calls.ops, 1) if op == "write"]
    for number, seam in enumerate(seams):
        root = str(folder / str(number))
        shutil.copytree(before, root, symlinks=True)
        held = set(leases._held)
        with placed(seam), contextlib.suppress(Crash):
            act(opened(root, 2, durable))
        assert seam.dead
        assert leases._held == held, "a dead process holds no lock"
        yield root, seam
        shutil.rmtree(root)
    add_figure("kill points, ledger", len(seams), "points")


def judged(root: str, how: str) -> list[CallRecord]:
    """Return the calls, after checking that the views by day and by job agree, each call once, none torn."""
    ledger = opened(root, 3)
    calls = list(ledger.of_day(DAY))
    jobs = sorted({call.charge.job_id for call in calls})
    assert [call for job in jobs for call in ledger.of_job(job)] == sorted(calls, key=lambda one: one.charge.job_id), (
        how
    )
    assert len({call.id for call in calls}) == len(calls), f"DOUBLED: {how}"
    for call in calls:
        assert call.counts_usd in (MOST, COST), f"TORN: {call} {how}"
    return calls


@BOTH
def test_kill_at_every_call_of_reserve(shm: Path, durable: bool) -> None:
    told: list[str] = []

    def act(ledger: FilesLedger) -> None:
        told.clear()
        told.append(ledger.reserve(charge("job-2"), LIMITS))

    for root, seam in ways_to_die(shm, lambda ledger: ledger.reserve(charge(), LIMITS), act, durable):
        calls = judged(root, f"{seam!r}")
        assert len(calls) in (1, 2), f"{seam!r}"
        if told:
            assert told[0] in [call.id for call in calls], f"LOST: {seam!r}"
        # A repeated reserve counts the dead process's calls towards the budget: 0.40 of 1.00 each, so never a third.
        again = opened(root, 4, durable)
        if len(calls) == 1:
            again.reserve(charge("job-2"), LIMITS)
        with pytest.raises(BudgetExceeded):
            again.reserve(charge("job-3"), LIMITS)
        assert len(judged(root, f"{seam!r}, repeated")) == 2


@BOTH
def test_kill_at_every_call_of_the_first_reserve_of_all(shm: Path, durable: bool) -> None:
    for root, seam in ways_to_die(shm, lambda ledger: None, lambda one: one.reserve(charge(), LIMITS), durable):
        before = len(judged(root, f"{seam!r}"))
        opened(root, 4, durable).reserve(charge(), LIMITS)
        assert len(judged(root, f"{seam!r}, repeated")) == before + 1


@BOTH
def test_kill_at_every_call_of_settle(shm: Path, durable: bool) -> None:
    """A call killed between the answer and its record counts with the highest cost; a later settle counts once."""
    ids: list[str] = []

    def prepare(ledger: FilesLedger) -> None:
        ids[:] = [ledger.reserve(charge(number=number), Budgets()) for number in (1, 2)]

    def act(ledger: FilesLedger) -> None:
        ledger.settle(ids[0], end="answered", usage=USAGE, cost_usd=COST)

    for root, seam in ways_to_die(shm, prepare, act, durable):
        calls = {call.id: call for call in judged(root, f"{seam!r}")}
        first = calls[ids[0]]
        assert (first.end, first.counts_usd) in ((None, MOST), ("answered", COST)), f"{seam!r}"
        assert calls[ids[1]].estimated
        opened(root, 4, durable).settle(ids[0], end="answered", usage=USAGE, cost_usd=COST)
        opened(root, 5, durable).settle(ids[0], end="failed", usage=None, cost_usd=MOST)
        assert [call.counts_usd for call in judged(root, f"{seam!r}, settled")] == _in_order(ids, {ids[0]: COST})


def _in_order(ids: list[str], known: dict[str, Decimal]) -> list[Decimal]:
    return [known.get(call_id, MOST) for call_id in sorted(ids)]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("code", [5, 28, 24], ids=["EIO", "ENOSPC", "EMFILE"])
def test_an_error_at_any_call_leaves_a_call_that_counts_or_none(shm: Path, code: int, after: bool) -> None:
    """Errors are FarroErrors; a call that reserve refused does not count, a call with an id counts once."""
    for number in itertools.count(1):
        root = str(shm / str(number))
        os.makedirs(f"{root}/jobs")
        ledger = opened(root, 2)
        made = []
        with placed(Errno(number, code, after)) as seam, contextlib.suppress(FarroError):
            made.append(ledger.reserve(charge(), LIMITS))
            ledger.settle(made[0], end="answered", usage=USAGE, cost_usd=COST)
        if seam.hit is None:
            break
        assert [call.id for call in judged(root, f"{seam!r}")] == made, f"{seam!r}"
    assert number > 10


# --- power cuts ----------------------------------------------------------------------------------------------


STATES = 20_000 if torture() else 500


def recorded(root: str) -> Log:
    os.makedirs(f"{root}/jobs")
    recorder = Recorder(root)
    fs.set_seam(recorder)
    try:
        ledger, other = opened(root, 1), opened(root, 2)
        calls = []
        for number, job in enumerate(("job-1", "job-1", "job-2"), 1):
            calls.append((ledger if number % 2 else other).reserve(charge(job, number), Budgets(day_usd=Decimal(9))))
            recorder.tell(("reserved", calls[-1]))
        for call_id in calls[:2]:
            other.settle(call_id, end="answered", usage=USAGE, cost_usd=COST)
            recorder.tell(("settled", call_id))
    finally:
        fs.set_seam(None)
    return Log.of(recorder)


def check(state: State, root: str) -> None:
    state.write_out(root)
    try:
        found = {call.id: call for call in judged(root, state.story)}
        for what, call_id in (ack for ack in state.acks if ack is not None):
            assert call_id in found, f"LOST: {what} {call_id}: {state.story}"
            if what == "settled":
                assert found[call_id].counts_usd == COST, f"LOST: {what} {call_id}: {state.story}"
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize("order", list(Order), ids=lambda order: order.name.lower())
def test_a_power_cut_keeps_every_call_that_was_reserved_and_tears_none(shm: Path, order: Order) -> None:
    log = recorded(str(shm / "root"))
    cuts = None if order is Order.BORN else log.told()
    count = 0
    for state in itertools.islice(states(log, seed=41, randoms=3, order=order, cuts=cuts), STATES):
        check(state, str(shm / "state"))
        count += 1
    assert count >= (50 if order is Order.BORN else 5)
    add_figure("power-loss states, ledger", count, "states")


@pytest.mark.parametrize(
    ("pattern", "order"),
    [
        (r".*/\.tmp-[0-9a-f]+", Order.BORN),
        (rf".*/{DAY}", Order.BORN),
        (r".*/jobs/job-1", Order.BORN),
        (r".*/\.ledger/jobs", Order.PLACELESS),
        (r".*/\.ledger", Order.PLACELESS),
    ],
    ids=["bytes", "names", "links", "jobs", "days"],
)
def test_a_sync_that_is_missing_under_the_ledger_is_noticed(shm: Path, pattern: str, order: Order) -> None:
    log = recorded(str(shm / "root"))
    dropped = [one for one in log.entries if isinstance(one, Synced) and re.fullmatch(pattern, one.what)]
    assert dropped, sorted({one.what for one in log.entries if isinstance(one, Synced)})
    poorer = log.without_syncs(lambda entry: any(entry is one for one in dropped))
    cuts = None if order is Order.BORN else poorer.told()
    for state in itertools.islice(states(poorer, seed=42, randoms=20, order=order, cuts=cuts), 5_000):
        try:
            check(state, str(shm / "state"))
        except AssertionError:
            return
    pytest.fail(f"no state needs the sync of {pattern}")
