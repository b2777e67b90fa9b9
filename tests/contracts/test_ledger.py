"""The contract of the Ledger port, for the ledger of a root and for that of a Redis server."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stage
from crash.seams import Before, Open, placed
from farro.agents.providers.port import Usage
from farro.app import servers
from farro.config.settings import RedisSettings, Settings
from farro.errors import BadName, BudgetExceeded, Damaged
from farro.execution.functions import FunctionRun
from farro.execution.tools import Call
from farro.host import leases
from farro.host.clock import ManualClock
from farro.queue.prune import PruneFilter, candidates
from farro.store.files.ledger import FilesLedger
from farro.store.ledger import AccountBudget, Budgets, CallRecord, Charge, Ledger
from farro.store.redis.ledger import RedisLedger
from servers import RedisServer
from support import ROOT

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
TODAY, TOMORROW = "2026-11-16", "2026-11-17"
USAGE = Usage(input_tokens=10, output_tokens=5, cache_read_tokens=2)


def charge(most: str | None = "0.10", *, job: str = "job-1", role: str = "Architect", number: int = 1) -> Charge:
    return Charge(
        job_id=job,
        attempt=1,
        role=role,
        step="answer",
        number=number,
        provider="openai",
        model="gpt-5",
        request_sha256="ab" * 32,
        most_usd=None if most is None else Decimal(most),
    )


def limits(**usd: str) -> Budgets:
    return Budgets(**{f"{name}_usd": Decimal(amount) for name, amount in usd.items()})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def root(shm: Path) -> str:
    (shm / "jobs").mkdir()
    return str(shm)


OpenLedger = Callable[[], Ledger]  # another process, on the same calls


@pytest.fixture
def files(root: str, clock: ManualClock) -> FilesLedger:
    """The ledger of a root, for tests of its files."""
    return FilesLedger(root, clock, durable=False)


@pytest.fixture(params=["files", "redis"])
def opened(request: pytest.FixtureRequest, root: str, clock: ManualClock) -> OpenLedger:
    if request.param == "files":
        return lambda: FilesLedger(root, clock, durable=False)
    server: RedisServer = request.getfixturevalue("redis_server")
    settings = Settings(store=server.url, redis=RedisSettings(name=f"ledger-{os.urandom(6).hex()}"))

    def open_ledger() -> Ledger:
        made = servers.ledger(settings, clock)
        assert isinstance(made, RedisLedger)
        made._own_time = True
        return made

    return open_ledger


@pytest.fixture
def ledger(opened: OpenLedger) -> Ledger:
    return opened()


def counted(calls: Any) -> list[Decimal | None]:
    return [call.counts_usd for call in calls]


def test_a_call_counts_from_before_it_is_made(ledger: Ledger, opened: OpenLedger) -> None:
    call_id = ledger.reserve(charge(), Budgets())
    (call,) = opened().of_day(TODAY)
    assert (call.id, call.at, call.charge) == (call_id, "2026-11-16T12:00:00.000Z", charge())
    assert (call.end, call.estimated, call.counts_usd) == (None, True, Decimal("0.10"))


def test_a_settled_call_counts_its_actual_cost(ledger: Ledger, opened: OpenLedger) -> None:
    call_id = ledger.reserve(charge(), Budgets())
    ledger.settle(call_id, end="answered", usage=USAGE, cost_usd=Decimal("0.0123"))
    for reader in (ledger, opened()):
        (call,) = reader.of_job("job-1")
        assert (call.end, call.usage, call.estimated, call.counts_usd) == ("answered", USAGE, False, Decimal("0.0123"))


def test_settling_again_changes_nothing(ledger: Ledger, opened: OpenLedger) -> None:
    call_id = ledger.reserve(charge(), Budgets())
    opened().settle(call_id, end="answered", usage=USAGE, cost_usd=Decimal("0.02"))
    ledger.settle(call_id, end="failed", usage=None, cost_usd=Decimal("0.09"))
    (call,) = ledger.of_day(TODAY)
    assert (call.end, call.cost_usd) == ("answered", Decimal("0.02"))


def test_of_two_concurrent_settlements_one_counts(ledger: Ledger) -> None:
    call_id = ledger.reserve(charge(), Budgets())
    amounts = [Decimal(number) / 100 for number in range(1, 9)]
    threads = [
        threading.Thread(
            target=ledger.settle, args=(call_id,), kwargs={"end": "failed", "usage": None, "cost_usd": one}
        )
        for one in amounts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (call,) = ledger.of_day(TODAY)
    assert call.cost_usd in amounts


@pytest.mark.parametrize(
    ("end", "cost", "counts", "estimated"),
    [
        ("not_charged", None, "0", False),
        ("failed", None, "0.10", True),
        ("answered", None, "0.10", True),
        ("failed", "0.03", "0.03", False),
    ],
)
def test_a_call_of_unknown_cost_counts_its_highest_possible_cost(
    ledger: Ledger, end: Any, cost: str | None, counts: str, estimated: bool
) -> None:
    call_id = ledger.reserve(charge(), Budgets())
    ledger.settle(call_id, end=end, usage=None, cost_usd=None if cost is None else Decimal(cost))
    (call,) = ledger.of_day(TODAY)
    assert (call.counts_usd, call.estimated) == (Decimal(counts), estimated)


def test_an_unknown_price_is_null_and_never_zero(files: FilesLedger, root: str) -> None:
    call_id = files.reserve(charge(None), Budgets())
    assert counted(files.of_day(TODAY)) == [None]
    assert json.loads(Path(root, f"jobs/.ledger/{call_id}.json").read_bytes())["most_usd"] is None
    files.settle(call_id, end="answered", usage=None, cost_usd=None)
    assert counted(files.of_day(TODAY)) == [None]
    assert json.loads(Path(root, f"jobs/.ledger/{call_id}.settled.json").read_bytes())["cost_usd"] is None


def test_a_late_settle_counts_for_the_day_of_its_call(ledger: Ledger, clock: ManualClock) -> None:
    call_id = ledger.reserve(charge("1"), limits(day="1"))
    clock.advance(86_400)
    ledger.settle(call_id, end="answered", usage=USAGE, cost_usd=Decimal("0.4"))
    assert counted(ledger.of_day(TODAY)) == [Decimal("0.4")]
    assert ledger.of_day(TOMORROW) == []
    ledger.reserve(charge("1"), limits(day="1"))
    assert ledger.days() == [TODAY, TOMORROW]
    assert counted(ledger.of_job("job-1")) == [Decimal("0.4"), Decimal(1)]


def test_calls_of_one_millisecond_keep_their_order(ledger: Ledger) -> None:
    for number in range(1, 9):
        ledger.reserve(charge(number=number), Budgets())
    assert [call.charge.number for call in ledger.of_job("job-1")] == list(range(1, 9))
    assert [call.charge.number for call in ledger.of_day(TODAY)] == list(range(1, 9))


def test_the_calls_of_a_job_are_its_own_and_in_order(ledger: Ledger, clock: ManualClock) -> None:
    wanted = []
    for number in range(1, 6):
        wanted.append(ledger.reserve(charge(number=number), Budgets()))
        ledger.reserve(charge(job="job-10"), Budgets())
        ledger.reserve(charge(job="Architect", role="DocWriter"), Budgets())
        clock.advance(20_000)
    assert [call.id for call in ledger.of_job("job-1")] == wanted
    assert [call.charge.number for call in ledger.of_job("job-1")] == [1, 2, 3, 4, 5]
    assert len(ledger.of_job("Architect")) == 5
    assert ledger.of_job("job-2") == []


@pytest.mark.parametrize(
    ("budgets", "words"),
    [
        (limits(job="0.25"), ("the budget of job job-1 has 0.05 USD left", "Raise budgets.job_usd")),
        (limits(role="0.25"), ("role Architect for 2026-11-16 has 0.05 USD left", "Raise roles.Architect.budget_usd")),
        (limits(day="0.25"), ("the budget of 2026-11-16 has 0.05 USD left", "Raise budgets.day_usd")),
    ],
)
def test_a_call_that_would_exceed_a_budget_is_refused_with_advice(
    ledger: Ledger, root: str, budgets: Budgets, words: tuple[str, str]
) -> None:
    first = ledger.reserve(charge(), budgets)
    ledger.reserve(charge(), budgets)
    before, calls = stage.tree(root), ledger.of_day(TODAY)
    with pytest.raises(BudgetExceeded) as refused:
        ledger.reserve(charge(), budgets)
    for part in (*words, "openai (gpt-5) may cost up to 0.10 USD", "0.20 of 0.25 are spent (0.20 of it estimated)"):
        assert part in str(refused.value)
    assert refused.value.exit_code == 3
    assert (stage.tree(root), ledger.of_day(TODAY)) == (before, calls)
    ledger.settle(first, end="answered", usage=USAGE, cost_usd=Decimal("0.05"))  # cheaper than reserved
    ledger.reserve(charge(), budgets)


def test_a_budget_counts_only_its_own_calls(ledger: Ledger, clock: ManualClock) -> None:
    ledger.reserve(charge("0.2"), Budgets())
    ledger.reserve(charge("0.1", job="job-2"), limits(job="0.1"))
    ledger.reserve(charge("0.1", role="DocWriter"), limits(role="0.1"))
    with pytest.raises(BudgetExceeded, match="job job-1"):
        ledger.reserve(charge("0.1", role="DocWriter"), limits(job="0.3"))
    clock.advance(86_400)  # a new day for roles and days, not for jobs
    ledger.reserve(charge("0.1"), limits(role="0.1", day="0.1", job="0.4"))
    with pytest.raises(BudgetExceeded, match="job job-1"):
        ledger.reserve(charge("0.1"), limits(job="0.4"))


def test_the_budget_of_an_account_counts_all_its_providers(ledger: Ledger, clock: ManualClock) -> None:
    team = AccountBudget(
        account="team", limit_usd=Decimal("0.3"), key="providers.quick.budget_usd", providers=("openai", "quick")
    )
    ledger.reserve(charge("0.2", role="DocWriter"), Budgets(account=team))
    settled = ledger.reserve(replace(charge("0.2"), provider="other"), Budgets())
    ledger.settle(settled, end="answered", usage=USAGE, cost_usd=Decimal("0.2"))
    quick = replace(charge("0.1", job="job-2"), provider="quick")
    ledger.settle(ledger.reserve(quick, Budgets(account=team)), end="answered", usage=USAGE, cost_usd=Decimal("0.05"))
    with pytest.raises(
        BudgetExceeded, match=rf"account team for {TODAY} has 0\.05.*Raise providers\.quick\.budget_usd"
    ):
        ledger.reserve(quick, Budgets(account=team))
    clock.advance(86_400)
    ledger.reserve(quick, Budgets(account=team))


def test_a_call_of_unknown_price_is_refused_if_a_budget_is_set(ledger: Ledger, root: str) -> None:
    for budgets in (limits(job="9"), limits(role="9"), limits(day="9")):
        with pytest.raises(BudgetExceeded, match=r"`providers\.openai\.prices`.*`providers\.openai\.call_usd`"):
            ledger.reserve(charge(None), budgets)
    assert (stage.tree(root), ledger.days()) == ("", [])


def test_a_budget_with_calls_of_unknown_cost_refuses_more_calls(ledger: Ledger) -> None:
    call_id = ledger.reserve(charge(None), Budgets())
    with pytest.raises(BudgetExceeded, match=f"it is unknown what is left of the budget of {TODAY}.*{call_id}"):
        ledger.reserve(charge(job="job-2"), limits(day="9"))
    ledger.reserve(charge(job="job-2", role="DocWriter"), limits(role="9", job="9"))  # neither counts that call
    ledger.settle(call_id, end="answered", usage=USAGE, cost_usd=Decimal("0.5"))
    ledger.reserve(charge(job="job-2"), limits(day="9"))


@pytest.mark.parametrize("data", [b"", b"{", b'{"schema_version": "9.0.0"}', b"[]", b"\xff\x00", b"0" * 70_000])
def test_a_file_that_cannot_be_read_counts_as_unknown(
    files: FilesLedger, root: str, clock: ManualClock, data: bytes
) -> None:
    call_id = files.reserve(charge(), Budgets())
    path = Path(root, f"jobs/.ledger/{call_id}.json")
    path.write_bytes(data)
    fresh = FilesLedger(root, clock)
    (call,) = fresh.of_day(TODAY)
    assert (call.id, call.charge.job_id, call.charge.role) == (call_id, "job-1", "Architect")
    assert call.counts_usd is None
    with pytest.raises(BudgetExceeded, match="it is unknown what is left"):
        fresh.reserve(charge(job="job-2"), limits(day="9"))
    with pytest.raises(Damaged, match="counts as unknown"):
        fresh.settle(call_id, end="answered", usage=None, cost_usd=Decimal(0))


def test_a_damaged_settlement_counts_the_highest_possible_cost(files: FilesLedger, root: str) -> None:
    call_id = files.reserve(charge(), Budgets())
    Path(root, f"jobs/.ledger/{call_id}.settled.json").write_bytes(b"{")
    assert counted(files.of_day(TODAY)) == [Decimal("0.10")]


@pytest.mark.parametrize(
    "call_id", ["", "x", "../../etc/passwd", f"{TODAY}/../x", f"{TODAY}/120000000.j.R.000000000000"]
)
def test_only_a_reserved_call_can_be_settled(ledger: Ledger, root: str, call_id: str) -> None:
    with pytest.raises(Damaged, match=r"not a call of the ledger|no call .* in the ledger"):
        ledger.settle(call_id, end="answered", usage=None, cost_usd=None)
    assert stage.tree(root) == ""


def test_no_path_is_built_from_an_invalid_call_id(ledger: Ledger, root: str) -> None:
    for bad in (charge(job="../x"), charge(role="../x")):
        with pytest.raises(BadName):
            ledger.reserve(bad, Budgets())
    with pytest.raises(BadName):
        ledger.of_job("../x")
    assert ledger.of_day("../jobs") == []
    assert stage.tree(root) == ""


def test_the_layout_reads_with_ls_and_cat(files: FilesLedger, root: str) -> None:
    call_id = files.reserve(charge(), Budgets())
    folder = Path(root, "jobs/.ledger")
    assert os.readlink(folder / "jobs/job-1" / TODAY) == f"../../{TODAY}"
    (file,) = (folder / "jobs/job-1" / TODAY).glob("*.job-1.*.json")
    told = json.loads(file.read_text())
    assert file.name.startswith("120000000.job-1.Architect.")
    assert (told["id"], told["most_usd"], told["model"]) == (call_id, "0.10", "gpt-5")


def test_pruning_a_job_keeps_the_costs_of_its_days(shm: Path) -> None:
    root = str(shm / "root")
    store = stage.open_files(stage.make(root), seed=1)
    job_id = store.enqueue(stage.submission(1))
    stage.work_one(store, store.join("w", role="Runner"), stage.History())
    ledger = FilesLedger(root, ManualClock(NOON), durable=False)
    ledger.reserve(charge("0.7", job=job_id), Budgets())
    clock = stage.QuickClock()
    store.remove(candidates(store, PruneFilter(keep=0), now=clock.now()), by="pruner")
    store.close()
    assert not Path(root, f"jobs/.ledger/jobs/{job_id}").exists()
    assert ledger.of_job(job_id) == []
    assert counted(ledger.of_day(TODAY)) == [Decimal("0.7")]
    with pytest.raises(BudgetExceeded):
        ledger.reserve(charge("0.4"), limits(day="1"))


RACER = """
    import sys
    from datetime import UTC, datetime
    from decimal import Decimal
    from contracts.test_ledger import charge, limits, NOON
    from farro.errors import BudgetExceeded
    from farro.store.files.ledger import FilesLedger
    from farro.host.clock import ManualClock
    ledger = FilesLedger(sys.argv[1], ManualClock(NOON), durable=False)
    made = 0
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(40):
        try:
            ledger.reserve(charge("0.10", job=sys.argv[2]), limits(day="5", role="4.9", job="2.5"))
            made += 1
        except BudgetExceeded:
            pass
    print(made)
"""


def test_processes_that_reserve_at_once_never_exceed_a_budget(root: str, clock: ManualClock) -> None:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}/tests"}
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(RACER), root, f"job-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
        )
        for number in (1, 2, 2)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == b"ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(b"\n")
        racer.stdin.flush()
    made = [int(racer.communicate()[0]) for racer in racers]
    ledger = FilesLedger(root, clock)
    assert sum(made) == len(ledger.of_day(TODAY)) == 49
    assert len(ledger.of_job("job-1")) <= 25
    assert len(ledger.of_job("job-2")) <= 25
    assert max(len(ledger.of_job("job-1")), len(ledger.of_job("job-2"))) == 25


def test_threads_that_reserve_at_once_never_exceed_a_budget(opened: OpenLedger) -> None:
    made: list[str] = []

    def spend(job: str) -> None:
        mine = opened()
        for _ in range(20):
            with contextlib.suppress(BudgetExceeded):
                made.append(mine.reserve(charge("0.10", job=job), limits(day="3", job="1.5")))

    threads = [threading.Thread(target=spend, args=(f"job-{number}",)) for number in (1, 2, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger = opened()
    assert len(made) == len(ledger.of_day(TODAY)) == 30
    assert [len(ledger.of_job(job)) for job in ("job-1", "job-2")] == [15, 15]


def test_a_call_that_another_machine_records_meanwhile_counts(
    opened: OpenLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One machine has checked the budget and is about to write when another one spends the rest of it."""
    ledger, other = opened(), opened()
    if not isinstance(ledger, RedisLedger):
        return  # it has a lock: test_only_one_process_checks_a_budget_at_a_time
    check = ledger.check
    others = iter([lambda: other.reserve(charge("0.6"), limits(day="1"))])

    def checked(*args: Any) -> None:
        check(*args)
        next(others, lambda: "")()

    monkeypatch.setattr(ledger, "check", checked)
    with pytest.raises(BudgetExceeded, match=r"has 0\.40 USD left"):
        ledger.reserve(charge("0.6"), limits(day="1"))
    ledger.reserve(charge("0.4"), limits(day="1"))
    assert len(ledger.of_day(TODAY)) == 2


def test_a_record_in_redis_that_cannot_be_read_counts_as_unknown(opened: OpenLedger) -> None:
    ledger = opened()
    if not isinstance(ledger, RedisLedger):
        return
    call_id = ledger.reserve(charge(), Budgets())
    day, _, name = call_id.partition("/")
    ledger._server.call("HSET", ledger._key(day), f"{name}.json", "{")
    fresh = opened()
    (call,) = fresh.of_day(TODAY)
    assert (call.id, call.charge.job_id, call.counts_usd) == (call_id, "job-1", None)
    with pytest.raises(BudgetExceeded, match="it is unknown what is left"):
        fresh.reserve(charge(job="job-2"), limits(day="9"))
    with pytest.raises(Damaged, match="counts as unknown"):
        fresh.settle(call_id, end="answered", usage=None, cost_usd=Decimal(0))


def test_only_one_process_checks_a_budget_at_a_time(files: FilesLedger, root: str, clock: ManualClock) -> None:
    """One process has checked the budget and is about to write when another checks it. Without the lock both would
    spend the rest of the budget."""
    other = FilesLedger(root, clock, durable=False)
    refused: list[BudgetExceeded] = []

    def second() -> None:
        try:
            other.reserve(charge("0.6"), limits(day="1"))
        except BudgetExceeded as error:
            refused.append(error)

    late = threading.Thread(target=second)

    def between() -> None:
        late.start()
        late.join(0.3)  # with the lock it cannot end before we do; without it there is nothing to wait for

    with placed(Before("move", between)):
        files.reserve(charge("0.6"), limits(day="1"))
        late.join()
    assert len(refused) == len(files.of_day(TODAY)) == 1


class Reads(Open):
    """Count the files that are read."""

    def __init__(self) -> None:
        self.count = 0

    def look(self, op: str, path: str) -> None:
        self.count += op == "read"


def test_a_budget_check_reads_only_new_files(files: FilesLedger, root: str, clock: ManualClock) -> None:
    budgets = limits(day="1000", role="1000", job="1000")
    calls = [files.reserve(charge(), budgets) for _ in range(30)]
    for call_id in calls:
        files.settle(call_id, end="answered", usage=USAGE, cost_usd=Decimal("0.01"))
    clock.advance(86_400)  # history
    files.reserve(charge(job="job-2"), budgets)
    files.reserve(charge(job="job-2"), budgets)
    FilesLedger(root, clock, durable=False).reserve(charge(job="job-2"), budgets)
    with placed(Reads()) as reads:
        files.reserve(charge(job="job-2"), budgets)
    assert reads.count == 2  # the one that this process made before, and the other process's


def test_settlements_elsewhere_and_removed_calls_are_noticed(files: FilesLedger, root: str, clock: ManualClock) -> None:
    budgets = limits(day="1", role="1")
    first, second = files.reserve(charge("0.5"), budgets), files.reserve(charge("0.5"), budgets)
    other = FilesLedger(root, clock, durable=False)
    for here in (files, other):
        with pytest.raises(BudgetExceeded, match=r"has 0\.00 USD left"):
            here.reserve(charge("0.1"), budgets)
    other.settle(first, end="answered", usage=USAGE, cost_usd=Decimal("0.4"))
    with pytest.raises(BudgetExceeded, match=r"has 0\.10 USD left"):
        files.reserve(charge("0.2"), budgets)
    Path(root, f"jobs/.ledger/{second}.json").unlink()
    for here in (files, other):
        with pytest.raises(BudgetExceeded, match=r"has 0\.60 USD left"):
            here.reserve(charge("0.7"), budgets)


amounts = st.decimals(min_value=0, max_value=10_000, places=9)


@given(most=st.none() | amounts, cost=st.none() | amounts, step=st.text(max_size=30), model=st.none() | st.text())
def test_a_written_call_is_read_back(most: Decimal | None, cost: Decimal | None, step: str, model: str | None) -> None:
    from farro.store import call_days as ledger_calls

    one = Charge(
        job_id="j",
        attempt=2,
        role="R",
        step=step,
        number=3,
        provider="p",
        model=model,
        request_sha256="",
        most_usd=most,
    )
    call = CallRecord(id=f"{TODAY}/x", at="t", charge=one, end="failed", usage=USAGE, cost_usd=cost)
    if any("\ud800" <= char <= "\udfff" for char in f"{step}{model}"):
        return  # no parsed document contains such a text
    assert ledger_calls.decoded(ledger_calls.encoded(call)) == call


@pytest.mark.linux
def test_a_process_that_waits_for_the_ledger_can_be_killed(files: FilesLedger, root: str, tmp_path: Path) -> None:
    """A worker that was stopped (SIGSTOP) may hold the lock for any time."""
    files.reserve(charge(), limits(job="5"))
    with leases.exclusively(f"{root}/jobs/.ledger/.lock"):
        waiting = FunctionRun(
            lambda call: files.reserve(charge(), limits(job="5")) and None,
            lambda files: Call(
                command="",
                args=(),
                stdin=files.stdin,
                stdout=files.stdout,
                stderr=files.stderr,
                env={},
                cwd="/",
                job_id="j",
                attempt_dir="0001",
            ),
            stdin=None,
            stdout=str(tmp_path / "o"),
            stderr=str(tmp_path / "e"),
        )
        assert waiting.wait(0.1) is None
        waiting.end(None, grace_s=10)
        assert waiting.exit is not None
        waiting.close()
    assert len(files.of_job(charge().job_id)) == 1
