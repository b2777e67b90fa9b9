"""Check docs/doctor.md: it lists every check of doctor in order and marks the quick ones; ids are kebab-case."""

from __future__ import annotations

import re
from pathlib import Path

from farro.app import App
from farro.doctor.policy_lock import CHECKLIST
from support import ROOT

PAGE = Path(ROOT, "docs", "doctor.md").read_text(encoding="utf-8")
NOWHERE = str(Path(ROOT, "no-such-root"))
CHECKS = App().checks(NOWHERE, finished=0, conformance=True)
FOLDERS, _, REST = PAGE.partition("## Check jobs in a Redis server")
REDIS, _, CONFORMANCE = REST.partition("## Start daemons strictly")


def test_the_page_has_every_check_in_the_order_of_the_answer() -> None:
    rows = re.findall(r"^\| (`[a-z-]+`(?:, `[a-z-]+`)*) \|", FOLDERS + CONFORMANCE, re.MULTILINE)
    listed = [name for cell in rows for name in re.findall(r"`([a-z-]+)`", cell)]
    assert listed == [check.id for check in CHECKS]


def test_the_page_says_which_checks_are_quick() -> None:
    assert quick(FOLDERS) == {check.id: check.quick for check in App().checks(NOWHERE, finished=0)}


def test_the_page_has_the_checks_of_a_redis_server_in_place_of_those_of_folders() -> None:
    in_folders = [check.id for check in App().checks(NOWHERE, finished=0)]
    of_a_server = App().checks(NOWHERE, finished=0, store="redis://nowhere")
    kept = in_folders[: in_folders.index("folders")]  # as the page says: from `folders` on
    assert [check.id for check in of_a_server] == [*kept, *quick(REDIS)]
    assert quick(REDIS) == {check.id: check.quick for check in of_a_server if check.id in quick(REDIS)}


def quick(section: str) -> dict[str, bool]:
    """Return the checks in a section's table, and those that it marks as quick."""
    return {name: said == "yes" for name, said in re.findall(r"^\| `([a-z-]+)` \| (yes)? ?\|", section, re.MULTILINE)}


def test_ids_are_kebab_case_and_used_once() -> None:
    ids = [check.id for check in CHECKS]
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in ids)
    assert len(set(ids)) == len(ids)


def test_the_checklist_names_checks_that_exist() -> None:
    assert {name for item in CHECKLIST for name in item.checks} <= {check.id for check in CHECKS}
