"""Live updates: cards move, output streams, the server stops and returns."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from playwright.sync_api import expect

import farro
from browser.conftest import Visit
from browser.site import PATIENCE_S, Site, program

Come = Callable[..., Visit]

MARK = "() => { window.mark = 'same'; }"
MARKED = "() => window.mark"


@contextlib.contextmanager
def working(root: Path) -> Iterator[None]:
    """Run a worker beside the page until the queue is empty."""
    silent = subprocess.DEVNULL
    worker = subprocess.Popen(
        [sys.executable, "-m", "farro", "worker", "--drain"], cwd=root, stdout=silent, stderr=silent
    )
    try:
        yield
        worker.wait(PATIENCE_S)
    finally:
        worker.kill()
        worker.wait()


def test_a_card_moves_through_the_lanes_without_a_reload(fresh: Site, visit: Come) -> None:
    page = visit(fresh).open("board")
    page.evaluate(MARK)
    with farro.open(fresh.root) as queue:
        queue.enqueue(["sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"], id="mover", cwd=str(fresh.root))
    expect(page.locator(".lane[data-state=queued] [data-job=mover]")).to_be_visible()
    with working(fresh.root):
        expect(page.locator(".lane[data-state=in_progress] [data-job=mover]")).to_be_visible()
        expect(page.locator("[data-count=in_progress]")).to_have_text("1")
        (fresh.root / "go").touch()
        expect(page.locator(".lane[data-state=succeeded] [data-job=mover]")).to_be_visible()
        expect(page.locator(".lane[data-state=in_progress] .card")).to_have_count(0)
        expect(page.locator("[data-count=succeeded]")).to_have_text("1")
    assert page.evaluate(MARKED) == "same"


def test_output_and_steps_are_seen_while_the_job_runs(fresh: Site, visit: Come) -> None:
    steps = [
        {
            "id": "first",
            "command": "sh",
            "args": ["-c", "echo early; while [ ! -e go ]; do sleep 0.05; done; echo late"],
        },
        {"id": "second", "command": "echo", "args": ["after"], "needs": ["first"]},
    ]
    for step in steps:
        step["cwd"] = str(fresh.root)
    with farro.open(fresh.root) as queue:
        queue.enqueue({"steps": steps}, id="talker")
    page = visit(fresh).open("job/talker")
    expect(page.get_by_role("tabpanel")).to_contain_text("It has not begun.")
    page.evaluate(MARK)
    with working(fresh.root):
        log = page.get_by_role("log")
        expect(log).to_contain_text("early")
        expect(page.get_by_role("button", name="Step first, Running")).to_be_visible()
        (fresh.root / "go").touch()
        expect(log).to_contain_text("late")
        expect(log).to_contain_text("after")
        expect(page.get_by_role("button", name="Step second, Succeeded")).to_be_visible()
        expect(page).to_have_title("sh · Succeeded · farro".replace("sh", page.locator("h1").inner_text()))
    assert page.evaluate(MARKED) == "same"


def test_the_page_reports_a_failed_server_and_recovers(fresh: Site, visit: Come) -> None:
    visited = visit(fresh)
    page = visited.open("board")
    page.evaluate(MARK)
    expect(page.locator(".pulse")).to_contain_text("Live")
    fresh.stop()
    banner = page.get_by_role("alert").filter(has_text="No connection to the server.")
    expect(banner).to_be_visible()
    expect(page).to_have_title("Board · farro · no connection")
    with farro.open(fresh.root) as queue:
        queue.enqueue(["true"], id="meanwhile")
    fresh.start()
    expect(banner).to_have_count(0)
    expect(page.locator(".lane[data-state=queued] [data-job=meanwhile]")).to_be_visible()
    assert page.evaluate(MARKED) == "same"
    # The browser itself logs refused connections and truncated answers; the console must contain nothing else.
    cut = ("ERR_INCOMPLETE_CHUNKED", "ERR_CONTENT_LENGTH_MISMATCH", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")
    visited.expected = ("ERR_CONNECTION_REFUSED", *cut)


def test_the_page_reports_a_hung_server_and_recovers(fresh: Site, visit: Come) -> None:
    page = visit(fresh).open("board")
    page.evaluate(MARK)
    expect(page.locator(".pulse")).to_contain_text("Live")
    assert fresh.process is not None
    fresh.process.send_signal(signal.SIGSTOP)  # its connections stay open, but it sends nothing
    try:
        banner = page.get_by_role("alert").filter(has_text="The server does not answer.")
        expect(banner).to_be_visible()
        expect(page.locator(".pulse")).to_contain_text("No answer")
        expect(page).to_have_title("Board · farro · no answer")
        with farro.open(fresh.root) as queue:
            queue.enqueue(["true"], id="meanwhile")
    finally:
        fresh.process.send_signal(signal.SIGCONT)
    expect(banner).to_have_count(0)
    expect(page.locator(".pulse")).to_contain_text("Live")
    expect(page.locator(".lane[data-state=queued] [data-job=meanwhile]")).to_be_visible()
    assert page.evaluate(MARKED) == "same"


def test_a_session_that_ended_says_how_to_sign_in(fresh: Site, visit: Come) -> None:
    visited = visit(fresh)
    page = visited.open("overview")
    visited.context.clear_cookies()
    page.get_by_role("link", name="Board").click()
    expect(page.get_by_role("alert").first).to_contain_text("farro web --link")
    visited.expected = ("401",)


def test_signing_out_says_how_to_sign_in_again(fresh: Site, visit: Come) -> None:
    visited = visit(fresh)
    link = fresh.link()
    page = visited.page
    page.goto(link)
    page.goto(link)  # again, while signed in: shows the dashboard, not a refusal
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_title("farro: sign in")
    expect(page.get_by_role("main")).to_contain_text("farro web --link")
    page.goto(link)
    expect(page.get_by_role("main")).to_contain_text("it was used already")
    assert page.evaluate("() => getComputedStyle(document.querySelector('pre')).borderTopStyle") == "solid"
    visited.expected = ("401",)


def test_counts_change_on_the_overview_without_a_reload(fresh: Site, visit: Come) -> None:
    page = visit(fresh).open("overview")
    page.evaluate(MARK)
    figures = page.get_by_role("list", name="Figures").get_by_role("link")
    expect(figures.filter(has_text="Queued")).to_contain_text("0")
    with farro.open(fresh.root) as queue:
        queue.enqueue_many([["true"] for _ in range(7)])
    expect(figures.filter(has_text="Queued")).to_contain_text("7")
    program(fresh.root, "worker", "--drain")
    lane = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="Runner"))
    expect(lane).to_contain_text("7")
    expect(figures.filter(has_text="Queued")).to_contain_text("0")
    assert page.evaluate(MARKED) == "same"
