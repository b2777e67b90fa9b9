"""Show the overview: queues with counts, running jobs, and the jobs that ended last."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from farro.jobs.states import Status
from farro.jobs.times import seconds_between
from farro.queue.watch import RunningJob
from farro.store.port import JobView
from farro.tui import texts
from farro.tui.boards import Board, BoardRow, Cell, Column
from farro.tui.queries import Overview

_LANES = (Status.QUEUED, Status.IN_PROGRESS, Status.SUCCEEDED, Status.FAILED, Status.KILLED)


class OverviewView(Vertical):
    """Queues, running jobs, and the jobs that ended last."""

    def compose(self) -> ComposeResult:
        numbers = [
            Column(texts.WORDS[status].upper(), 8, right=True)
            for status in (Status.QUEUED, Status.IN_PROGRESS, Status.SUCCEEDED, Status.FAILED, Status.KILLED)
        ]
        lanes = [Column("QUEUE"), Column("WORKERS", 7, right=True), *numbers]
        yield Board(lanes, empty="no jobs, no workers: farro enqueue -- make test", id="lanes")
        yield Static(id="apart", markup=False)
        running = [
            Column("RUNNING", 20, grown=43, short=texts.short_id),
            Column("ROLE", 10, grown=16),
            Column("FOR", 7, right=True),
            Column("STEP", 9),
            Column("WHAT"),
            Column("BY", 24, wide=110),
        ]
        yield Board(running, empty="nothing runs", id="running")
        ended = [
            Column("LAST ENDED", 20, grown=43, short=texts.short_id),
            Column("ROLE", 10, grown=16),
            Column("TOOK", 7, right=True),
            Column("STATUS", 9),
            Column("WHAT"),
        ]
        yield Board(ended, empty="nothing has ended yet", id="ended")

    def draw(self, told: Overview, abouts: dict[str, str]) -> None:
        roles = [role for role, counts in told.lanes.roles.items() if any(counts.values()) or told.workers.get(role)]
        roles += [role for role in told.paused if role not in roles]
        rows = [self._lane(role, told) for role in sorted(roles)]
        lanes = self.query_one("#lanes", Board)
        lanes.styles.height = min(len(rows) + 1 if rows else 2, 9)
        lanes.show(rows)
        self.query_one("#apart", Static).update(_apart(told))
        running = self.query_one("#running", Board)
        running.styles.height = max(2, min(len(told.running) + 1, (self.size.height - len(rows)) // 2))
        running.show([_running(job, abouts.get(job.job_id, "")) for job in told.running])
        self.query_one("#ended", Board).show([_ended(view, abouts.get(view.job_id, "")) for view in told.ended])

    def _lane(self, role: str, told: Overview) -> BoardRow:
        counts, slots = told.lanes.roles.get(role, {}), told.workers.get(role, 0)
        unworked = counts.get(Status.QUEUED, 0) and not slots
        stands = role in told.paused
        name = Cell(texts.plain(role) + (" (paused)" if stands else ""), "warn" if stands else "plain")
        cells: list[Cell | str] = [name, Cell(str(slots), "warn" if unworked else "plain")]
        for status in _LANES:
            count = counts.get(status, 0)
            cells.append(Cell(f"{count:,}", texts.TONES[status] if count else "quiet"))
        return BoardRow(role, tuple(cells))


def _apart(told: Overview) -> Text:
    """Return one line about jobs outside of every queue: stale, waiting, quarantined."""
    parts = [
        (len(told.paused), "paused: farro resume", "bold yellow"),
        (told.lanes.waiting, "wait for others or a person", "bold"),
        (told.lanes.stale, "stale", "bold yellow"),
        (told.lanes.quarantined, "quarantined", "bold red"),
        (len(told.dead), "dead agents: farro watchdog recovers their jobs", "bold red"),
    ]
    line = Text(" ")
    for count, word, style in parts:
        if count:
            line.append(f" {count:,} {word} ", style=style)
    return line


def _running(job: RunningJob, about: str) -> BoardRow:
    cells = (
        Cell(texts.plain(job.job_id), "warn" if job.orphaned else "busy"),
        texts.plain(job.role),
        texts.whole(job.elapsed_s),
        texts.plain(job.step or ""),
        Cell("its agent is dead: farro watchdog recovers it", "warn") if job.orphaned else about,
        Cell(texts.plain(job.agent), "quiet"),
    )
    return BoardRow(job.job_id, cells)


def _ended(view: JobView, about: str) -> BoardRow:
    life = view.lifecycle
    cells = (
        texts.plain(view.job_id),
        texts.plain(life.role),
        texts.took(seconds_between(life.created_at, life.finalized_at)),
        Cell(texts.WORDS[view.status], texts.TONES[view.status]),
        Cell(about, "quiet"),
    )
    return BoardRow(view.job_id, cells)
