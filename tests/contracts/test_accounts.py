"""The contract of the Accounts port: an account's pause is seen by all, ends once, and no clock makes it endless."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from farro.app import servers
from farro.config.settings import RedisSettings, Settings
from farro.host.clock import Clock, ManualClock
from farro.jobs.times import parse_timestamp
from farro.store.accounts import ASK_S, StoredAccounts, jitter_s
from farro.store.files.accounts import FilesAccounts
from farro.store.memory import MemoryAccounts
from farro.store.redis.accounts import RedisAccounts
from servers import RedisServer

Open = Callable[..., StoredAccounts]  # another process, with its own clock


def lowest(low: float, high: float) -> float:
    return low


@pytest.fixture(params=["memory", "files", "redis"])
def opened(request: pytest.FixtureRequest, shm: Path) -> Open:
    """Return a function that opens the same accounts; `boot_id` names the machine and its boot."""
    records: dict[str, str] = {}
    name = f"acct-{os.urandom(6).hex()}"
    server: RedisServer | None = request.getfixturevalue("redis_server") if request.param == "redis" else None
    (shm / "jobs").mkdir()

    def open_accounts(clock: Clock, *, boot_id: str = "boot-1") -> StoredAccounts:
        if request.param == "memory":
            memory = MemoryAccounts(clock, uniform=lowest, boot_id=boot_id)
            memory.records = records
            return memory
        if server is None:
            return FilesAccounts(str(shm), clock, uniform=lowest, boot_id=boot_id)
        settings = Settings(store=server.url, redis=RedisSettings(name=name))
        shared = servers.accounts(settings, clock)
        assert isinstance(shared, RedisAccounts)
        shared.uniform, shared.boot_id = lowest, boot_id
        return shared

    return open_accounts


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def accounts(opened: Open, clock: ManualClock) -> StoredAccounts:
    return opened(clock)


def limit(accounts: StoredAccounts, wait_s: float | None = None) -> float:
    left_s = accounts.pause("claude", kind="limited", reason="too much", wait_s=wait_s).left_s
    assert left_s is not None
    return left_s


def test_an_account_is_not_paused_at_first(accounts: StoredAccounts) -> None:
    assert accounts.find("claude") is None
    assert list(accounts.paused()) == []
    assert not accounts.resume("claude")


def test_a_pause_is_seen_by_others(accounts: StoredAccounts, opened: Open, clock: ManualClock) -> None:
    accounts.pause("claude", kind="limited", reason="You've hit your limit · resets 3pm ✓", wait_s=3600)
    accounts.pause("a/../b: ü", kind="refused", reason="wrong key")
    other = opened(clock)
    assert [(one.account, one.kind, one.left_s) for one in other.paused()] == [
        ("a/../b: ü", "refused", None),
        ("claude", "limited", 3600.0),
    ]
    found = other.find("claude")
    assert found is not None
    assert found.holds
    assert found.reason == "You've hit your limit · resets 3pm ✓"
    assert parse_timestamp(found.until or "") - parse_timestamp(found.at) == timedelta(hours=1)


def test_a_pause_ends_by_itself(accounts: StoredAccounts, clock: ManualClock) -> None:
    limit(accounts, 60)
    clock.advance(59)
    assert [one.left_s for one in accounts.paused()] == [1.0]
    clock.advance(1)
    assert list(accounts.paused()) == []
    over = accounts.find("claude")
    assert over is not None
    assert not over.holds


def test_of_two_limits_the_later_reset_wins(accounts: StoredAccounts, opened: Open, clock: ManualClock) -> None:
    assert limit(accounts, 600) == 600
    assert limit(opened(clock), 60) == 600
    assert limit(opened(clock), 900) == 900
    assert limit(accounts) == 900  # another report without a reset
    assert [one.left_s for one in accounts.paused()] == [900.0]


def test_a_refusal_waits_for_a_person(accounts: StoredAccounts, clock: ManualClock) -> None:
    limit(accounts, 600)
    refused = accounts.pause("claude", kind="refused", reason="the key is wrong")
    assert accounts.pause("claude", kind="limited", reason="too much", wait_s=60) == refused
    assert accounts.pause("claude", kind="refused", reason="again") == refused
    clock.advance(366 * 86400)
    assert [(one.kind, one.until, one.reason) for one in accounts.paused()] == [("refused", None, "the key is wrong")]
    assert accounts.resume("claude")
    assert not accounts.resume("claude")
    assert accounts.find("claude") is None


def test_pauses_grow_while_the_reset_is_unknown(accounts: StoredAccounts, clock: ManualClock) -> None:
    waits = []
    for _ in range(6):
        waits.append(limit(accounts))
        assert limit(accounts) == waits[-1]  # a second worker that was under way
        clock.advance(waits[-1])
    assert [wait / 60 for wait in waits] == [5, 10, 20, 40, 60, 60]
    seen = accounts.find("claude")
    assert seen is not None
    assert accounts.resume("claude", only=seen)  # it has answered
    assert limit(accounts) == 300


def test_a_person_is_asked_after_a_day_of_unknown_resets(accounts: StoredAccounts, clock: ManualClock) -> None:
    now = clock.now()
    lasted_s = 0.0
    while lasted_s < ASK_S:
        left_s = limit(accounts)
        paused = accounts.find("claude")
        assert paused is not None
        assert not paused.needs_person(now + timedelta(seconds=lasted_s))
        clock.advance(left_s)
        lasted_s += left_s
    assert paused.needs_person(parse_timestamp(paused.since) + timedelta(seconds=ASK_S))
    refused = accounts.pause("other", kind="refused", reason="no credit")
    assert refused.needs_person(now)


def test_an_answer_does_not_end_a_pause_that_it_did_not_see(
    accounts: StoredAccounts, opened: Open, clock: ManualClock
) -> None:
    limit(accounts, 60)
    seen = accounts.find("claude")
    assert seen is not None
    clock.advance(61)
    limit(opened(clock), 600)
    assert not accounts.resume("claude", only=seen)
    assert [one.left_s for one in accounts.paused()] == [600.0]


def test_a_jump_of_the_clock_neither_ends_a_pause_nor_extends_it(accounts: StoredAccounts, clock: ManualClock) -> None:
    """Row 38: the clock jumps over the reset of a limit."""
    limit(accounts, 600)
    for jump_s in (86_400.0, -2 * 86_400.0, 86_400.0):
        clock.jump(jump_s)
        assert [one.left_s for one in accounts.paused()] == [600.0]
    clock.jump(-86_400.0)
    clock.suspend(600)
    assert list(accounts.paused()) == []


def test_no_pause_outlives_a_reboot_with_a_wrong_clock(
    accounts: StoredAccounts, opened: Open, clock: ManualClock
) -> None:
    """Row 38: the clock jumps over the reset of a limit."""
    limit(accounts, 600)
    rebooted = opened(clock, boot_id="boot-2")
    if isinstance(rebooted, RedisAccounts):
        return  # it asks the server for the time
    assert [one.left_s for one in rebooted.paused()] == [600.0]
    clock.jump(-86_400.0)
    assert list(rebooted.paused()) == []
    clock.jump(86_400.0 + 601.0)
    assert list(rebooted.paused()) == []


def test_other_machines_measure_by_the_common_clock(accounts: StoredAccounts, opened: Open, clock: ManualClock) -> None:
    limit(accounts, 600)
    away = ManualClock(clock.now() + timedelta(seconds=0 if not isinstance(accounts, RedisAccounts) else 5000))
    (pause,) = opened(away, boot_id="boot-2").paused()
    assert pause.left_s == pytest.approx(600, abs=30)


def test_reports_at_the_same_time_make_one_pause(opened: Open, clock: ManualClock) -> None:
    """Row 37: two workers meet a usage limit."""
    threads = [threading.Thread(target=limit, args=(opened(clock),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (pause,) = opened(clock).paused()
    assert (pause.tries, pause.left_s) == (1, 300.0)


def test_an_unreadable_record_is_no_pause(accounts: StoredAccounts) -> None:
    limit(accounts, 600)
    before = accounts.load()["claude"]
    assert accounts.swap("claude", before, '{"kind": 1')
    assert (accounts.find("claude"), list(accounts.paused())) == (None, [])
    assert limit(accounts, 60) == 60
    if isinstance(accounts, FilesAccounts):
        with open(accounts._file, "w") as file:
            file.write("[")
        assert accounts.find("claude") is None
        assert limit(accounts, 60) == 60


def test_jitter_is_a_small_part_of_the_wait() -> None:
    highest = [jitter_s(wait_s, lambda low, high: high) for wait_s in (0.0, 60.0, 3600.0)]
    assert highest == [0.0, 6.0, 30.0]
