"""Check the dashboard with 100,000 jobs: the board shows one page, counts are right, search and updates work."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import expect

import farro
from browser.conftest import Visit
from browser.site import Site, init
from farro.jobs.envelope import Hop, Lifecycle
from farro.jobs.states import Reason, Status
from farro.jobs.times import timestamp
from support import eventually

Come = Callable[..., Visit]
JOBS = 100_000
SLOWEST_FRAME = """() => new Promise((done) => {
  let last = performance.now(), most = 0, turns = 0;
  const turn = (now) => {
    most = Math.max(most, now - last);
    last = now;
    (turns += 1) < 120 ? requestAnimationFrame(turn) : done(most);
  };
  requestAnimationFrame(turn);
})"""
PROMPT = {"steps": [{"id": "1", "command": "echo", "args": ["parcel"]}]}


def fill(root: Path, count: int) -> None:
    """Write finished jobs directly, as the store stores them: enqueuing and running so many would take minutes."""
    folder = root / "agents/Runner/completed/succeeded"
    folder.mkdir(parents=True, exist_ok=True)
    at, agent = "2026-01-01T00:00:00.000Z", "w.0.x"
    hop = Hop(at=at, role="Runner", attempt=1, reason=Reason.COMMITTED, to=str(folder), by=agent, note=None)
    life = Lifecycle(
        **dict.fromkeys(("created_at", "enqueued_at", "updated_at", "first_claimed_at", "finalized_at"), at),
        job_id="JOB",
        role="Runner",
        status=Status.SUCCEEDED,
        attempt=1,
        hops=(hop,),
        agent=agent,
    )
    model, prompt, begun = life.to_json().decode(), json.dumps(PROMPT), datetime.now(UTC) - timedelta(hours=6)
    for number in range(count):
        job_id = f"old-{number:06d}"
        told = model.replace("JOB", job_id).replace(at, timestamp(begun + timedelta(milliseconds=200 * number)))
        home = f"{folder}/{job_id}"
        os.mkdir(home)
        Path(home, "job.json").write_text(told)
        Path(home, "prompt.json").write_text(prompt)


@pytest.fixture
def large(shm: Path) -> Iterator[Site]:
    root = init(shm / "large")
    fill(root, JOBS)
    with farro.open(root) as queue:
        queue.enqueue_many([["true"] for _ in range(600)])
    site = Site(root=root).start()
    yield site
    site.stop()


def test_a_hundred_thousand_jobs_stay_a_page_of_cards(large: Site, visit: Come, figure: Callable[..., None]) -> None:
    eventually(lambda: large.ask("/api")["ready"], "the store was not read")
    visited = visit(large)
    began = time.monotonic()
    page = visited.open("board")
    expect(page.locator("[data-count=succeeded]")).to_have_text("100k")
    expect(page.locator("[data-count=queued]")).to_have_text("600")
    expect(page.locator(".lane[data-state=succeeded] .card")).to_have_count(25)
    expect(page.locator(".card")).to_have_count(50)
    figure("board of 100k jobs shown", round(time.monotonic() - began, 2), "s")
    page.get_by_role("button", name="Show more of Succeeded").click()
    expect(page.locator(".lane[data-state=succeeded] .card")).to_have_count(50)
    page.get_by_role("searchbox").fill("old-012345")
    expect(page.locator(".card")).to_have_count(1)
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".lane[data-state=queued] .card")).to_have_count(25)
    with farro.open(large.root) as queue:
        queue.enqueue(["true"], id="newcomer")
    expect(page.locator("[data-count=queued]")).to_have_text("601")
    slowest = page.evaluate(SLOWEST_FRAME)
    figure("longest frame of the board with 100k jobs", round(slowest), "ms")
    page.keyboard.press("Escape")
    page.goto(f"{large.url}/#/overview")
    expect(page.get_by_role("rowheader", name="Runner")).to_be_visible()
