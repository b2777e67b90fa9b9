"""Dialogs: confirm an action, show the keys, show a message."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from farro.tui import texts
from farro.tui.actions import ScreenAction

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
