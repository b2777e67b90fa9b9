"""docs/doctor.md lists every check of doctor, in its order, and says which are quick; ids are stable and kebab-case."""

from __future__ import annotations

import re
from pathlib import Path

from farro import checkup
from farro.operations.profile import CHECKLIST
from support import ROOT

PAGE = Path(ROOT, "docs", "doctor.md").read_text(encoding="utf-8")
NOWHERE = str(Path(ROOT, "no-such-root"))
CHECKS = checkup.checks(NOWHERE, finished=0, conformance=True)


def test_the_page_has_every_check_in_the_order_of_the_answer() -> None:
    rows = re.findall(r"^\| (`[a-z-]+`(?:, `[a-z-]+`)*) \|", PAGE, re.MULTILINE)
    listed = [name for cell in rows for name in re.findall(r"`([a-z-]+)`", cell)]
    assert listed == [check.id for check in CHECKS]


def test_the_page_says_which_checks_are_quick() -> None:
    told = dict(re.findall(r"^\| `([a-z-]+)` \| (yes)? ?\|", PAGE, re.MULTILINE))
    assert told == {check.id: "yes" if check.quick else "" for check in checkup.checks(NOWHERE, finished=0)}


def test_ids_are_kebab_case_and_used_once() -> None:
    ids = [check.id for check in CHECKS]
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in ids)
    assert len(set(ids)) == len(ids)


def test_the_checklist_names_checks_that_exist() -> None:
    assert {name for item in CHECKLIST for name in item.checks} <= {check.id for check in CHECKS}
