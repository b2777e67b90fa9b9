"""Show hostile job texts as plain text: markup, script, escape sequences, right-to-left overrides.

Also check that the page's own sources contain no unsafe construct.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

import farro
from browser.conftest import Visit
from browser.site import HOSTILE, Site, program
from support import ROOT

Come = Callable[..., Visit]
PAGE = Path(ROOT, "src/farro/web/page")
SOURCES = sorted(path for path in PAGE.rglob("*") if path.suffix in (".js", ".html", ".css", ".svg"))

AWAITED = {"history": "hostile", "job/hostile-1?tab=result": "1 of 1 steps succeeded"}
SHOWN = "⟨U+202E⟩gpj.exe⟨U+2066⟩"
TRICKS = r"""() => [...document.body.innerText].filter((one) =>
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/.test(one)).length"""


@pytest.mark.parametrize(
    "place",
    ["board", "job/hostile-1", "job/hostile-2", "job/hostile-1?tab=prompt", "job/hostile-1?tab=result", "history"],
)
def test_hostile_fields_are_shown_as_text(furnished: Site, visit: Come, place: str) -> None:
    page = visit(furnished).open(place)
    page.locator("#app").get_by_text(AWAITED.get(place, "onerror")).first.wait_for()
    assert page.evaluate("() => window.hacked") is None
    assert page.locator("main img").count() == 0
    assert page.locator("main script").count() == 0
    assert page.evaluate(TRICKS) == 0
    if place.endswith("hostile-2"):
        expect(page.locator("h1")).to_contain_text(SHOWN)
        assert "\u202e" not in page.title()


def test_markdown_of_a_result_cannot_inject_markup(fresh: Site, visit: Come) -> None:
    source = "\n\n".join(
        [
            '# <svg onload="window.hacked=1">',
            "[click](javascript:window.hacked=1) ![x](http://127.0.0.1:9/x.png)",
            '<iframe src="//evil"></iframe>',
            "`<b>`",
            "[broken](http://[) https://: [more](https://%zz)",  # not an address: parsing it throws
            "a " + "`" * 100_000 + "``a " * 10_000,  # must not take exponential time
        ]
    )
    page = visit(fresh).open("overview")
    shown = page.evaluate(
        """async (source) => {
          const { markdown } = await import("/page/js/markdown.js");
          const { draw } = await import("/page/js/view.js");
          const place = document.createElement("div");
          document.body.append(place);
          draw(place, markdown(source));
          const all = [...place.querySelectorAll("*")];
          return {
            tags: [...new Set(all.map((el) => el.tagName.toLowerCase()))].sort(),
            links: all.filter((el) => el.href).map((el) => el.href),
            text: place.textContent,
          };
        }""",
        source,
    )
    assert shown["tags"] == ["a", "code", "div", "h3", "p", "span"]
    assert shown["links"] == ["http://127.0.0.1:9/x.png"]  # to be clicked, never loaded
    assert "javascript:window.hacked=1" in shown["text"]
    assert "broken (http://[) https://: more (https://%zz)" in shown["text"]
    assert page.evaluate("() => window.hacked") is None


def test_output_of_a_program_cannot_reach_the_page(fresh: Site, visit: Come) -> None:
    with farro.open(fresh.root) as queue:
        queue.enqueue(["printf", r"\033]0;title\007\033[2J<i>x</i>\r\nplain\n"], id="loud")
    program(fresh.root, "worker", "--drain")
    page = visit(fresh).open("job/loud")
    expect(page.get_by_role("log")).to_contain_text("␛]0;title␇␛[2J<i>x</i>")
    expect(page.get_by_role("log")).to_contain_text("plain")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PAGE).as_posix())
def test_the_sources_never_parse_text_as_markup_nor_contact_other_hosts(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        'setAttribute("style"',
        "srcdoc",
    ):
        assert word not in text, f"{path.name} uses {word}"
    elsewhere = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text)) - {"http://www.w3.org"}
    assert not elsewhere, f"{path.name} names {elsewhere}"
    if path.suffix == ".html":
        assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", text), "inline script or style"
    assert len(text.splitlines()) <= 400, f"{path.name} is too long to read in one sitting"


def test_the_hostile_text_contains_every_kind_of_attack() -> None:
    assert all(word in HOSTILE for word in ("<script>", "onerror", "\x1b[", "\u202e"))
