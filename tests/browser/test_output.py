"""Check the output on a job's page: its attempt, its size, its colours, and whether more may follow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

import farro
from browser.conftest import Visit
from browser.site import PROMPT, Site, program

Come = Callable[..., Visit]
LONG = {
    "steps": [
        {"id": "many", "command": "seq", "args": ["3500"]},
        {"id": "few", "command": "seq", "args": ["9001", "9020"], "needs": ["many"]},
    ]
}


def test_an_agents_output_is_its_answer_while_the_job_waits_for_a_person(furnished: Site, visit: Come) -> None:
    page = visit(furnished).open("job/ask-1?tab=output")
    expect(page.get_by_role("log")).to_contain_text("It says **please** now.")
    tools = page.locator(".logs .tools")
    expect(tools).not_to_contain_text("Streaming")
    expect(tools).to_contain_text("Attempt 1 has ended")
    expect(page.get_by_role("tabpanel")).not_to_contain_text("It has not begun")


def test_a_job_that_has_not_begun_says_when_it_may(furnished: Site, visit: Come) -> None:
    page = visit(furnished).open("job/later-1")
    shown = page.get_by_role("tabpanel")
    expect(shown).to_contain_text(re.compile(r"It has not begun\. It may begin in (2h|1h \d+m)\."))
    expect(shown).to_contain_text("Not begun")
    expect(shown).not_to_contain_text("Streaming")


def test_the_output_of_an_attempt_is_chosen(fresh: Site, visit: Come) -> None:
    asked = {name: value for name, value in PROMPT.items() if name != "inputs"}
    (fresh.root / "prompt.json").write_text(json.dumps(asked))
    program(fresh.root, "manager", "--once")  # without a manager the first answer would end the job
    program(fresh.root, "enqueue", "--prompt-json", "prompt.json", "--id", "asked")
    program(fresh.root, "worker", "--role", "SeniorEngineer", "--drain")
    program(fresh.root, "route", "asked", "--to", "DocWriter")
    program(fresh.root, "worker", "--role", "DocWriter", "--drain")
    page = visit(fresh).open("job/asked?tab=output")
    log, choice = page.get_by_role("log"), page.get_by_role("combobox", name="Attempt")
    expect(log).to_contain_text("It is written down.")
    choice.select_option("1")
    expect(log).to_contain_text("It says **please** now.")
    choice.select_option("")
    expect(log).to_contain_text("It is written down.")
    expect(log).not_to_contain_text("please")


def test_long_output_is_counted_shown_piece_by_piece_and_saved_whole(fresh: Site, visit: Come, tmp_path: Path) -> None:
    with farro.open(fresh.root) as queue:
        queue.enqueue(LONG, id="long")
    program(fresh.root, "worker", "--drain")
    page = visit(fresh).open("job/long")
    counted = page.locator("[data-lines]")
    expect(counted).to_have_text("1000 of 3520 lines")
    lines = page.locator(".log .line")
    expect(lines).to_have_count(1000)
    page.get_by_role("button", name="Show earlier lines").click()
    expect(counted).to_have_text("2000 of 3520 lines")
    expect(lines.first).to_have_text("1521")
    page.get_by_role("button", name="Step many, Succeeded").click()
    expect(counted).to_have_text("1000 of 3500 lines")
    expect(lines.last).to_have_text("3500")
    page.get_by_role("button", name="Step few, Succeeded").click()
    expect(counted).to_have_text("20 lines")
    expect(page.get_by_role("button", name="Show earlier lines")).to_have_count(0)
    page.get_by_role("button", name="All steps").click()
    expect(counted).to_have_text("1000 of 3520 lines")
    with page.expect_download() as saved:
        page.get_by_role("link", name="Save").click()
    saved.value.save_as(tmp_path / "whole")
    assert saved.value.suggested_filename == "long.log"
    told = (tmp_path / "whole").read_text().splitlines()
    assert told == [str(number) for number in (*range(1, 3501), *range(9001, 9021))]


def test_one_line_of_output_is_counted_as_one_and_has_no_step_in_its_gutter(fresh: Site, visit: Come) -> None:
    with farro.open(fresh.root) as queue:
        queue.enqueue(["echo", "alone"], id="short")
    program(fresh.root, "worker", "--drain")
    page = visit(fresh).open("job/short")
    expect(page.locator("[data-lines]")).to_have_text("1 line")
    gutter = page.locator(".log .gutter")
    assert gutter.evaluate("el => getComputedStyle(el, '::before').content") == "none"


def test_output_is_searched_and_its_colours_are_shown(fresh: Site, visit: Come) -> None:
    script = r"printf '\033[1;31mred\nstill red\033[0m\nplain <b>\n\033[38;5;2mgreen\033[39m not\n\033]0;x\007\n'"
    with farro.open(fresh.root) as queue:
        queue.enqueue(["sh", "-c", script], id="colours")
    program(fresh.root, "worker", "--drain")
    page = visit(fresh).open("job/colours")
    log = page.get_by_role("log")
    expect(log.locator(".line")).to_have_count(5)
    assert log.locator(".ink-red.bold").all_inner_texts() == ["red", "still red"]
    assert log.locator(".ink-green").all_inner_texts() == ["green"]
    expect(log).to_contain_text("plain <b>")
    expect(log).to_contain_text("␛]0;x␇")
    page.keyboard.press("/")
    expect(page.get_by_label("Search the output")).to_be_focused()
    page.keyboard.type("RED")
    expect(page.locator("[data-lines]")).to_have_text("2 of 5 lines match")
    expect(log.locator(".line:visible")).to_have_count(2)
    assert log.locator("mark").all_inner_texts() == ["red", "red"]
    page.get_by_label("Search the output").fill("nothing like it")
    expect(page.get_by_role("tabpanel")).to_contain_text("No line has these words.")
    page.get_by_label("Search the output").fill("")
    expect(log.locator(".line:visible")).to_have_count(5)
