"""Gemini CLI, `gemini`: https://geminicli.com/docs/cli/headless. Tried with 0.61.0."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable
from datetime import datetime, timedelta

from farro.agents.programs.outcomes import ProgramError
from farro.agents.programs.output import Event, at, count_at, json_object, number_at, objects_at, text_at, tool_line
from farro.agents.programs.output_reader import EventReader, local_now
from farro.agents.programs.port import SESSION, Dialect, NewSession, ProgramLaunch, ProgramRun, Reader
from farro.agents.programs.services import missing_key
from farro.agents.programs.session_files import file_mentions, session_file
from farro.agents.providers.port import Usage
from farro.host import fs
from farro.lazy_dataclass import replace

_SETTINGS = ".gemini/settings.json"
_WRITERS = ("write_file", "replace")
_AUTO = "auto"  # no model: another one chooses the one that answers
_CUT = "terminated"  # all that it says when a connection broke off
_REFUSALS = ("path_not_in_workspace", "permission_denied", "policy_violation")
_OUTSIDE = "Path not in workspace"


class Gemini:
    """Gemini CLI (port: AgentProgram)."""

    name = "gemini"
    command: tuple[str, ...] = ("gemini",)
    dialects: tuple[Dialect, ...] = ("gemini", "code_assist")
    new_session: NewSession = "chosen"
    by_hand: tuple[str, ...] = ("--resume", SESSION)

    def launch(self, run: ProgramRun) -> ProgramLaunch:
        args = ["--output-format", "stream-json", "--approval-mode", "yolo", "--skip-trust"]
        if run.model is not None:
            args += ["--model", run.model]
        if run.session_id is not None:
            args += ["--resume" if run.resume else "--session-id", run.session_id]
        env = {"GEMINI_CLI_NO_RELAUNCH": "true"}  # one process less, and a signal ends it at once
        if run.gateway is None:
            sign_in = _own_sign_in(run.variables)
        elif run.login:
            sign_in = "oauth-personal"
            env["GOOGLE_GENAI_USE_GCA"] = "true"
            env["GOOGLE_CLOUD_ACCESS_TOKEN"] = run.gateway.token
            env["CODE_ASSIST_ENDPOINT"] = run.gateway.base_url
        else:
            sign_in = "gemini-api-key"
            env["GOOGLE_GEMINI_BASE_URL"] = run.gateway.base_url
            env["GEMINI_API_KEY"] = run.gateway.token
        settings: dict[str, object] = {
            "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False, "maxAttempts": 1},
            "privacy": {"usageStatisticsEnabled": False},
            "security": {"auth": {"selectedType": sign_in}},
            "telemetry": {"enabled": False},
        }
        if run.read_only:
            settings["tools"] = {"exclude": list(_WRITERS)}
        return ProgramLaunch(args=tuple(args), env=env, files={_SETTINGS: json.dumps(settings).encode()})

    def reader(self, run: ProgramRun, on_progress: Callable[[str], None]) -> Reader:
        return GeminiReader(on_progress)

    def resumable(self, home: str, session_id: str, cwd: str) -> bool:
        """Tell whether the session is among those of the folder `cwd`: it looks for no others."""
        folder = _project(home, cwd)
        file = folder and session_file(home, ".gemini", "tmp", folder, "chats", f"session-*-{session_id[:8]}.jsonl")
        if not file or not file_mentions(file, '"type":"gemini"'):  # it takes back a question that has no answer
            return False
        with contextlib.suppress(OSError):
            first = fs.read_bytes(file, 1 << 16).partition(b"\n")[0]
            return text_at(json_object(first), "sessionId") == session_id
        return False

    def read_paths(self, executable: str) -> tuple[str, ...]:
        return ("/etc/gemini-cli",)


def _own_sign_in(variables: frozenset[str]) -> str:
    if "GEMINI_API_KEY" in variables:
        return "gemini-api-key"
    if "GOOGLE_GENAI_USE_VERTEXAI" in variables:
        return "vertex-ai"
    raise missing_key("gemini", "GEMINI_API_KEY")


def _project(home: str, cwd: str) -> str | None:
    """Return the name that it gave to the folder in which it works."""
    with contextlib.suppress(OSError):
        projects = json_object(fs.read_bytes(f"{home}/.gemini/projects.json", 1 << 20))
        return text_at(projects, "projects", os.path.realpath(cwd)) or None
    return None


class GeminiReader(EventReader):
    """Reads one run."""

    def __init__(self, on_progress: Callable[[str], None], now: Callable[[], datetime] = local_now) -> None:
        super().__init__(on_progress, now)
        self._calls: dict[str, Event] = {}  # of tools, by their ids, until their results come
        self._called = False  # a tool, since the last text

    def take(self, event: Event) -> None:
        match event.get("type"):
            case "init":
                self.note_session(text_at(event, "session_id"))
                model = text_at(event, "model")
                self.model = None if model == _AUTO else model or None
                self.progress(f"started with {self.model or 'its usual model'}")
            case "message" if event.get("role") == "assistant":
                self._said(event)
            case "tool_use":
                self._call(event)
            case "tool_result":
                self._result_of_call(event)
            case "error":
                self.progress(text_at(event, "message"))
                if text_at(event, "severity") == "error":
                    self.error = ProgramError(message=text_at(event, "message"))
            case "result":
                self._result(event)

    def _said(self, event: Event) -> None:
        piece = text_at(event, "content")
        if event.get("delta") is True and not self._called:
            self.text += piece
        else:
            self.text = piece
        self._called = False
        self.say(piece)

    def _call(self, event: Event) -> None:
        self.said()
        self._called = True
        self._calls[text_at(event, "tool_id")] = event
        self.progress(tool_line(text_at(event, "tool_name"), event.get("parameters")))

    def _result_of_call(self, event: Event) -> None:
        call = self._calls.pop(text_at(event, "tool_id"), {})
        refused = text_at(event, "error", "type") in _REFUSALS or text_at(event, "output").startswith(_OUTSIDE)
        if refused:
            self.deny(tool_line(text_at(call, "tool_name"), call.get("parameters")))
        elif event.get("status") == "success" and text_at(call, "tool_name") in _WRITERS:
            self.wrote(text_at(call, "parameters", "file_path"))

    def _result(self, event: Event) -> None:
        self.said()
        self.finished = True
        if self._called:
            self.text = ""  # what it said before its last tools is no answer
        counts = at(event, "stats")
        if isinstance(counts, dict):
            total, fresh = count_at(counts, "total_tokens"), count_at(counts, "input_tokens")
            self.usage = Usage(
                input_tokens=fresh,
                output_tokens=max(count_at(counts, "output_tokens"), total - fresh),  # with its thoughts
                cache_read_tokens=min(count_at(counts, "cached"), fresh),
            )
        self._find_model(event)
        if event.get("status") != "success":
            said = text_at(event, "error", "message")
            self.error = self._api_error(said) if said else self.error or ProgramError(message="ended with an error")

    def _find_model(self, event: Event) -> None:
        """Take the model that answered most."""
        models = at(event, "stats", "models")
        if isinstance(models, dict) and models:
            self.model = max(models, key=lambda name: count_at(models, name, "total_tokens"))

    def _api_error(self, said: str) -> ProgramError:
        whole = re.search(r"\[API Error: (.*?)\](?:\n|$)", said, re.DOTALL)
        inner = json_object(whole[1]) if whole else None
        if inner is None:
            message = whole[1] if whole else said
            return ProgramError(message=message, kind="cut" if message == _CUT else None)
        status, until = number_at(inner, "error", "code"), None
        for detail in objects_at(inner, "error", "details"):
            if wait := re.fullmatch(r"(\d{1,7})(?:\.\d+)?s", text_at(detail, "retryDelay")):
                until = self._now() + timedelta(seconds=int(wait[1]))
        message = text_at(inner, "error", "message") or said
        return ProgramError(message=message, status=None if status is None else int(status), until=until)

    def read_stderr(self, code: int, stderr: str) -> None:
        """Find the status of a failed request, which the events name only sometimes."""
        if self.error is None or self.error.status is not None or code == 0:
            return
        wait = re.search(r"\bretryDelayMs: (\d{1,10})\b", stderr)
        found = re.findall(r"\bstatus: (\d{3})\b", stderr)
        status = int(found[-1]) if found else code + 256  # it exits with the status, of which a byte is left
        if 400 <= status < 600:
            self.error = replace(self.error, status=status)
        if wait:
            self.error = replace(self.error, until=self._now() + timedelta(milliseconds=int(wait[1])))


GEMINI = Gemini()
