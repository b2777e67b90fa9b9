"""Check the accessibility of a page: names and roles from the browser's accessibility tree, contrast, focus.

The usual checker is not used, because it would have to be downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

OPERABLE = {"button", "link", "textbox", "searchbox", "checkbox", "combobox", "slider", "tab", "menuitem", "switch"}
LANDMARKS = {"navigation", "main"}
LOOK = Path(__file__).with_name("accessibility.js").read_text(encoding="utf-8")


def faults(page: Page, *, covered: bool = False) -> list[str]:
    """List all accessibility problems of the shown page. `covered`: a dialog is open, which hides the rest of the page
    from screen readers."""
    found = [*_look(page, "structure"), *unnamed(page), *(f"contrast {one}" for one in _look(page, "contrast"))]
    return [one for one in found if not (covered and one.startswith("no landmark"))]


def unnamed(page: Page) -> list[str]:
    """List controls without an accessible name, and missing landmarks."""
    session = page.context.new_cdp_session(page)
    try:
        nodes: list[dict[str, Any]] = session.send("Accessibility.getFullAXTree")["nodes"]
    finally:
        session.detach()
    seen = [(_value(node, "role"), _value(node, "name")) for node in nodes if not node.get("ignored")]
    found = [f"no name: {role}" for role, name in seen if role in OPERABLE and not name.strip()]
    return found + [f"no landmark {role}" for role in sorted(LANDMARKS - {role for role, _ in seen})]


def begin(page: Page) -> None:
    """Reset the focus, so that the next Tab goes to the first element: the browser continues from the last focus."""
    page.evaluate(
        """() => {
          const first = document.createElement("span");
          first.tabIndex = -1; document.body.prepend(first); first.focus(); first.remove();
        }"""
    )


def walk(page: Page, most: int = 400) -> list[dict[str, Any]]:
    """List the elements that Tab reaches, in order, until it returns to the first."""
    stops: list[dict[str, Any]] = []
    begin(page)
    for _ in range(most):
        page.keyboard.press("Tab")
        stop = _look(page, "focused")
        if stop is None or any(stop["visit"] == other["visit"] for other in stops):
            return stops
        stops.append(stop)
    return stops


def _look(page: Page, what: str) -> Any:
    return page.evaluate(f"() => ({LOOK}).{what}()")


def _value(node: dict[str, Any], name: str) -> str:
    return str((node.get(name) or {}).get("value") or "")
