"""Show one job: its history and steps, its logs as they are written, its result, its prompt."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import ContentSwitcher, Footer, Log, Static

from farro.air.service import JobStatus, TaskState, job_status
from farro.errors import FarroError, UnknownJob
from farro.execution import progress
from farro.jobs.states import Status
from farro.jobs.times import seconds_between, span
from farro.lazy_dataclass import dataclass, field
from farro.queue import jobs, logs
from farro.queue.jobs import JobDetails
from farro.queue.logs import LogFile, LogFollower, LogQuery
from farro.tui import texts
from farro.tui.queries import Queries

PARTS = ("story", "logs", "result", "prompt")
TAIL = 1_000  # lines of a log shown when it is opened
_LONGEST = 2_000  # characters of one line
_AT_ONCE = 1 << 20  # bytes of logs that one query reads
_PROMPT = 64 << 10
_TONES = {
    Status.SUCCEEDED: "green",
    Status.FAILED: "red",
    Status.STALE: "yellow",
    Status.IN_PROGRESS: "cyan",
}
_MARKS = {
    TaskState.COMPLETED: ("✓", "green"),
    TaskState.FAILED: ("✗", "red"),
    TaskState.RUNNING: ("▶", "cyan"),
    TaskState.PENDING: ("·", "dim"),
}


@dataclass
class JobReading:
    """The result of one query."""

    details: JobDetails
    line: JobStatus
    prompt: str
    said: list[tuple[LogFile, str]] = field(default_factory=list)
    more: bool = False  # there are logs that this query did not read
    away: str | None = None  # the agent, when its output is on another machine


class Watcher:
    """Queries one job repeatedly. Blocks; runs in a thread."""

    def __init__(self, looking: Queries, job_id: str) -> None:
        self.looking = looking
        self.job_id = job_id
        self._follower: LogFollower | None = None
        self._decoders: dict[tuple[int, str | None, str], codecs.IncrementalDecoder] = {}

    def look(self) -> JobReading:
        store = self.looking.store
        details = jobs.show(store, self.job_id)
        line = job_status(store, self.job_id, name=details.name, now=self.looking.clock.now())
        found = json.dumps(progress.read_prompt(store.folder(details.view)), indent=2, ensure_ascii=False)
        seen = JobReading(details=details, line=line, prompt=found[:_PROMPT])
        if self._follower is None:
            self._follower = LogFollower(store, self.job_id, LogQuery())
            told = logs.output(store, self.job_id, LogQuery())
            with contextlib.suppress(OSError):  # the job is moving: the next query reads everything
                self._follower.skip_to(logs.last_lines(told.sources, TAIL))
        taken = 0
        for piece in self._follower.run_once()[1]:
            source = piece.source
            who = (source.attempt, source.step, source.stream)
            decoder = self._decoders.setdefault(who, codecs.getincrementaldecoder("utf-8")("replace"))
            seen.said.append((source, decoder.decode(piece.data)))
            taken += len(piece.data)
            if taken >= _AT_ONCE:
                seen.more = True
                break
        with contextlib.suppress(FileNotFoundError):
            seen.away = logs.away(store, details.view)
        return seen


class JobScreen(Screen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,backspace", "app.pop_screen", "Back", key_display="esc"),
        Binding("tab", "part(1)", "Next part", priority=True),
        Binding("shift+tab", "part(-1)", "Part before", show=False, priority=True),
        Binding("l", "show('logs')", "Logs"),
        Binding("F", "follow", "Follow", show=False),
    ]

    def __init__(self, looking: Queries, job_id: str, part: str = "story") -> None:
        super().__init__()
        self.job_id = job_id
        self.part = part
        self.seen: JobReading | None = None
        self._watcher = Watcher(looking, job_id)
        self._last: tuple[int, str | None, str] | None = None
        self._nudged = asyncio.Event()

    def compose(self) -> ComposeResult:
        yield Static(id="job-head", markup=False)
        yield Static(id="job-parts", markup=False)
        with ContentSwitcher(initial=self.part, id="job-body"):
            with VerticalScroll(id="story"):
                yield Static(id="story-text", markup=False)
            yield Log(id="logs", max_lines=20_000)
            with VerticalScroll(id="result"):
                yield Static(id="result-text", markup=False)
            with VerticalScroll(id="prompt"):
                yield Static(id="prompt-text", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.action_show(self.part)
        self.run_worker(self._keep_looking(), exclusive=True)

    def nudge(self) -> None:
        """Refresh: the feed reported this job."""
        self._nudged.set()

    def action_part(self, by: int) -> None:
        self.action_show(PARTS[(PARTS.index(self.part) + by) % len(PARTS)])

    def action_show(self, part: str) -> None:
        self.part = part
        self.query_one("#job-body", ContentSwitcher).current = part
        self.query_one(f"#{part}").focus()
        line = Text(" ")
        for name in PARTS:
            line.append(f" {name.title()} ", style="reverse bold" if name == part else "dim")
            line.append(" ")
        self.query_one("#job-parts", Static).update(line)

    def action_follow(self) -> None:
        log = self.query_one("#logs", Log)
        log.auto_scroll = not log.auto_scroll
        self.notify("the end of the logs is followed" if log.auto_scroll else "the logs stand still", timeout=2)

    async def _keep_looking(self) -> None:
        while True:
            self._nudged.clear()
            try:
                seen = await asyncio.to_thread(self._watcher.look)
            except UnknownJob as error:
                self.query_one("#job-head", Static).update(Text(f" {texts.plain(str(error))}", style="bold red"))
                return
            except (FarroError, OSError) as error:
                self.query_one("#job-parts", Static).update(Text(f" {texts.plain(str(error))}", style="bold red"))
                wait_s = 2.0
            else:
                self.seen = seen
                self._draw(seen, self._watcher.looking.clock.now())
                wait_s = 0.05 if seen.more else 0.4 if seen.details.view.status is Status.IN_PROGRESS else 5.0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._nudged.wait()
                    await asyncio.sleep(0.1)  # at most ten queries a second

    # --- drawing ---

    def _draw(self, seen: JobReading, now: datetime) -> None:
        life = seen.details.view.lifecycle
        head = Text(f" {texts.plain(life.job_id)}  ", style="bold")
        head.append(f" {texts.WORDS[life.status]} ", style=f"bold {_TONES.get(life.status, '')}".strip())
        head.append(f"  {texts.plain(life.role)}, attempt {life.attempt}", style="dim")
        if seen.details.orphaned:
            head.append("  its agent is dead: farro watchdog recovers it", style="bold yellow")
        self.query_one("#job-head", Static).update(head)
        self.query_one("#story-text", Static).update(_story(seen, now))
        self.query_one("#result-text", Static).update(Text(self._result(seen)))
        self.query_one("#prompt-text", Static).update(Text(texts.lines(seen.prompt)))
        log = self.query_one("#logs", Log)
        for source, text in seen.said:
            self._headline(log, source)
            log.write(_broken(texts.lines(text)))
        if seen.away is not None and not log.line_count:
            log.write_line(
                f"it runs on another machine ({texts.plain(seen.away)}); its output comes when the attempt ends"
            )

    def _headline(self, log: Log, source: LogFile) -> None:
        who = (source.attempt, source.step, source.stream)
        if who == self._last:
            return
        self._last = who
        step = "runner" if source.step is None else f"step {texts.plain(source.step)}  {source.stream}"
        begin = "\n" if log.line_count and log.lines[-1] else ""
        log.write(f"{begin}── attempt {source.attempt}  {step} ──\n")

    def _result(self, seen: JobReading) -> str:
        if seen.details.message:
            return texts.lines(seen.details.message)
        if seen.details.view.lifecycle.terminal:
            return "It left no result."
        return "It has no result yet."


def _story(seen: JobReading, now: datetime) -> Text:
    prompt = json.loads(seen.prompt) if len(seen.prompt) < _PROMPT else {}
    told = _facts(seen, texts.about(prompt), now)
    told.append(_steps(seen.line, texts.commands(prompt)))
    life = seen.details.view.lifecycle
    if life.hops:
        told.append("\n History\n", style="bold")
    for hop in life.hops:
        told.append(f"  {texts.plain(hop.at[:19].replace('T', ' '))}Z  ", style="dim")
        told.append(f"attempt {hop.attempt}  {hop.reason} → {texts.plain(hop.to)}")
        told.append(f"  by {texts.plain(hop.by)}" if hop.by else "", style="dim")
        told.append("\n")
        if hop.note:
            told.append(f"      {texts.plain(hop.note)[:500]}\n", style="italic")
    if seen.details.files:
        told.append("\n Files\n", style="bold")
        for name in seen.details.files[:100]:
            told.append(f"  {texts.plain(name)}\n", style="dim")
    return told


def _facts(seen: JobReading, about: str, now: datetime) -> Text:
    life, told = seen.details.view.lifecycle, Text()
    rows = [
        ("what", about),
        ("name", seen.details.name),
        ("lies in", seen.details.view.place),
        ("created", f"{life.created_at}  ({texts.age(now, life.created_at)} ago)"),
        ("ended", life.finalized_at),
        ("took", span(seconds_between(life.created_at, life.finalized_at)) if life.finalized_at else None),
        ("agent", life.agent),
        ("not before", life.not_before),
        ("after", ", ".join(seen.details.view.waits_for)),
        ("retry of", life.retry_of),
        ("damaged", seen.details.view.damaged),
    ]
    for name, value in rows:
        if value:
            told.append(f" {name:<11}", style="dim")
            told.append(f"{texts.plain(value)}\n")
    if life.error:
        told.append(f"\n {texts.plain(life.error.get('category'))}: ", style="bold red")
        told.append(f"{texts.lines(str(life.error.get('message')))}\n", style="red")
    return told


def _steps(line: JobStatus, commands: Mapping[str, str]) -> Text:
    told = Text()
    told.append(f"\n Steps {line.done} of {line.total}\n", style="bold")
    for task in line.tasks:
        mark, style = _MARKS.get(task.state, ("?", ""))
        told.append(f"  {mark} ", style=style)
        told.append(f"{texts.plain(task.id):<12} ")
        told.append(f"{commands.get(task.id, '')}  ")
        ended = [] if task.duration_s is None else [span(task.duration_s)]
        ended += [] if task.exit_code is None else [f"exit {task.exit_code}"]
        ended += [f"needs {', '.join(map(texts.plain, task.needs))}"] if task.needs else []
        told.append("  ".join(ended), style="dim")
        told.append(f"  {texts.plain(task.error)[:300]}" if task.error else "", style="red")
        told.append("\n")
    return told


def _broken(text: str) -> str:
    """Break long lines: a file without line ends is one line of megabytes."""
    return re.sub(f"([^\n]{{{_LONGEST}}})(?=[^\n])", "\\1\n", text)
