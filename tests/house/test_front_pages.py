"""Check that docs/agq.md, http.md and mcp.md name every command, route and tool, and no tool that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from farro.agq.handlers import TABLE
from farro.mcp.server import TOOLS
from farro.web import application
from support import ROOT


def rows(page: str) -> str:
    """Return the table rows of a page."""
    text = Path(ROOT, "docs", page).read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if line.startswith("|"))


def test_the_page_of_agq_has_every_command() -> None:
    told = set(re.findall(r"[A-Z]+(?:\.[A-Z]+)?", rows("agq.md")))
    assert {name.decode() for name in TABLE} - told == set()


@pytest.mark.parametrize("path", sorted({endpoint.path for endpoint in application.ENDPOINTS}))
def test_the_page_of_http_has_every_route(path: str) -> None:
    """Accept the whole route, or its last word in the row of a similar route: `/api/jobs/{job}/kill`, `requeue`."""
    plain = path.replace(":path}", "}")
    *before, last = [word for word in plain.split("/") if word]
    place = "/".join(["", *before[:2]])
    in_whole = f"`{plain}" in rows("http.md") or f" {plain}" in rows("http.md")
    assert in_whole or re.search(rf"^.*{re.escape(place)}.*[`/]{re.escape(last)}`", rows("http.md"), re.MULTILINE)


def test_the_page_of_mcp_has_every_tool_with_its_permission() -> None:
    told = {}
    for head, cell in re.findall(r"^\| (always|`--allow [a-z]+`) \| (.*) \|$", rows("mcp.md"), re.MULTILINE):
        need = None if head == "always" else head.strip("`").split()[1]
        told |= dict.fromkeys(re.findall(r"`([a-z_]+)`", cell), need)
    assert told == {tool.name: tool.needs for tool in TOOLS}
