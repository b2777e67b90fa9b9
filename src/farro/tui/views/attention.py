"""Show what needs a person: alerts, jobs that wait for an answer, dead agents."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from farro.tui import texts
from farro.tui.boards import Board, BoardRow, Cell, Column
from farro.tui.queries import NeedsPerson


class AttentionView(Vertical):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "app.do('approve')", "Approve"),
        Binding("f", "app.do('refuse')", "Refuse"),
    ]

    def compose(self) -> ComposeResult:
        columns = [Column("WHAT", 12), Column("JOB", 20, grown=43, short=texts.short_id), Column("SAYS")]
        yield Board(columns, empty="nothing wants you", id="attention-board")
        yield Static(id="advice", markup=False)

    def draw(self, told: NeedsPerson) -> None:
        rows = [
            BoardRow(f"alert\0{alert.name}\0{alert.role}", (Cell("alert", "bad"), alert.name, texts.plain(alert.what)))
            for alert in told.alerts.alerts
            if alert.firing
        ]
        rows += [
            BoardRow(one.job_id, (Cell("question", "warn"), texts.plain(one.job_id), texts.plain(one.question[:400])))
            for one in told.inbox
        ]
        for agent in told.dead:
            left = agent.jobs[0] if agent.jobs else "-"
            says = f"{agent.id} is dead; farro watchdog recovers what it left"
            rows.append(
                BoardRow(f"agent\0{agent.id}", (Cell("dead agent", "bad"), texts.plain(left), texts.plain(says)))
            )
        self.query_one(Board).show(rows)
        quiet = sum(not alert.firing for alert in told.alerts.alerts)
        advice = [line for alert in told.alerts.alerts if alert.firing for line in alert.next]
        text = Text("\n".join(f" - {texts.plain(line)}" for line in advice[:6]) or f" {quiet} triggers are quiet")
        self.query_one("#advice", Static).update(text)

    @property
    def asked(self) -> str | None:
        """Return the job under the cursor, if it waits for a person."""
        key = self.query_one(Board).key
        return None if key is None or "\0" in key else key
