"""Show the list of jobs, filtered and sorted."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, Static

from farro.jobs.moves import waits_for_person
from farro.jobs.states import Status
from farro.store.port import JobView
from farro.tui import texts
from farro.tui.boards import Board, BoardRow, Cell, Column
from farro.tui.queries import Filter, LiveJobs, Queries

_STATUS_KEYS: tuple[Status | None, ...] = (
    None,
    Status.IN_PROGRESS,
    Status.QUEUED,
    Status.FAILED,
    Status.STALE,
    Status.SUCCEEDED,
    Status.KILLED,
)


class JobsView(Vertical):
    """The list of jobs, filtered and sorted, with titles."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("f", "next_status", "Status", show=False),
        Binding("o", "order", "Order", show=False),
    ]
    ORDERS: ClassVar[tuple[str, ...]] = ("CHANGED", "STATUS", "ROLE", "JOB")

    class Asked(Message):
        """The list must be read or sorted again."""

    def __init__(self, id: str, looking: Queries) -> None:  # noqa: A002
        super().__init__(id=id)
        self.looking = looking
        self.live = LiveJobs(looking.store)
        self.asked = ""  # the text of the filter
        self.order = 0

    def compose(self) -> ComposeResult:
        yield Static(id="about-jobs", markup=False)
        columns = [
            Column("STATUS", 8),
            Column("JOB", 20, grown=43, short=texts.short_id),
            Column("ROLE", 10, grown=16),
            Column("TRY", 3, right=True, wide=90),
            Column("CHANGED", 8, right=True),  # age
            Column("WHAT"),
        ]
        yield Board(columns, empty="no jobs like that", id="jobs-board")
        yield Input(placeholder="failed Runner make …   Enter keeps it, Esc clears it", id="filter")

    def on_mount(self) -> None:
        self.query_one("#filter").display = False

    @property
    def board(self) -> Board:
        return self.query_one("#jobs-board", Board)

    def filter_as(self, text: str) -> None:
        """Change the filter. Words select from the list; other roles or statuses need a new query."""
        wanted, live = Filter.parse(text, self.looking.store.roles()), self.live
        if (wanted.roles, wanted.statuses) == (live.wanted.roles, live.wanted.statuses):
            live.wanted = wanted
        else:
            self.live = LiveJobs(live.store, wanted=wanted)
        self.asked = text

    def fetch_more(self) -> bool:
        """Load more jobs; return whether there may be more."""
        if not self.live.more:
            return False
        self.live = LiveJobs(
            self.looking.store, wanted=self.live.wanted, limit=self.live.limit * 2, views=self.live.views
        )
        return True

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.display = True
        box.value = self.asked
        box.focus()

    def action_next_status(self) -> None:
        wanted = self.live.wanted
        now = wanted.statuses[0] if wanted.statuses else None
        follow = _STATUS_KEYS[(_STATUS_KEYS.index(now) + 1) % len(_STATUS_KEYS)]
        words = [*wanted.roles, *([texts.WORDS[follow]] if follow else []), wanted.text]
        self.filter_as(" ".join(word for word in words if word))
        self.query_one("#filter", Input).value = self.asked
        self.post_message(self.Asked())

    def action_order(self) -> None:
        self.order = (self.order + 1) % len(self.ORDERS)
        self.post_message(self.Asked())

    def draw(self, now: datetime, abouts: dict[str, str]) -> None:
        rows = [self._row(view, now, abouts) for view in self.live.views.values()]
        words = self.live.wanted.text.lower().split()
        if words:
            rows = [row for row in rows if all(word in _text(row) for word in words)]
        title = self.ORDERS[self.order]
        if title != "CHANGED":  # default order: last changed first
            at = [column.title for column in self.board.columns].index(title)
            rows.sort(key=lambda row: _cell(row.cells[at]))
        self.board.ordered = title
        self.board.show(rows)
        self.query_one("#about-jobs", Static).update(self._head(len(rows)))

    def _head(self, shown: int) -> Text:
        line = Text(" ")
        jobs = "1 job" if shown == 1 else f"{shown:,} jobs"
        line.append(jobs if self.live.loaded else "reading …", style="bold")
        if self.live.more and self.live.wanted.text:
            line.append(f" among the newest {len(self.live.views):,} (at the end more are read)", style="dim")
        elif self.live.more:
            line.append(" (the newest; more at the end)", style="dim")
        if self.asked:
            line.append("   filter: ", style="dim")
            line.append(texts.plain(self.asked), style="bold")
        return line

    def _row(self, view: JobView, now: datetime, abouts: dict[str, str]) -> BoardRow:
        life = view.lifecycle
        return BoardRow(
            view.job_id,
            (
                Cell(texts.WORDS[view.status], texts.TONES[view.status]),
                texts.plain(view.job_id),
                texts.plain(life.role),
                str(life.attempt),
                texts.age(now, life.updated_at),
                _remark(view, abouts.get(view.job_id, "")),
            ),
        )


def _remark(view: JobView, about: str) -> Cell:
    life = view.lifecycle
    if view.damaged:
        return Cell(texts.plain(f"damaged: {view.damaged}"), "bad")
    if life.status is Status.QUEUED and waits_for_person(life):
        return Cell(f"waits for a person: {about}", "warn")
    if view.waits_for:
        return Cell(texts.plain(f"after {', '.join(view.waits_for)}"), "quiet")
    if life.error and life.status is Status.FAILED:
        return Cell(texts.plain(f"{life.error.get('message')}")[:300], "quiet")
    if life.status is Status.QUEUED and life.not_before:
        return Cell(f"{about}  (not before {texts.plain(life.not_before[:16].replace('T', ' '))}Z)".strip(), "quiet")
    return Cell(about, "quiet" if life.terminal else "plain")


def _cell(cell: Cell | str) -> str:
    return cell if isinstance(cell, str) else cell.text


def _text(row: BoardRow) -> str:
    return f"{row.key} {' '.join(map(_cell, row.cells))}".lower()
