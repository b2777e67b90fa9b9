"""Check every page of the dashboard in a real browser: its content, its links, and its text when it is empty."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

import farro
from browser.conftest import Visit
from browser.site import Site

Come = Callable[..., Visit]


def test_the_overview_shows_queues_charts_workers_and_cost(furnished: Site, visit: Come) -> None:
    page = visit(furnished).open("overview")
    expect(page).to_have_title("(3) Overview · farro")
    lane = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="Runner"))
    expect(lane.get_by_label("6 queued")).to_be_visible()
    expect(lane).to_contain_text("1 delayed")
    expect(page.get_by_role("img", name="Jobs that ended")).to_be_visible()
    expect(page.get_by_role("img", name="Latency, last")).to_be_visible()
    expect(page.get_by_role("region", name="Workers")).to_contain_text("No workers")
    expect(page.get_by_role("region", name="Cost today")).to_contain_text("$0.06")
    page.get_by_role("link", name="Inbox").click()
    expect(page).to_have_title("(3) Inbox · farro")


def test_the_board_has_a_lane_for_each_state_and_searches(furnished: Site, visit: Come) -> None:
    page = visit(furnished).open("board")
    lanes = page.locator(".lane")
    expect(lanes).to_have_count(6)
    expect(page.locator("[data-count=succeeded]")).to_have_text("13")
    expect(page.locator("[data-job=nightly-1]")).to_contain_text("nightly build")
    expect(page.locator(".lane[data-state=failed] .card")).to_have_count(2)
    expect(page.locator("[data-job=later-1] .state")).to_contain_text(re.compile(r"in (2h|1h \d+m)"))
    page.keyboard.press("/")
    page.keyboard.type("parcel 07")
    expect(page.locator(".card")).to_have_count(1)
    assert "text=parcel+07" in page.url
    page.reload()
    expect(page.locator(".card")).to_have_count(1)
    expect(page.get_by_role("searchbox")).to_have_value("parcel 07")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".card")).not_to_have_count(1)
    page.get_by_role("button", name="Failed", exact=True).click()
    expect(lanes).to_have_count(1)


def test_a_job_shows_its_plan_output_prompt_files_and_timeline(furnished: Site, visit: Come) -> None:
    page = visit(furnished).open("job/nightly-1")
    expect(page).to_have_title("(3) nightly build · Failed · farro")
    expect(page.get_by_role("button", name="Step unit, Failed")).to_be_visible()
    expect(page.get_by_role("button", name="Step package, Skipped")).to_be_visible()
    log = page.get_by_role("log")
    expect(log).to_contain_text("3 passed")
    expect(log).to_contain_text("1 failed")
    page.get_by_role("button", name="Step lint, Succeeded").click()
    expect(log).to_contain_text("clean")
    expect(log).not_to_contain_text("3 passed")
    expect(page.get_by_role("button", name="Retry from here")).to_be_visible()
    page.get_by_role("tab", name="Prompt").click()
    expect(page.get_by_role("tabpanel")).to_contain_text('"needs"')
    page.get_by_role("tab", name="Files").click()
    page.get_by_role("button", name="prompt.json").first.click()
    expect(page.get_by_label("prompt.json", exact=True)).to_contain_text("nightly build")
    page.get_by_role("tab", name="Audit").click()
    expect(page.get_by_role("tabpanel").get_by_role("row")).not_to_have_count(0)
    expect(page.locator(".timeline")).to_contain_text("attempt 1")
    page.go_back()
    expect(page).to_have_title("(3) Overview · farro")


def test_an_agents_result_is_rendered_from_markdown(furnished: Site, visit: Come) -> None:
    page = visit(furnished).open("job/ask-1?tab=result")
    shown = page.get_by_role("tabpanel")
    expect(shown.locator(".prose")).to_contain_text("please")
    page.get_by_role("button", name="Source").click()
    expect(shown.locator("pre")).to_contain_text("**please**")


def test_a_task_shows_its_way_through_the_roles_and_its_change(furnished: Site, visit: Come) -> None:
    page = visit(furnished).open("task/greet")
    expect(page).to_have_title("(3) Greet people by name · Tasks · farro")
    steps = page.get_by_label("Roles of this task").get_by_role("listitem")
    expect(steps).to_have_count(3)
    expect(steps.nth(0)).to_have_attribute("data-state", "succeeded")
    expect(steps.nth(1)).to_have_attribute("data-state", "waiting")
    expect(page.locator(".way")).to_contain_text("SeniorEngineer")


def test_history_is_scrubbed_back_and_shows_the_queues_as_they_were(furnished: Site, visit: Come) -> None:
    page = visit(furnished).open("history")
    now = page.get_by_role("region", name="Queues now")
    runner = now.get_by_role("row").filter(has=page.get_by_role("rowheader", name="Runner"))
    expect(runner).to_contain_text("13")
    slider = page.get_by_role("slider", name="Moment shown")
    slider.focus()
    page.keyboard.press("Home")
    then = page.get_by_role("region", name="Queues then")
    expect(then).to_be_visible()
    expect(then).not_to_contain_text("13")
    assert "at=" in page.url
    page.get_by_role("button", name="Now").click()
    expect(runner).to_contain_text("13")


@pytest.mark.parametrize(
    ("place", "command"),
    [
        ("overview", "farro demo"),
        ("board", "Nothing waits."),
        ("tasks", "farro demo"),
        ("inbox", "farro inbox"),
        ("swarms", "farro swarm create demo"),
        ("history", "farro enqueue"),
    ],
)
def test_an_empty_page_says_what_to_do_next(bare: Site, visit: Come, place: str, command: str) -> None:
    page = visit(bare).open(place)
    expect(page.locator("main")).to_contain_text(command)


def test_an_unknown_job_or_page_is_reported(furnished: Site, visit: Come) -> None:
    visited = visit(furnished)
    page = visited.open("job/nobody-knows-it")
    expect(page.get_by_role("alert")).to_contain_text("no job nobody-knows-it")
    for place in ("elsewhere", "constructor", "board/of/nothing", "overview/x", "job/parcel-01/logs"):
        page.goto(f"{furnished.url}/#/{place}")
        expect(page).to_have_title("(3) No such page · farro")
        expect(page.get_by_role("main")).to_contain_text(f"Nothing is at #/{place}.")
    page.goto(f"{furnished.url}/#/swarm/nobody")
    expect(page.get_by_role("alert")).to_have_text("There is no swarm nobody here.")
    page.goto(f"{furnished.url}/#/task/nobody")
    expect(page.get_by_role("alert")).to_contain_text("nobody")
    page.goto(f"{furnished.url}/#/job/parcel-01?tab=nonsense")
    expect(page.get_by_role("tab", name="Output")).to_have_attribute("aria-selected", "true")
    page.goto(f"{furnished.url}/#/jobs")  # without an id, as a user may type it
    expect(page).to_have_title("(3) Board · farro")
    # The browser itself logs each 404 answer.
    visited.expected = ("404",)


def test_every_page_is_reachable_by_keyboard(furnished: Site, visit: Come) -> None:
    page = visit(furnished).open("overview")
    for key, name in (
        ("b", "Board"),
        ("t", "Tasks"),
        ("i", "Inbox"),
        ("s", "Swarms"),
        ("h", "History"),
        ("o", "Overview"),
    ):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(
            page.get_by_role("link", name=name, exact=False).and_(page.locator("[aria-current=page]"))
        ).to_be_visible()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(dialog).to_contain_text("New job")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("b")
    page.locator(".card").first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_role("region", name="Selected jobs")).to_contain_text("1 selected")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Output")).to_be_visible()


def test_colours_follow_the_system_and_a_switch_is_remembered(furnished: Site, visit: Come) -> None:
    page = visit(furnished, color_scheme="dark").open("overview")
    ground = "() => getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Colours").click()
    light = page.evaluate(ground)
    assert dark != light
    page.reload()
    page.locator("main").wait_for()
    assert page.evaluate(ground) == light


def test_a_page_is_as_long_as_its_visible_content(fresh: Site, visit: Come) -> None:
    """Hidden text for screen readers in scrolled-out rows must not make the page longer."""
    visited = visit(fresh)
    longer = "() => document.documentElement.scrollHeight - Math.round(document.getElementById('app').offsetHeight)"
    assert visited.open("inbox").evaluate(longer) == 0
    with farro.open(fresh.root) as queue:
        agents = [queue.store.join("slot", role="Runner") for _ in range(120)]
        page = visited.open("overview")
        expect(page.get_by_role("region", name="Workers").locator("tbody tr")).to_have_count(len(agents))
        assert page.evaluate(longer) == 0
        for agent in agents:
            queue.store.leave(agent)


def test_a_narrow_window_hides_the_footer_and_the_root_name(furnished: Site, visit: Come) -> None:
    visited = visit(furnished)
    page = visited.open("overview")
    where, foot = page.locator(".brand .where"), page.locator(".nav .foot")
    expect(where).to_have_text("shop")
    expect(foot).to_be_visible()
    page.set_viewport_size({"width": 800, "height": 900})
    expect(where).to_be_hidden()
    expect(foot).to_be_hidden()


@pytest.mark.parametrize("width", [1280, 1440])
def test_every_lane_header_fits_its_lane(fresh: Site, visit: Come, width: int) -> None:
    visited = visit(fresh)
    visited.page.set_viewport_size({"width": width, "height": 900})
    narrow = "() => [...document.querySelectorAll('.lane > header')].filter((el) => el.scrollWidth > el.clientWidth)"
    page = visited.open("board")
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    assert page.evaluate(f"({narrow})().length") == 0  # every lane is empty
    with farro.open(fresh.root) as queue:
        for number in range(3):
            queue.enqueue(["true"], id=f"one-{number}")
    expect(page.locator(".card")).to_have_count(3)
    assert page.evaluate(f"({narrow})().map((el) => el.textContent)") == []


@pytest.mark.parametrize("width", [1024, 1280])
def test_an_empty_lane_header_fits_beside_full_lanes(furnished: Site, visit: Come, width: int) -> None:
    visited = visit(furnished)
    visited.page.set_viewport_size({"width": width, "height": 900})
    page = visited.open("board")
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    expect(page.locator(".lane .none")).to_have_count(3)
    outside = """() => [...document.querySelectorAll('.lane > header > *')].filter((el) => {
      const [lane, part] = [el.closest('.lane').getBoundingClientRect(), el.getBoundingClientRect()];
      return part.width && (part.left < lane.left || part.right > lane.right);
    }).map((el) => el.textContent)"""
    assert page.evaluate(outside) == []


TIMES = """async () => {
  const { ago, dayClock, now } = await import("/page/js/format.js");
  const away = (seconds) => ago(new Date(now() + seconds * 1000).toISOString());
  const [today, year] = [new Date(now()), new Date(now()).getFullYear()];
  const other = new Date(year, today.getMonth() < 6 ? 11 : 0, 15, 12, 30, 15);
  return {
    ahead: [30.5, 90, 7140, 7199.5, 129600, 172800].map(away), behind: [-90, -7140, -129600].map(away),
    days: [today, other, new Date(2001, 1, 3, 4, 5, 6)].map((one) => dayClock(one.toISOString())),
  };
}"""


def test_times_show_their_day_and_future_times_are_not_rounded_away(furnished: Site, visit: Come) -> None:
    page = visit(furnished).open("overview")
    told = page.evaluate(TIMES)
    assert told["ahead"] == ["in 30s", "in 2m", "in 1h 59m", "in 2h", "in 1d 12h", "in 2d"]
    assert told["behind"] == ["1m ago", "1h ago", "1d ago"]
    today, other, long_ago = told["days"]
    assert re.fullmatch(r"\d\d:\d\d:\d\d", today)
    assert re.fullmatch(r"(12|01)-15 12:30", other)
    assert long_ago == "2001-02-03 04:05"


def test_an_end_in_the_timeline_has_the_time_of_the_end(furnished: Site, visit: Come) -> None:
    (attempt,) = furnished.ask("/api/jobs/nightly-1/history")["attempts"]
    assert attempt["ended_at"] > attempt["started_at"]
    page = visit(furnished).open("job/nightly-1")
    expect(page.locator(".timeline time").last).to_have_attribute("datetime", attempt["ended_at"])
