"""Actions on the page: kill, retry, bulk actions with a confirmation, inbox answers, new jobs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import expect

import farro
from browser.conftest import Visit
from browser.site import NIGHTLY, Site, program
from farro.agents.permissions import PermissionBox
from farro.agents.session_folder import SessionFolder
from farro.app import App
from farro.config.reader import load
from farro.jobs.times import timestamp
from farro.store.port import claim_one

Come = Callable[..., Visit]


@pytest.fixture
def own(model: Path, tmp_path: Path) -> Iterator[Site]:
    """Serve a furnished root for one test."""
    site = Site(root=shutil.copytree(model, tmp_path / "shop", symlinks=True)).start()
    yield site
    site.stop()


def test_selected_jobs_are_killed_after_a_question(fresh: Site, visit: Come) -> None:
    with farro.open(fresh.root) as queue:
        for number in range(4):
            queue.enqueue(["true"], id=f"doomed-{number}")
    page = visit(fresh).open("board")
    expect(page.locator(".lane[data-state=queued] .card")).to_have_count(4)
    page.get_by_label("Select the shown jobs of Queued").check()
    bar = page.get_by_role("region", name="Selected jobs")
    expect(bar).to_contain_text("4 selected")  # drawn in the next frame: an unchecked box is not unchecked again
    page.locator("[data-job=doomed-3] input").uncheck()
    expect(bar).to_contain_text("3 selected")
    bar.get_by_role("button", name="Kill").click()
    dialog = page.get_by_role("dialog", name="Kill 3 jobs?")
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.locator(".lane[data-state=queued] .card")).to_have_count(4)
    bar.get_by_role("button", name="Kill").click()
    dialog.get_by_label("Why").fill("not needed")
    dialog.get_by_role("button", name="Kill 3").click()
    expect(page.locator(".lane[data-state=killed] .card")).to_have_count(3)
    expect(page.locator(".lane[data-state=queued] .card")).to_have_count(1)
    told = program(fresh.root, "show", "doomed-0", "--json").stdout
    assert '"killed"' in told
    assert "not needed" in told


def test_a_selection_survives_new_cards_and_moves_none(fresh: Site, visit: Come) -> None:
    with farro.open(fresh.root) as queue:
        for number in range(3):
            queue.enqueue(["true"], id=f"early-{number}")
    visited = visit(fresh)
    lane = "**/api/jobs?status=queued*"
    visited.page.route(lane, lambda route: None)
    with visited.page.expect_request(lane):
        page = visited.open("board")
    box = page.get_by_label("Select the shown jobs of Queued")
    expect(box).to_be_disabled()  # there is nothing to select yet, and a click would be lost
    page.unroute(lane)  # release the held request
    expect(page.locator(".lane[data-state=queued] .card")).to_have_count(3)
    where = page.locator("[data-job=early-2]").bounding_box()
    box.check()
    expect(page.get_by_role("region", name="Selected jobs")).to_contain_text("3 selected")
    assert page.locator("[data-job=early-2]").bounding_box() == where
    with farro.open(fresh.root) as queue:
        queue.enqueue(["true"], id="late")
    expect(page.locator(".lane[data-state=queued] .card")).to_have_count(4)
    expect(page.locator(".card.chosen")).to_have_count(3)
    assert box.evaluate("box => box.indeterminate && !box.checked")
    box.check()
    expect(page.locator(".card.chosen")).to_have_count(4)
    box.uncheck()
    expect(page.get_by_role("region", name="Selected jobs")).to_have_count(0)


def test_a_failed_job_is_retried_from_a_step(fresh: Site, visit: Come) -> None:
    with farro.open(fresh.root) as queue:
        queue.enqueue(NIGHTLY, id="nightly")
    program(fresh.root, "worker", "--drain")
    page = visit(fresh).open("job/nightly")
    page.get_by_role("button", name="Step unit, Failed").click()
    page.get_by_role("button", name="Retry from here").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    expect(page.locator("aside")).to_contain_text("Retry of")
    expect(page.locator("aside")).to_contain_text("nightly")
    expect(page.locator("aside .state").first).to_have_text("Queued")


def test_a_person_approves_refuses_and_edits(own: Site, visit: Come) -> None:
    page = visit(own).open("inbox")
    waiting = page.get_by_role("navigation", name="Waiting").get_by_role("listitem")
    expect(waiting).to_have_count(3)
    expect(page.get_by_role("article")).to_contain_text("please")
    page.get_by_role("button", name="Approve").click()
    page.get_by_role("dialog").get_by_role("button", name="Approve").click()
    expect(waiting).to_have_count(2)
    page.keyboard.press("r")
    dialog = page.get_by_role("dialog", name="Refuse?")
    dialog.get_by_role("button", name="Refuse").click()
    expect(dialog).to_be_visible()  # it needs a reason
    dialog.get_by_label("Note").fill("too loud")
    dialog.get_by_role("button", name="Refuse").click()
    expect(waiting).to_have_count(1)
    page.keyboard.press("e")
    page.get_by_role("dialog").get_by_label("Result").fill("Softer words.")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.locator("main")).to_contain_text("Nothing waits for you")
    hops = [own.ask(f"/api/jobs/ask-{number}")["hops"][-1] for number in (1, 2, 3)]
    assert sorted(str(hop["note"]) for hop in hops if hop["note"])[-1] == "too loud"


def test_a_person_allows_what_the_agent_of_a_running_job_asks(fresh: Site, visit: Come) -> None:
    with farro.open(fresh.root) as queue:
        queue.enqueue(["true"], id="working")
    store = App().open_store(str(fresh.root), load(str(fresh.root)), brief=True)
    try:
        claim_one(store, store.join("worker", role="Runner"))
        folder = SessionFolder.of_step(str(fresh.root), "working", "Runner", "1")
        folder.make()
        with PermissionBox(
            folder=folder.path, role="Runner", now=lambda: timestamp(datetime.now(UTC)), redact=str
        ) as box:
            asked = box.ask("May the agent do this (execute)? make test")
            page = visit(fresh).open("inbox")
            expect(page.get_by_role("article")).to_contain_text("make test")
            expect(page.get_by_role("article")).to_contain_text("Runner asks, and waits")
            expect(page.get_by_role("button", name="Edit")).to_have_count(0)
            page.get_by_role("button", name="Approve").click()
            page.get_by_role("dialog").get_by_role("button", name="Approve").click()
            expect(page.locator("main")).to_contain_text("Nothing waits for you")
            assert box.answer(asked) is True
    finally:
        store.close()


def test_a_refused_bulk_action_says_why(fresh: Site, visit: Come) -> None:
    with farro.open(fresh.root) as queue:
        queue.enqueue(["true"], id="quick")
    page = visit(fresh).open("board")
    page.get_by_label("Select true").check()
    program(fresh.root, "worker", "--drain")
    expect(page.locator(".lane[data-state=succeeded] [data-job=quick]")).to_be_visible()
    asked = """async () => {
      const { actOnJobs } = await import("/page/js/job_actions.js");
      window.answered = actOnJobs("kill", ["quick", "nobody"]);
    }"""
    page.evaluate(asked)
    page.get_by_role("dialog").get_by_role("button", name="Kill 2").click()
    expect(page.locator(".toast")).to_contain_text(
        "2 jobs not killed: quick is succeeded already; nothing was changed; and 1 other"
    )


def test_typed_text_stays_when_the_server_refuses_it(fresh: Site, visit: Come) -> None:
    visited = visit(fresh)
    page = visited.open("overview")
    page.get_by_role("button", name="New job").click()
    dialog = page.get_by_role("dialog", name="New job")
    command = dialog.get_by_label("Command")
    command.fill("echo 'unterminated")
    dialog.get_by_label("Tags").fill("gpu")
    dialog.get_by_role("button", name="Enqueue").click()
    expect(dialog.get_by_role("alert")).to_have_text("The single quote ' is not closed.")
    expect(command).to_be_focused()
    expect(command).to_have_accessible_description("The single quote ' is not closed.")
    command.fill("echo ok")
    dialog.get_by_label("Delay").fill("soon")
    dialog.get_by_role("button", name="Enqueue").click()
    expect(dialog.get_by_role("alert")).to_have_count(1)
    expect(dialog.get_by_label("Delay")).to_be_focused()
    expect(dialog).not_to_contain_text("body:")
    expect(command).to_have_value("echo ok")
    expect(dialog.get_by_label("Tags")).to_have_value("gpu")
    page.mouse.click(5, 5)  # beside it, by mistake
    expect(command).to_have_value("echo ok")
    assert fresh.ask("/api/jobs")["jobs"] == []
    dialog.get_by_label("Delay").fill("2h")
    dialog.get_by_label("Id").fill("parcel-1")
    dialog.get_by_label("Role").select_option("Architect")
    dialog.get_by_label("Priority").select_option("P1")
    dialog.get_by_role("button", name="Enqueue").click()
    expect(page).to_have_title("echo ok · Delayed · farro")
    (job,) = fresh.ask("/api/jobs")["jobs"]
    assert (job["job_id"], job["role"], job["priority"], job["tags"]) == ("parcel-1", "Architect", "P1", ["gpu"])
    visited.expected = ("422", "400")


SPLIT = """async (line) => {
  const { splitCommandLine } = await import("/page/js/command_line.js");
  try { return splitCommandLine(line); } catch (error) { return error.message; }
}"""
LINES = (
    r'printf "a\nb\n"',
    r"printf a\ b 'c\d' \'e\'",
    r"""say "it's \"so\" \\ \$HOME \`x\` \x" """,
    "one  two\tthree '' \"\" a''b",
    "a\"b\"'c'd",
    "",
)
ENDLESS = {"a 'b": "single quote", r'a "b\"': "double quote", "a \\": "ends with a backslash"}


def test_a_command_line_is_split_as_a_shell_splits_it(furnished: Site, visit: Come) -> None:
    page = visit(furnished).open("overview")
    for line in LINES:
        loop = f"for word in {line}; do printf '%s\\0' \"$word\"; done"
        told = subprocess.run(["sh", "-c", loop], capture_output=True, check=True, text=True).stdout
        assert page.evaluate(SPLIT, line) == told.split("\0")[:-1], line
    for line, why in ENDLESS.items():
        assert why in page.evaluate(SPLIT, line)


def test_a_command_is_enqueued_from_the_page(fresh: Site, visit: Come) -> None:
    page = visit(fresh).open("overview")
    page.keyboard.press("n")
    dialog = page.get_by_role("dialog", name="New job")
    dialog.get_by_label("Command").fill("printf '%s|' 'two words' \"it's\"")
    dialog.get_by_role("button", name="Enqueue").click()
    expect(page.get_by_role("tab", name="Output")).to_be_visible()
    program(fresh.root, "worker", "--drain")
    expect(page.get_by_role("log")).to_contain_text("two words|it's|")


def test_a_paused_account_is_shown_and_resumed_after_a_question(fresh: Site, visit: Come) -> None:
    settings = load(str(fresh.root))
    store = App().open_store(str(fresh.root), settings)
    try:
        store.accounts().pause("script", kind="refused", reason="401: <b>no</b> such key")
        page = visit(fresh).open("overview")
        told = page.get_by_role("region", name="Paused accounts")
        expect(told).to_contain_text(re.compile("Account script is refused since .* no job waits"))
        expect(told).to_contain_text("401: <b>no</b> such key")
        told.get_by_role("button", name="Resume the account script").click()
        dialog = page.get_by_role("dialog", name="Resume the account script?")
        dialog.get_by_role("button", name="Cancel").click()
        assert store.accounts().paused()
        page.goto(f"{fresh.url}/#/inbox")  # only a person can put it in order
        told.get_by_role("button", name="Resume the account script").click()
        dialog.get_by_role("button", name="Resume").click()
        expect(page.locator("main")).to_contain_text("Nothing waits for you")
        expect(told).to_have_count(0)
        assert store.accounts().paused() == []
    finally:
        store.close()


def test_a_queue_is_paused_and_resumed_on_the_page(fresh: Site, visit: Come) -> None:
    with farro.open(fresh.root) as queue:
        queue.enqueue(["echo", "held"], id="held")
    page = visit(fresh).open("overview")
    page.get_by_role("button", name="Pause the queue of Runner").click()
    dialog = page.get_by_role("dialog", name="Pause the queue of Runner?")
    dialog.get_by_label("Why").fill("the disk is full")
    dialog.get_by_role("button", name="Pause").click()
    lane = page.get_by_role("table", name="Queues per role").get_by_role("row").filter(has_text="Runner")
    expect(lane).to_contain_text(re.compile(r"Paused (now|\d+s ago) by \S+: the disk is full"))
    page.goto(f"{fresh.url}/#/board")
    expect(page.get_by_role("list", name="Paused queues")).to_have_text("Runner is paused")
    page.goto(f"{fresh.url}/#/job/held")
    notice = page.locator(".notice")
    expect(notice).to_contain_text("The queue of Runner is paused by")
    expect(notice).to_contain_text("farro resume Runner")
    program(fresh.root, "resume", "Runner")  # outside the page, which is notified although no job changed
    expect(notice).not_to_contain_text("is paused")
    program(fresh.root, "pause", "Runner")
    notice.get_by_role("button", name="Resume the queue").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(notice).not_to_contain_text("is paused")
    assert json.loads(program(fresh.root, "pause", "--json").stdout) == {"paused": {}}
