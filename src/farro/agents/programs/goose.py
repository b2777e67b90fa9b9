"""goose, `goose run`: https://goose-docs.ai. Tried with 1.52.0."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime

from farro.agents.programs.outcomes import ProgramError
from farro.agents.programs.output import Event, at, count_at, objects_at, text_at, tool_line
from farro.agents.programs.output_reader import EventReader, local_now
from farro.agents.programs.port import SESSION, Dialect, NewSession, ProgramLaunch, ProgramRun, Reader
from farro.agents.programs.services import Service, refuse_login, service_model
from farro.agents.programs.session_files import file_mentions
from farro.agents.providers.port import Usage

_WRITERS = ("edit", "text_editor", "write", "developer__text_editor", "developer__write", "developer__edit")
_DATABASE = (".local/share/goose/sessions/sessions.db", ".local/share/goose/sessions/sessions.db-wal")
_FAILED = "Ran into this error: "
# By service: its name in goose, the variable with its address, the variable with its key.
_SERVICES: dict[Service, tuple[str, str, str]] = {
    "anthropic": ("anthropic", "ANTHROPIC_HOST", "ANTHROPIC_API_KEY"),
    "openai": ("openai", "OPENAI_HOST", "OPENAI_API_KEY"),
    "google": ("google", "GOOGLE_HOST", "GOOGLE_API_KEY"),
    "other": ("openai", "OPENAI_HOST", "OPENAI_API_KEY"),
}


class Goose:
    """goose (port: AgentProgram). The id of its session is the name that it is given."""

    name = "goose"
    command: tuple[str, ...] = ("goose",)
    dialects: tuple[Dialect, ...] = ("chat", "anthropic", "responses", "gemini")
    new_session: NewSession = "chosen"
    by_hand: tuple[str, ...] = ("session", "--resume", "--name", SESSION)

    def launch(self, run: ProgramRun) -> ProgramLaunch:
        if run.login:
            raise refuse_login(self.name)
        args = ["run", "--instructions", "-", "--output-format", "stream-json", "--no-profile"]
        args += ["--with-builtin", "developer"]
        if run.session_id is not None:
            args += ["--name", run.session_id]
            args += ["--resume"] if run.resume else []
        model = service_model(self.name, run.model)
        service, address, key = _SERVICES[model.service]
        env = {
            "CONTEXT_FILE_NAMES": '[".goosehints"]',  # not AGENTS.md, which is in the prompt
            "GOOSE_DISABLE_KEYRING": "true",
            "GOOSE_MODE": "auto",  # no person is there to ask, and farro's sandbox limits what it may write
            "GOOSE_MODEL": model.name,
            "GOOSE_PROVIDER": service,
            "GOOSE_TELEMETRY_OFF": "true",
        }
        if run.gateway is not None:
            env |= {address: run.gateway.base_url, key: run.gateway.token}
        return ProgramLaunch(args=tuple(args), env=env)

    def reader(self, run: ProgramRun, on_progress: Callable[[str], None]) -> Reader:
        return GooseReader(on_progress, resumed=run.resume)

    def resumable(self, home: str, session_id: str, cwd: str) -> bool:
        return any(file_mentions(f"{home}/{name}", session_id) for name in _DATABASE)

    def read_paths(self, executable: str) -> tuple[str, ...]:
        return ()


class GooseReader(EventReader):
    """Reads one run. goose exits with 0 after most refused requests, and reports the tokens of the whole session."""

    def __init__(
        self, on_progress: Callable[[str], None], *, resumed: bool, now: Callable[[], datetime] = local_now
    ) -> None:
        super().__init__(on_progress, now)
        self._resumed = resumed
        self._writes: dict[str, str] = {}  # by the id of the call: the file that it writes
        self._message = ""  # the id of the message whose text comes
        self._notice = ""  # goose's own last words, which come as if the model had said them

    def take(self, event: Event) -> None:
        match event.get("type"):
            case "message":
                self._take_message(event)
            case "error":
                self.error = _error(text_at(event, "error"), status=None)
            case "complete":
                self._complete(event)

    def _take_message(self, event: Event) -> None:
        model = text_at(event, "message", "metadata", "inference", "requestedModel")
        self.model = model or self.model
        for part in objects_at(event, "message", "content"):
            match part.get("type"):
                case "text" if text_at(event, "message", "role") == "assistant":
                    self._text(text_at(event, "message", "id"), text_at(part, "text"), from_model=bool(model))
                case "toolRequest":
                    self._request(part)
                case "toolResponse":
                    path = self._writes.pop(text_at(part, "id"), "")
                    if text_at(part, "toolResult", "status") == "success":
                        self.wrote(path)
                case "error":
                    status = 401 if part.get("kind") == "authentication" else None
                    self.error = _error(text_at(part, "message"), status=status)
                case "systemNotification":
                    self.progress(text_at(part, "msg"))
                    if part.get("notificationType") == "creditsExhausted":
                        self.error = ProgramError(message=text_at(part, "msg"), kind="refused")

    def _text(self, message: str, piece: str, *, from_model: bool) -> None:
        self.say(piece)
        before = (self.text if from_model else self._notice) if message == self._message else ""
        self._message = message
        self.text, self._notice = (before + piece, "") if from_model else (self.text, before + piece)

    def _request(self, part: Event) -> None:
        self.said()
        self.text = ""  # what it said before its tools is no answer
        name, arguments = text_at(part, "toolCall", "value", "name"), at(part, "toolCall", "value", "arguments")
        self.progress(tool_line(name, arguments))
        if name in _WRITERS:
            self._writes[text_at(part, "id")] = text_at(arguments, "path")

    def _complete(self, event: Event) -> None:
        self.said()
        self.finished = True
        if not self._resumed:
            fresh = count_at(event, "input_tokens")
            self.usage = Usage(
                input_tokens=fresh,
                output_tokens=max(count_at(event, "output_tokens"), count_at(event, "total_tokens") - fresh),
                cache_read_tokens=min(count_at(event, "cache_read_input_tokens"), fresh),
                cache_write_tokens=count_at(event, "cache_write_input_tokens"),
            )
        if self.error is None and self._notice:
            self.error = _error(self._notice, status=None)


def _error(said: str, *, status: int | None) -> ProgramError:
    message = said.removeprefix(_FAILED).partition("\n\n")[0]
    found = re.search(r"\((\d{3})\b|\bStatus: (\d{3})\b", message)
    return ProgramError(message=message or "ended with an error", status=int(found[1] or found[2]) if found else status)


GOOSE = Goose()
