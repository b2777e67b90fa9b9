"""Check the view layer of the dashboard: what `draw` keeps, what it changes, and that text is never markup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

from browser.conftest import Visit
from browser.site import Site

Come = Callable[..., Visit]
BEGIN = """async () => {
  const { draw, h } = await import("/page/js/view.js");
  const place = document.createElement("div");
  document.body.append(place);
  Object.assign(window, { h, place, show: (tree) => draw(place, tree) });
}"""


@pytest.fixture
def page(bare: Site, visit: Come) -> Page:
    """A page with `show(tree)`, which draws into the empty element `place`."""
    page = visit(bare).open("overview")
    page.evaluate(BEGIN)
    return page


def run(page: Page, script: str) -> Any:
    return page.evaluate(f"() => {{ {script} }}")


def test_a_keyed_element_is_moved_and_not_made_again(page: Page) -> None:
    kept = run(
        page,
        """
        const list = (...keys) => show(h("ul", keys.map((key) => h("li", { key }, key))));
        list("a", "b", "c");
        const [a, b, c] = place.querySelectorAll("li");
        list("c", "new", "a");
        const [first, second, third] = place.querySelectorAll("li");
        return [first === c, third === a, b.isConnected, second.textContent];
        """,
    )
    assert kept == [True, True, False, "new"]


def test_text_that_a_user_types_survives_a_redraw(page: Page) -> None:
    values = run(
        page,
        """
        const field = (value, text) => show([h("p", text), h("input", { value })]);
        field("drawn", "one");
        const input = place.querySelector("input");
        input.focus();
        input.value = "typed";
        field("drawn", "two");
        const whileTyping = input.value;
        field("changed", "three");
        return [whileTyping, input.value, document.activeElement === input, place.querySelector("p").textContent];
        """,
    )
    assert values == ["typed", "changed", True, "three"]


def test_attributes_styles_and_handlers_follow_the_latest_draw(page: Page) -> None:
    seen = run(
        page,
        """
        const calls = [];
        const first = { title: "x", hidden: true, style: { width: "3px" }, on: { click: () => calls.push("first") } };
        show(h("button", first));
        const button = place.querySelector("button");
        show(h("button.wide", { class: "red", title: null, on: { click: () => calls.push("second") } }));
        button.click();
        show(h("button"));
        button.click();
        return [calls, button.getAttribute("class"), button.title, button.hidden, button.style.width];
        """,
    )
    assert seen == [["second"], "", "", False, ""]


def test_text_and_attributes_are_never_markup_and_show_deceptive_characters(page: Page) -> None:
    seen = run(
        page,
        r"""
        show(h("p", { title: "<b>\u202e" }, "<img src=x onerror=1>\u202e", null, false, 0));
        const paragraph = place.querySelector("p");
        return [paragraph.childElementCount, paragraph.textContent, paragraph.title];
        """,
    )
    assert seen == [0, "<img src=x onerror=1>⟨U+202E⟩0", "<b>⟨U+202E⟩"]
