"""The screen of `farro top`: views that follow the change feed, and keys.

One query runs at a time, in a thread. A slow query is followed by a pause of several times its length, so that watching
does not keep the machine busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import ContentSwitcher, Footer, Input, Static

from farro.errors import FarroError
from farro.jobs.states import FINISHED, Status
from farro.queue import find_job
from farro.queue.explain import explain
from farro.store.port import Changes
from farro.tui import actions, texts
from farro.tui.actions import ActionContext, Confirm, KeyHelp, Notice, ScreenAction
from farro.tui.boards import Board
from farro.tui.job_screen import JobScreen
from farro.tui.queries import Feed, LiveJobs, NeedsPerson, Queries
from farro.tui.views import AttentionView, JobsView, OverviewView, SwarmsView, WorkersView

VIEWS = ("overview", "jobs", "workers", "swarms", "attention")
_TICK_S = 2.0  # refresh without changes: elapsed times, and agents that come and go
_LEAST_S = 0.2  # between two queries
_SHARE = 4  # pause after a query, as a multiple of its length
_RELOAD_S = 5.0  # between two full reads of the list when the feed lost changes
_ATTENTION_S = 30.0
_BUCKET_S, _BUCKETS = 5, 12  # the title shows the rate of the last minute
_MANY = 500  # beyond so many changes the whole list is read again
# Colours come from the theme, so that light and dark both read well.
_CSS = """
#title { height: 1; background: $panel; color: $text; }
#tabs { height: 1; background: $surface; color: $text; }
#views { height: 1fr; }
#overview, #jobs, #workers, #swarms, #attention { height: 1fr; }
#lanes { height: 2; }
#apart { height: 1; }
#running { height: 1fr; }
#ended { height: 1fr; }
#about-jobs { height: 1; color: $text; }
#jobs-board, #workers-board, #swarms-board, #attention-board { height: 1fr; }
#advice { height: auto; max-height: 7; color: $text-muted; }
#filter { height: 3; border: tall $primary; }
#job-head { height: 1; background: $panel; color: $text; }
#job-parts { height: 1; background: $surface; }
#job-body { height: 1fr; }
#story, #result, #prompt { height: 1fr; scrollbar-size-vertical: 1; }
#story-text, #result-text, #prompt-text { width: 1fr; height: auto; }
#logs { height: 1fr; scrollbar-size: 0 1; background: $surface; }
#logs:focus { background-tint: $foreground 0%; }
Confirm, KeyHelp, Notice { align: center middle; }
#dialog { width: 70; max-width: 90%; height: auto; background: $surface; border: round $primary; padding: 1 2; }
#question { width: 1fr; height: auto; margin-bottom: 1; }
#answers { height: auto; margin-top: 1; align-horizontal: right; }
#answers Button { margin-left: 2; }
#keys { width: 70; max-width: 94%; height: auto; max-height: 94%; background: $surface; }
#keys { border: round $primary; padding: 0 2; scrollbar-size-vertical: 1; }
"""


class TopApp(App[None]):
    TITLE = "farro top"
    CSS = _CSS
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *[Binding(str(place + 1), f"view('{name}')", name.title(), show=False) for place, name in enumerate(VIEWS)],
        Binding("question_mark", "keys", "Keys", key_display="?"),
        Binding("l", "logs", "Logs"),
        Binding("e", "explain", "Explain"),
        *[Binding(one.key, f"do('{one.name}')", one.label) for one in actions.ON_JOBS[:3]],
        Binding(actions.COMPLETE.key, "do('complete')", "Complete", show=False),
        Binding("s", "do('start')", "Start"),
        Binding("S", "do('stop')", "Stop"),
        Binding("p", "pause", "Pause", show=False),
        Binding("d", "dark", "Light or dark", show=False),
        Binding("escape", "clear", "Clear", show=False),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, looking: Queries, hands: ActionContext, *, light: bool = False) -> None:
        super().__init__()
        self.theme = "textual-light" if light else "textual-dark"
        self._looking = looking
        self._hands = hands
        self._news = asyncio.Event()  # the feed reported changes
        self._asked = asyncio.Event()  # a person acted: refresh at once
        self._changed: dict[str, None] = {}
        self._lost = True  # the lists must be read again
        self._read_at_s = -_RELOAD_S
        self._reading_s = 0.0  # time of the last full read
        self._ends: deque[tuple[int, int]] = deque(maxlen=_BUCKETS)  # bucket, jobs that ended in it
        self._began_s = time.monotonic()
        self._trouble = ""
        self._paused = False
        self._attention: NeedsPerson | None = None
        self._attended_s = -_ATTENTION_S
        self._feed: Feed | None = None
        self._offered: tuple[Any, ...] = ()  # what the footer was drawn for

    # --- the screen ---

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        yield Static(id="tabs", markup=False)
        with ContentSwitcher(initial="overview", id="views"):
            yield OverviewView(id="overview")
            yield JobsView("jobs", self._looking)
            yield WorkersView(id="workers")
            yield SwarmsView(id="swarms")
            yield AttentionView(id="attention")
        yield Footer()

    def on_mount(self) -> None:
        self._feed = Feed(self._looking.store, self._heard)
        self._feed.start()
        self.query_one("#lanes", Board).focus()
        self._draw_title()
        self.run_worker(self._keep_looking(), name="look")

    async def on_unmount(self) -> None:
        if self._feed is not None:
            self._feed.stop()
            await asyncio.to_thread(self._feed.join, 2.0)

    @property
    def view(self) -> str:
        return str(self.screen_stack[0].query_one("#views", ContentSwitcher).current)

    def _part(self, kind: type[Any]) -> Any:
        return self.screen_stack[0].query_one(kind)

    # --- updates ---

    def _heard(self, told: Changes | Exception) -> None:
        if isinstance(told, Exception):
            self._say_trouble(told)
            return
        self._lost |= told.gap
        ended = 0
        for change in told.items:
            self._changed.pop(change.job_id, None)
            self._changed[change.job_id] = None
            ended += change.status in FINISHED
            if isinstance(self.screen, JobScreen) and self.screen.job_id == change.job_id:
                self.screen.nudge()
        if ended:
            bucket = int(time.monotonic() // _BUCKET_S)
            if self._ends and self._ends[-1][0] == bucket:
                ended += self._ends.pop()[1]
            self._ends.append((bucket, ended))
        self._news.set()

    async def _keep_looking(self) -> None:
        while True:
            began_s, self._reading_s = time.monotonic(), 0.0
            self._news.clear()
            self._asked.clear()
            if not self._paused:
                await self._look()
            took_s = time.monotonic() - began_s - self._reading_s
            await _waited(self._asked, max(_LEAST_S, _SHARE * took_s))
            if not self._asked.is_set():
                await _waited(self._news, _TICK_S)

    async def _look(self) -> None:
        changed, self._changed = list(self._changed), {}
        view = self.view
        try:
            draw = await asyncio.to_thread(self._gather, view, changed)
        except (FarroError, OSError) as error:
            self._changed = {**dict.fromkeys(changed), **self._changed}
            self._say_trouble(error)
            return
        self._trouble = ""
        with self.batch_update():
            draw()
            self._draw_title()
        self._offer()

    def _gather(self, view: str, changed: list[str]) -> Callable[[], None]:
        """Gather what to draw. Blocks; runs in a thread."""
        looking, now_s = self._looking, time.monotonic()
        jobs: JobsView = self._part(JobsView)
        if (self._lost or len(changed) > _MANY) and now_s - self._read_at_s >= _RELOAD_S:
            self._lost, self._read_at_s = False, now_s
            looking.ended.loaded = jobs.live.loaded = False
        for live in (looking.ended, jobs.live):
            if live.loaded:
                live.heard(changed)
        if now_s - self._attended_s >= (_TICK_S if view == "attention" else _ATTENTION_S):
            self._attention, self._attended_s = looking.attention(), now_s
        now = looking.clock.now()
        if view == "overview":
            first = not looking.ended.loaded
            told = looking.overview()
            if first:  # the queues are drawn before the list is read, which may take a second
                self.call_from_thread(self._part(OverviewView).draw, told, {})
                self._read(looking.ended)
                told = looking.overview()
            abouts = looking.abouts(told)
            return lambda: self._part(OverviewView).draw(told, abouts)
        if view == "jobs":
            listed = jobs.live
            if not listed.loaded:
                self._read(listed)
            known = {one.job_id: looking.about(one) for one in listed.views.values()}
            return lambda: jobs.draw(now, known)
        if view == "workers":
            found = looking.workers()
            return lambda: self._part(WorkersView).draw(found, now)
        if view == "swarms":
            swarms = looking.swarms()
            return lambda: self._part(SwarmsView).draw(swarms)
        attention = self._attention
        assert attention is not None
        return lambda: self._part(AttentionView).draw(attention)

    def _read(self, live: LiveJobs) -> None:
        began_s = time.monotonic()
        live.load()
        self._reading_s += time.monotonic() - began_s

    def _say_trouble(self, error: Exception) -> None:
        self._trouble = texts.plain(str(error) or type(error).__name__)
        self._draw_title()

    def _draw_title(self) -> None:
        looking, line = self._looking, Text(" farro ", style="bold", no_wrap=True, overflow="ellipsis")
        if self._paused:
            line.append(" PAUSED ", style="reverse bold")
        if self._trouble:
            line.append(f" {self._trouble} ", style="bold red")
        else:
            bucket = int(time.monotonic() // _BUCKET_S)
            counts = dict(self._ends)
            spread = [counts.get(at, 0) for at in range(bucket - _BUCKETS + 1, bucket + 1)]
            line.append(f" {texts.spark(spread)} ", style="green")
            watched_s = int(time.monotonic() - self._began_s)
            within = "/min" if watched_s >= _BUCKET_S * _BUCKETS else f" in {watched_s}s"
            line.append(f"{sum(spread)} ended{within} ", style="bold")
            line.append(f" {looking.clock.now():%H:%M:%S} UTC ", style="dim")
            line.append(f" {texts.ending(looking.store.root, self.size.width - line.cell_len - 2)}", style="dim")
        base = self.screen_stack[0]
        base.query_one("#title", Static).update(line)
        tabs, wants = Text(" "), self._wants()
        for place, name in enumerate(VIEWS):
            title = f" {place + 1} {name.title()}{f' ({wants})' if name == 'attention' and wants else ''} "
            style = "reverse bold" if name == self.view else "bold red" if name == "attention" and wants else ""
            tabs.append(title, style=style)
        tabs.append("  ? keys", style="dim")
        base.query_one("#tabs", Static).update(tabs)

    def _wants(self) -> int:
        told = self._attention
        return 0 if told is None else told.alerts.firing + len(told.inbox) + len(told.dead)

    # --- keys ---

    def _now(self) -> None:
        """Refresh at once: a person waits for it."""
        self._asked.set()
        self._news.set()

    def action_view(self, name: str) -> None:
        while len(self.screen_stack) > 1:
            self.pop_screen()
        self.query_one("#views", ContentSwitcher).current = name
        self.query_one(f"#{name}").query(Board).first().focus()
        self._draw_title()
        self._now()

    def action_keys(self) -> None:
        self.push_screen(KeyHelp())

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._draw_title()
        self._now()

    def action_dark(self) -> None:
        self.theme = "textual-dark" if self.theme == "textual-light" else "textual-light"

    def action_clear(self) -> None:
        jobs: JobsView = self._part(JobsView)
        if self.view == "jobs" and (jobs.asked or jobs.query_one("#filter").display):
            self._filter("")
            jobs.query_one("#filter").display = False
            jobs.board.focus()

    def _filter(self, text: str) -> None:
        self._part(JobsView).filter_as(text)
        self._now()

    def on_jobs_view_asked(self) -> None:
        self._now()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "filter" and event.input.has_focus:
            self._filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id != "filter":
            return
        event.input.display = False
        board = self._part(JobsView).board
        board.focus()
        if not board.rows and event.value.strip():
            self.run_worker(self._find(event.value.strip()))

    async def _find(self, text: str) -> None:
        """Find a job that is too old for the list, by its name or the beginning of its id."""
        store = self._looking.store
        with contextlib.suppress(FarroError, OSError):
            self._show_job(await asyncio.to_thread(find_job.resolve, store, text))

    def on_board_opened(self, event: Board.Opened) -> None:
        if event.board.id == "lanes":
            self._filter(event.key)
            self.action_view("jobs")
        elif (job_id := self.job()) is not None:
            self._show_job(job_id)

    def on_board_end(self, event: Board.End) -> None:
        if event.board.id == "jobs-board" and self._part(JobsView).fetch_more():
            self._now()

    def _show_job(self, job_id: str, part: str = "story") -> None:
        if isinstance(self.screen, JobScreen):
            self.screen.action_show(part)
        else:
            self.push_screen(JobScreen(self._looking, job_id, part))

    def action_logs(self) -> None:
        if (job_id := self.job()) is not None:
            self._show_job(job_id, "logs")

    def action_explain(self) -> None:
        if (job_id := self.job()) is not None:
            self.run_worker(self._explain(job_id))

    async def _explain(self, job_id: str) -> None:
        store, clock = self._looking.store, self._looking.clock
        try:
            facts, found = await asyncio.to_thread(explain, store, job_id, now=clock.now())
        except (FarroError, OSError) as error:
            self._refused(error)
            return
        fix = f"\n\n{found.fix}" if found.fix else ""
        self.push_screen(Notice(f"{job_id} ({facts.status})", f"{found.message}{fix}"))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return whether an action applies to the target; the footer shows only those."""
        name = str(parameters[0]) if action == "do" else ""
        if name in ("start", "stop"):
            return self._swarm() is not None
        if action not in ("do", "logs", "explain") or name in ("approve", "refuse"):
            return True
        if self.job() is None:
            return False
        known = self._known()
        return action != "do" or known is None or actions.ACTIONS[name].offered(*known)

    def _offered_for(self) -> tuple[Any, ...]:
        """Return everything that `check_action` depends on."""
        return self.view, type(self.screen), self.job() is None, self._known(), self._swarm() is None

    def job(self) -> str | None:
        """Return the job on the screen, else the one under the cursor."""
        if isinstance(self.screen, JobScreen):
            return self.screen.job_id
        board = self.focused
        if not isinstance(board, Board) or board.key is None:
            return None
        if board.id in ("running", "ended", "jobs-board"):
            return board.key
        if board.id == "workers-board":
            return self._part(WorkersView).jobs.get(board.key)  # type: ignore[no-any-return]
        return self._part(AttentionView).asked if board.id == "attention-board" else None

    def _swarm(self) -> str | None:
        base = self.view == "swarms" and len(self.screen_stack) == 1
        return self._part(SwarmsView).swarm if base else None

    def _known(self) -> tuple[Status, bool] | None:
        """Return the status of the job and whether it is final; None when unknown."""
        if isinstance(self.screen, JobScreen):
            seen = self.screen.seen
            view = None if seen is None else seen.details.view
        else:
            job_id = self.job() or ""
            view = self._part(JobsView).live.views.get(job_id) or self._looking.ended.views.get(job_id)
        return None if view is None else (view.status, view.lifecycle.terminal)

    def _offer(self) -> None:
        """Redraw the footer when other keys apply."""
        if (offered := self._offered_for()) != self._offered:
            self._offered = offered
            self.refresh_bindings()

    def on_board_moved(self) -> None:
        self._offer()

    def on_descendant_focus(self) -> None:
        self._offer()

    def action_do(self, name: str) -> None:
        action = actions.ACTIONS[name]
        if name in ("start", "stop"):
            target = self._swarm()
        elif name in ("approve", "refuse"):
            target = self._part(AttentionView).asked if self.view == "attention" else None
        else:
            target = self.job()
        if target is not None:
            self.ask(action, target)

    def ask(self, action: ScreenAction, target: str) -> None:
        """Ask for confirmation, then run the action."""

        def answered(note: str | None) -> None:
            if note is not None:
                self.run_worker(self._do(action, target, note or None))

        self.push_screen(Confirm(action, target), answered)

    async def _do(self, action: ScreenAction, target: str, note: str | None) -> None:
        try:
            told = await asyncio.to_thread(action.do, self._hands, target, note)
        except (FarroError, OSError) as error:
            self._refused(error)
            return
        self.notify(texts.plain(told), markup=False, timeout=6)
        self._attended_s = -_ATTENTION_S
        self._changed[target] = None
        self._now()

    def _refused(self, error: Exception) -> None:
        self.notify(texts.plain(str(error)), severity="error", markup=False, timeout=12)


async def _waited(event: asyncio.Event, most_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(most_s):
            await event.wait()
