"""Check the form of the dashboard's sources: no build step changes them, so users read what is checked in."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import ROOT

LONGEST_LINE = 120
(INDEX,) = Path(ROOT, "src/farro").glob("**/page/index.html")
PAGE = INDEX.parent
SOURCES = sorted(path for path in PAGE.rglob("*") if path.suffix in (".js", ".css", ".html", ".svg"))


def test_the_sources_of_the_dashboard_are_found() -> None:
    names = {path.relative_to(PAGE).as_posix() for path in SOURCES}
    assert {"index.html", "js/app.js", "js/view.js", "js/pages/board.js", "css/board.css"} <= names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PAGE).as_posix())
def test_no_line_of_the_dashboard_is_too_long(path: Path) -> None:
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    assert [number for number, line in lines if len(line) > LONGEST_LINE] == []


def test_every_style_sheet_is_linked() -> None:
    text = INDEX.read_text(encoding="utf-8")
    sheets = [path.relative_to(PAGE).as_posix() for path in SOURCES if path.suffix == ".css"]
    assert [sheet for sheet in sheets if f'href="/page/{sheet}"' not in text] == []
