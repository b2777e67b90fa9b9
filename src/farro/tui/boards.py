"""A table widget whose cursor stays on its row while rows come and go.

Not textual's DataTable, which measures and lays out every row on each change and loses the position. Here only visible
lines are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from farro.lazy_dataclass import dataclass

_GAP = 2
GROWN = 130  # screen width from which columns use their grown width


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    width: int = 0  # 0: the remaining width
    right: bool = False
    wide: int = 0  # shown only when the table is at least this wide
    grown: int = 0  # its width on a wide screen (GROWN)
    short: Callable[[str, int], str] | None = None  # shortens text that is too long, before it is cut


@dataclass(frozen=True, slots=True)
class Cell:
    text: str  # already safe to draw (texts.plain)
    tone: str = "plain"


@dataclass(frozen=True, slots=True)
class BoardRow:
    key: str
    cells: tuple[Cell | str, ...]


class Board(ScrollView, can_focus=True):
    DEFAULT_CSS = """
    Board { background: $surface; scrollbar-size-vertical: 1; overflow-x: hidden; }
    Board > .board--head { color: $foreground-muted; background: $panel; text-style: bold; }
    Board > .board--cursor { color: $block-cursor-foreground; background: $block-cursor-background; text-style: bold; }
    Board > .board--plain { color: $foreground; }
    Board > .board--quiet { color: $foreground-muted; }
    Board > .board--good { color: $text-success; }
    Board > .board--bad { color: $text-error; }
    Board > .board--warn { color: $text-warning; }
    Board > .board--busy { color: $text-primary; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"board--{name}" for name in ("head", "cursor", "plain", "quiet", "good", "bad", "warn", "busy")
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "page up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "page down", show=False),
        Binding("home,g", "move(-1000000000)", "first", show=False),
        Binding("end,G", "move(1000000000)", "last", show=False),
        Binding("enter", "open", "open", show=False),
    ]

    class Opened(Message):
        """A row was opened."""

        def __init__(self, board: Board, key: str) -> None:
            super().__init__()
            self.board = board
            self.key = key

    class Moved(Message):
        """The cursor is on another row."""

    class End(Message):
        """The cursor is on the last row: there may be more to fetch."""

        def __init__(self, board: Board) -> None:
            super().__init__()
            self.board = board

    def __init__(self, columns: Sequence[Column], *, empty: str = "", id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.columns = tuple(columns)
        self.empty = empty
        self.rows: tuple[BoardRow, ...] = ()
        self.cursor = 0
        self.ordered = ""  # marks the sorted column

    @property
    def key(self) -> str | None:
        """Return the key of the row under the cursor."""
        return self.rows[self.cursor].key if self.rows else None

    def show(self, rows: Sequence[BoardRow]) -> None:
        """Show these rows; the cursor stays with its row, else at its position."""
        rows = tuple(rows)
        if rows == self.rows:
            return
        at = self.key
        self.rows = rows
        found = next((place for place, row in enumerate(rows) if row.key == at), None)
        moved = 0 if found is None else found - self.cursor
        self.cursor = found if found is not None else max(0, min(self.cursor, len(rows) - 1))
        self.virtual_size = Size(self.size.width, len(rows) + 1)
        if moved and self.scroll_offset.y:  # keep the visible part in place
            self.scroll_to(y=self.scroll_offset.y + moved, animate=False, immediate=True)
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        self.virtual_size = Size(event.size.width, len(self.rows) + 1)

    # --- moving ---

    def action_move(self, by: int) -> None:
        if not self.rows:
            return
        self.cursor = max(0, min(self.cursor + by, len(self.rows) - 1))
        self.scroll_to_region(Region(0, self.cursor, 1, 2), animate=False, immediate=True, force=True)
        self.refresh()
        self.post_message(self.Moved())
        if self.cursor == len(self.rows) - 1:
            self.post_message(self.End(self))

    def action_page(self, by: int) -> None:
        self.action_move(by * max(1, self.size.height - 2))

    def action_open(self) -> None:
        if self.key is not None:
            self.post_message(self.Opened(self, self.key))

    def on_click(self, event: events.Click) -> None:
        at = event.y - 1 + self.scroll_offset.y
        if event.y >= 1 and at < len(self.rows):
            self.cursor = at
            self.refresh()
            self.post_message(self.Moved())
            if event.chain == 2:
                self.action_open()

    # --- drawing ---

    def widths(self) -> list[int]:
        """Return the width of each column; 0: not shown."""
        room = self.size.width
        fixed = [(column.grown if room >= GROWN else 0) or column.width for column in self.columns]
        shown = [column.wide <= room for column in self.columns]
        left = room - 2 - sum(width + _GAP for width, seen in zip(fixed, shown, strict=True) if seen) + _GAP
        flexible = max(1, sum(width == 0 and seen for width, seen in zip(fixed, shown, strict=True)))
        return [(width or max(6, left // flexible)) if seen else 0 for width, seen in zip(fixed, shown, strict=True)]

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y == 0:
            titles = [Cell(column.title + ("▾" if column.title == self.ordered else "")) for column in self.columns]
            return self._line(titles, "head", width)
        at = y - 1 + self.scroll_offset.y
        if not self.rows and y == 1 and self.empty:
            style = self.rich_style + self._style("quiet")
            return Strip([Segment(set_cell_size(f" {self.empty}", width), style)], width).crop(0, width)
        if at >= len(self.rows):
            return Strip.blank(width, self.rich_style)
        return self._line(self.rows[at].cells, "cursor" if at == self.cursor and self.has_focus else "", width)

    def _line(self, cells: Sequence[Cell | str], over: str, width: int) -> Strip:
        """Draw a line. `over`: a style for the whole line."""
        pad = self.rich_style + self._style(over or "plain")
        segments, used = [Segment(" ", pad)], 1
        for column, size, cell in zip(self.columns, self.widths(), cells, strict=True):
            if size == 0:
                continue
            told = Cell(cell) if isinstance(cell, str) else cell
            text = _fitted(told.text, size, column)
            segments += [
                Segment(text, pad if over else self.rich_style + self._style(told.tone)),
                Segment(" " * _GAP, pad),
            ]
            used += size + _GAP
        if used < width:
            segments.append(Segment(" " * (width - used), pad))
        return Strip(segments).crop(0, width)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"board--{name}", partial=True)


def _fitted(text: str, size: int, column: Column) -> str:
    if cell_len(text) > size and column.short is not None:
        text = column.short(text, size)
    if cell_len(text) > size:
        text = set_cell_size(text, size - 1).rstrip() + "…"
    return " " * (size - cell_len(text)) + text if column.right else set_cell_size(text, size)
