"""The views of `farro top`: each turns query results into rows. Views never block."""

from __future__ import annotations

from collections.abc import Mapping
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
from farro.jobs.times import seconds_between, span
from farro.queue.queues import WorkerLine
from farro.queue.watch import RunningJob
from farro.store.port import JobView
from farro.swarm.service import ComponentView, SwarmView
from farro.tui import texts
from farro.tui.boards import Board, BoardRow, Cell, Column
from farro.tui.queries import Filter, LiveJobs, NeedsPerson, Overview, Queries

_LANES = (Status.QUEUED, Status.IN_PROGRESS, Status.SUCCEEDED, Status.FAILED, Status.KILLED)
_STATUS_KEYS: tuple[Status | None, ...] = (
    None,
    Status.IN_PROGRESS,
    Status.QUEUED,
    Status.FAILED,
    Status.STALE,
    Status.SUCCEEDED,
    Status.KILLED,
)


class OverviewView(Vertical):
    """Queues, running jobs, and the jobs that ended last."""

    def compose(self) -> ComposeResult:
        numbers = [Column(texts.WORDS[status].upper(), 8, right=True) for status in _LANES]
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
        span(seconds_between(life.created_at, life.finalized_at)),
        Cell(texts.WORDS[view.status], texts.TONES[view.status]),
        Cell(about, "quiet"),
    )
    return BoardRow(view.job_id, cells)


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


class WorkersView(Vertical):
    """Every slot with its lease: whether it lives, since when, and its current job."""

    jobs: Mapping[str, str | None] = {}  # slots, as last drawn

    def compose(self) -> ComposeResult:
        columns = [
            Column("WORKER", 26, grown=44, short=texts.middle),
            Column("ROLE", 10, grown=16),
            Column("LEASE", 5),
            Column("SINCE", 7, right=True),
            Column("HOST", 14, wide=110),
            Column("PID", 8, right=True, wide=90),
            Column("JOB"),
            Column("TAGS", 14, wide=130),
        ]
        yield Board(columns, empty="no workers: farro worker, or farro start", id="workers-board")

    def draw(self, found: list[WorkerLine], now: datetime) -> None:
        self.jobs = {line.id: line.job for line in found}
        self.query_one(Board).show(
            [
                BoardRow(
                    line.id,
                    (
                        Cell(texts.plain(line.id), "plain" if line.alive else "bad"),
                        texts.plain(line.role or "keeper"),
                        Cell("held", "good") if line.alive else Cell("dead", "bad"),
                        texts.age(now, line.since),
                        texts.plain(line.host or "-"),
                        str(line.pid or "-"),
                        Cell(texts.plain(line.job), "busy") if line.job else Cell("idle", "quiet"),
                        texts.plain(", ".join(line.tags)),
                    ),
                )
                for line in found
            ]
        )


class SwarmsView(Vertical):
    """Swarms with their components."""

    def compose(self) -> ComposeResult:
        columns = [
            Column("SWARM", 24, grown=66, short=texts.middle),
            Column("STATE", 10),
            Column("HEALTH", 9),
            Column("TPS", 7, right=True),
            Column("STALE", 7, right=True),
            Column("WHAT"),
        ]
        yield Board(columns, empty="no swarms: farro swarm create", id="swarms-board")

    def draw(self, found: list[SwarmView]) -> None:
        rows = []
        for swarm in found:
            rows.append(BoardRow(swarm.id, _swarm(swarm)))
            for part in swarm.components:
                rows.append(BoardRow(f"{swarm.id}\0{part.role}\0{part.instance}", _component(part)))
        self.query_one(Board).show(rows)

    @property
    def swarm(self) -> str | None:
        """Return the swarm under the cursor, or that of the component under it."""
        key = self.query_one(Board).key
        return None if key is None else key.split("\0")[0]


def _swarm(swarm: SwarmView) -> tuple[Cell | str, ...]:
    totals = swarm.totals
    healthy, desired, enabled = (totals.get(name, 0) for name in ("healthy", "desired", "enabled"))
    return (
        texts.plain(swarm.id),
        texts.plain(swarm.state),
        Cell(texts.plain(swarm.health), {"Healthy": "good", "Degraded": "bad"}.get(swarm.health, "quiet")),
        "",
        _seconds(swarm.max_staleness_s),
        texts.plain(swarm.reason or f"{healthy} of {desired} healthy, {enabled} enabled"),
    )


def _component(part: ComponentView) -> tuple[Cell | str, ...]:
    again = f"started {part.starts} times" if part.starts > 1 else ""
    return (
        Cell(f"  {texts.plain(part.instance)}", "quiet"),  # the name contains the role
        texts.plain(part.state),
        Cell("enabled", "good") if part.enabled else Cell("disabled", "quiet"),
        "-" if part.tps is None else f"{part.tps:.1f}",
        _seconds(part.staleness_s),
        Cell(texts.plain(part.failure), "bad") if part.failure else Cell(again, "quiet"),
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}s"


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
