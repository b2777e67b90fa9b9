"""Define what can be done to a job or a swarm from the screen, and the dialogs that ask before it.

Each action blocks, and runs in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from farro.agents import service as agents
from farro.config.settings import Settings
from farro.host.clock import Clock
from farro.jobs.states import FINISHED, Status
from farro.lazy_dataclass import dataclass
from farro.queue import jobs, retry
from farro.queue.admission import Gate
from farro.store.port import Store
from farro.swarm import service as swarms
from farro.tui import texts


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionContext:
    """The root and the user in whose name the actions are done."""

    store: Store
    settings: Settings
    gate: Gate
    clock: Clock
    by: str  # as an agent name
    # Makes sure that an orchestrator runs; returns a message for the person, if any.
    rouse: Callable[[], str | None] = lambda: None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScreenAction:
    """One action; `do` returns the result as a sentence."""

    name: str
    key: str
    label: str
    question: str  # {job} is the id
    do: Callable[[ActionContext, str, str | None], str]
    dangerous: bool = False
    takes_note: bool = True  # for the job's history
    needs_note: bool = False
    offered: Callable[[Status, bool], bool] = lambda status, terminal: True  # status of a job, and whether it is final


def _requeue(hands: ActionContext, job_id: str, note: str | None) -> str:
    return f"{job_id} is {jobs.requeue(hands.store, job_id, by=hands.by, note=note).status}"


def _kill(hands: ActionContext, job_id: str, note: str | None) -> str:
    life = jobs.kill(hands.store, job_id, by=hands.by, note=note)
    return f"{job_id} is {life.status}" + ("" if life.status is Status.KILLED else " already; nothing was changed")


def _complete(hands: ActionContext, job_id: str, note: str | None) -> str:
    return f"{job_id} is {jobs.force_complete(hands.store, job_id, by=hands.by, note=note).status}"


def _retry(hands: ActionContext, job_id: str, note: str | None) -> str:
    durable = hands.settings.durability == "power"
    made = retry.retry(hands.store, job_id, durable=durable, gate=hands.gate)
    kept = f"; not run again: {', '.join(made.kept[:5])}" if made.kept else ""
    return f"{made.job_id} repeats {job_id}{kept}"


def _approve(hands: ActionContext, job_id: str, note: str | None) -> str:
    agents.approve(hands.store, job_id, by=hands.by, note=note)
    return f"{job_id} is approved; the manager takes it on"


def _refuse(hands: ActionContext, job_id: str, note: str | None) -> str:
    agents.refuse(hands.store, job_id, by=hands.by, note=note or "")
    return f"{job_id} is refused; the manager sends it back"


def _swarm(signal: str) -> Callable[[ActionContext, str, str | None], str]:
    def do(hands: ActionContext, swarm: str, note: str | None) -> str:
        request = swarms.CommandRequest(signal=signal, swarm=swarm, origin=hands.by)
        swarms.submit(swarms.folder(hands.store.root), request, clock=hands.clock)
        told = hands.rouse()
        return f"{signal} of {swarm} is asked for" + (f"; {told}" if told else "")

    return do


REQUEUE = ScreenAction(
    name="requeue",
    key="r",
    label="Requeue",
    question="Put {job} back into its queue?",
    do=_requeue,
    offered=lambda status, terminal: status in (Status.STALE, Status.FAILED) and not terminal,
)
RETRY = ScreenAction(
    name="retry",
    key="t",
    label="Retry",
    question="Run {job} again, as a new job, from where it failed?",
    do=_retry,
    takes_note=False,
    offered=lambda status, terminal: status in FINISHED,
)
KILL = ScreenAction(
    name="kill",
    key="K",
    label="Kill",
    question="Kill {job}? Its processes end, and what it was doing is lost.",
    do=_kill,
    dangerous=True,
    offered=lambda status, terminal: not terminal,
)
COMPLETE = ScreenAction(
    name="complete",
    key="C",
    label="Force-complete",
    question="Declare {job} succeeded, whatever its attempts say?",
    do=_complete,
    dangerous=True,
    offered=lambda status, terminal: not terminal,
)
APPROVE = ScreenAction(name="approve", key="a", label="Approve", question="Let {job} go on?", do=_approve)
REFUSE = ScreenAction(
    name="refuse",
    key="f",
    label="Refuse",
    question="Send {job} back? The role that gets it is told why.",
    do=_refuse,
    needs_note=True,
)
START = ScreenAction(
    name="start",
    key="s",
    label="Start",
    question="Start the swarm {job}?",
    do=_swarm("swarm-start"),
    takes_note=False,
)
STOP = ScreenAction(
    name="stop",
    key="S",
    label="Stop",
    question="Stop the swarm {job}? Its components stay, and take no more work.",
    do=_swarm("swarm-stop"),
    dangerous=True,
    takes_note=False,
)
ON_JOBS = (REQUEUE, RETRY, KILL, COMPLETE)
ACTIONS = {one.name: one for one in (*ON_JOBS, APPROVE, REFUSE, START, STOP)}


# --- dialogs ---

# Section → keys and their effect. docs/top.md lists the same.
KEYS = {
    "Everywhere": (
        ("1 … 5", "overview, jobs, workers, swarms, attention"),
        ("↑ ↓ j k", "move; PgUp PgDn, g G: further"),
        ("Tab", "to the next board"),
        ("Enter", "open what is under the cursor; Esc leads back"),
        ("p", "pause: what is shown stands still"),
        ("d", "dark or light"),
        ("q", "quit"),
    ),
    "Jobs": (
        ("/", "filter: words, a status (failed), a role (Runner)"),
        ("f", "the next status"),
        ("o", "order by the next column"),
        ("l", "its logs"),
        ("e", "explain: why it does not run"),
        ("r t", "requeue; retry as a new job"),
        ("K C", "kill; force-complete"),
    ),
    "In a job": (
        ("Tab", "the next part: story, logs, result, prompt"),
        ("F", "follow the end of the logs, or not"),
    ),
    "Attention": (("a f", "approve; refuse, with the reason"),),
    "Swarms": (("s S", "start; stop"),),
}


class Confirm(ModalScreen[str | None]):
    """Ask for confirmation. Returns the note, which may be empty, or None for no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "answer(False)", "no"),
        Binding("y", "answer(True)", "yes"),
        Binding("n", "answer(False)", "no"),
    ]

    def __init__(self, action: ScreenAction, job_id: str) -> None:
        super().__init__()
        self.action = action
        self.job_id = job_id

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(Text(self.action.question.format(job=texts.plain(self.job_id))), id="question")
            hint = (
                "the reason, which it needs" if self.action.needs_note else "a note for the job's history, if you like"
            )
            if self.action.takes_note:
                yield Input(placeholder=hint, id="note", max_length=4000)
            with Horizontal(id="answers"):
                yield Button(
                    f"{self.action.label} (y)", id="yes", variant="error" if self.action.dangerous else "primary"
                )
                yield Button("No (n)", id="no")

    def on_mount(self) -> None:
        # Not on the confirming button: a second press of the key must not confirm.
        self.query_one("#note" if self.action.needs_note else "#no").focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.action_answer(True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.action_answer(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        note = self.query_one("#note", Input).value.strip() if self.action.takes_note else ""
        if yes and self.action.needs_note and not note:
            self.query_one("#note").focus()
            return
        self.dismiss(note if yes else None)


class KeyHelp(ModalScreen[None]):
    """Show what each key does."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "back")]

    def compose(self) -> ComposeResult:
        told = Text()
        for title, keys in KEYS.items():
            told.append(f"{title}\n", style="bold")
            for key, text in keys:
                told.append(f"  {key:<9}", style="bold")
                told.append(f"{text}\n")
        with VerticalScroll(id="keys"):
            yield Static(told)


class Notice(ModalScreen[None]):
    """Show a message until a key is pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,space,e", "dismiss", "back")]

    def __init__(self, title: str, told: str) -> None:
        super().__init__()
        self.told = Text(f"{texts.plain(title)}\n\n", style="bold")
        self.told.append(texts.lines(told), style="not bold")

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="keys"):
            yield Static(self.told)
