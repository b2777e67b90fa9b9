"""Decide which job or swarm a key applies to, and whether it applies at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farro.jobs.states import Status
from farro.tui import actions
from farro.tui.boards import Board
from farro.tui.job_screen import JobScreen
from farro.tui.queries import Queries
from farro.tui.views.attention import AttentionView
from farro.tui.views.jobs import JobsView
from farro.tui.views.workers import SwarmsView, WorkersView

if TYPE_CHECKING:
    from farro.tui.app import TopApp


class KeyTarget:
    """The target of the keys on one screen."""

    def __init__(self, app: TopApp, looking: Queries) -> None:
        self._app = app
        self._looking = looking

    def allows(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Return whether an action applies to the target; the footer shows only those."""
        name = str(parameters[0]) if action == "do" else ""
        if name in ("start", "stop"):
            return self.swarm() is not None
        if action not in ("do", "logs", "explain") or name in ("approve", "refuse"):
            return True
        if self.job() is None:
            return False
        known = self.known()
        return action != "do" or known is None or actions.ACTIONS[name].offered(*known)

    def essence(self) -> tuple[Any, ...]:
        """Return everything that `allows` depends on."""
        return self._app.view, type(self._app.screen), self.job() is None, self.known(), self.swarm() is None

    def job(self) -> str | None:
        """Return the job on the screen, else the one under the cursor."""
        if isinstance(self._app.screen, JobScreen):
            return self._app.screen.job_id
        board = self._app.focused
        if not isinstance(board, Board) or board.key is None:
            return None
        if board.id in ("running", "ended", "jobs-board"):
            return board.key
        if board.id == "workers-board":
            return self._part(WorkersView).jobs.get(board.key)  # type: ignore[no-any-return]
        return self._part(AttentionView).asked if board.id == "attention-board" else None

    def swarm(self) -> str | None:
        base = self._app.view == "swarms" and len(self._app.screen_stack) == 1
        return self._part(SwarmsView).swarm if base else None

    def known(self) -> tuple[Status, bool] | None:
        """Return the status of the job and whether it is final; None when unknown."""
        if isinstance(self._app.screen, JobScreen):
            seen = self._app.screen.seen
            view = None if seen is None else seen.details.view
        else:
            job_id = self.job() or ""
            view = self._part(JobsView).live.views.get(job_id) or self._looking.ended.views.get(job_id)
        return None if view is None else (view.status, view.lifecycle.terminal)

    def _part(self, kind: type[Any]) -> Any:
        return self._app.screen_stack[0].query_one(kind)
