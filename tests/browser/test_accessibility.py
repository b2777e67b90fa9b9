"""Check every page for keyboard and screen reader users, in light and dark: names, contrast, focus, reduced motion."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from browser import accessibility
from browser.conftest import Visit
from browser.site import Site

Come = Callable[..., Visit]
OPERABLE = """() => [...document.querySelectorAll("a[href], button, input, select")]
  .filter((el) => el.tabIndex >= 0 && !el.disabled && el.checkVisibility()).length"""
# Elements that overflow the window to the right and are not inside a scrollable part of the page.
WIDER = """() => document.documentElement.scrollWidth <= innerWidth + 1 ? [] :
  [...document.querySelectorAll("body *")].filter((el) => el.getBoundingClientRect().right > innerWidth + 1)
    .map((el) => `${el.tagName.toLowerCase()}.${el.getAttribute("class")}`).slice(0, 12)"""
PLACES = ("overview", "board", "job/nightly-1", "job/ask-1?tab=result", "task/greet", "inbox", "swarms", "history")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_names_structure_and_contrast_hold_on_every_page(furnished: Site, visit: Come, scheme: str) -> None:
    visited = visit(furnished, color_scheme=scheme, reduced_motion="reduce")
    found = {}
    for place in PLACES:
        page = visited.open(place)
        expect(page.locator("[aria-busy=true]")).to_have_count(0)
        found[place] = accessibility.faults(page)
    assert found == {place: [] for place in PLACES}


@pytest.mark.parametrize("place", ["overview", "board", "job/nightly-1", "inbox"])
def test_tab_reaches_every_control_in_order_with_a_visible_focus(furnished: Site, visit: Come, place: str) -> None:
    page = visit(furnished).open(place)
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    stops = accessibility.walk(page)
    assert stops[0]["id"] == "skip"
    assert [stop["name"] for stop in stops[2:8]] != []
    assert not [stop for stop in stops if not stop["shows"] or not stop["seen"]]
    operable = page.evaluate(OPERABLE)
    assert len(stops) >= operable


def test_the_skip_link_leads_to_the_content_and_dialogs_restore_focus(furnished: Site, visit: Come) -> None:
    page = visit(furnished).open("overview")
    accessibility.begin(page)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "main"
    button = page.get_by_role("button", name="New job")
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="New job")
    expect(dialog.get_by_label("Command")).to_be_focused()
    assert accessibility.faults(page, covered=True) == []
    for _ in range(12):  # Tab stays inside
        page.keyboard.press("Tab")
        assert page.evaluate(
            "() => document.activeElement === document.body || Boolean(document.activeElement.closest('dialog'))"
        )
    page.keyboard.press("Escape")
    expect(button).to_be_focused()


def test_reduced_motion_stops_all_animations(furnished: Site, visit: Come) -> None:
    page = visit(furnished, reduced_motion="reduce").open("board")
    page.locator(".card").first.wait_for()
    assert page.evaluate("() => document.getAnimations().length") == 0


def test_a_narrow_window_loses_nothing(furnished: Site, visit: Come) -> None:
    visited = visit(furnished)
    for place in PLACES:
        visited.page.set_viewport_size({"width": 420, "height": 800})
        page = visited.open(place)
        expect(page.locator("[aria-busy=true]")).to_have_count(0)
        wide = page.evaluate(WIDER)
        assert not wide, (place, wide)
