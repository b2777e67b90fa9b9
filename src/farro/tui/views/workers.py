"""Show workers (every slot with its lease), and swarms with their components."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from textual.app import ComposeResult
from textual.containers import Vertical

from farro.queue.workers import WorkerLine
from farro.swarm.service import ComponentView, SwarmView
from farro.tui import texts
from farro.tui.boards import Board, BoardRow, Cell, Column


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
