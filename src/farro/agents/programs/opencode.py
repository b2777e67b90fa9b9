"""opencode, `opencode run`: https://opencode.ai/docs/cli. Tried with 1.18.33."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal

from farro.agents.programs.outcomes import ProgramError
from farro.agents.programs.output import Event, at, count_at, number_at, text_at, tool_line
from farro.agents.programs.output_reader import EventReader, local_now
from farro.agents.programs.port import SESSION, Dialect, NewSession, ProgramLaunch, ProgramRun, Reader
from farro.agents.programs.services import refuse_login, service_model
from farro.agents.programs.session_files import file_mentions
from farro.agents.providers.port import Usage
from farro.roles import money

_SETTINGS = ".config/opencode/opencode.json"
_TOKEN = "MODEL_TOKEN"  # noqa: S105 - the name of the variable that holds the gateway's token
_WRITERS = ("edit", "multiedit", "patch", "write")
_DATABASE = (".local/share/opencode/opencode.db", ".local/share/opencode/opencode.db-wal")
# By service: its name in opencode, the library that speaks with it, the path of its API.
_SERVICES = {
    "anthropic": ("anthropic", "@ai-sdk/anthropic", "/v1"),
    "openai": ("openai", "@ai-sdk/openai", "/v1"),
    "google": ("google", "@ai-sdk/google", "/v1beta"),
    "other": ("farro", "@ai-sdk/openai-compatible", "/v1"),
}


class Opencode:
    """opencode (port: AgentProgram)."""

    name = "opencode"
    command: tuple[str, ...] = ("opencode",)
    dialects: tuple[Dialect, ...] = ("chat", "anthropic", "responses", "gemini")
    new_session: NewSession = "reported"
    by_hand: tuple[str, ...] = ("--session", SESSION)

    def launch(self, run: ProgramRun) -> ProgramLaunch:
        if run.login:
            raise refuse_login(self.name)
        args = ["run", "--format", "json", "--title", "farro"]  # a title of its own takes another request
        settings: dict[str, object] = {
            "autoupdate": False,
            "share": "disabled",
            # No person is there to ask, and farro's sandbox limits what it may write.
            "permission": {"*": "allow", **(dict.fromkeys(_WRITERS, "deny") if run.read_only else {})},
            "snapshot": False,
        }
        env = {
            "OPENCODE_DISABLE_AUTOUPDATE": "true",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "true",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "true",
            "OPENCODE_DISABLE_MODELS_FETCH": "true",
            "OPENCODE_DISABLE_PROJECT_CONFIG": "true",  # also AGENTS.md, which is in the prompt
        }
        if run.gateway is not None:
            model = service_model(self.name, run.model)
            service, library, path = _SERVICES[model.service]
            options = {"baseURL": f"{run.gateway.base_url}{path}", "apiKey": f"{{env:{_TOKEN}}}"}
            described = {"npm": library, "options": options, "models": {model.name: {}}}
            settings |= {"provider": {service: described}, "enabled_providers": [service]}
            args += ["--model", f"{service}/{model.name}"]
            env[_TOKEN] = run.gateway.token
        elif run.model is not None:
            args += ["--model", run.model]
        if run.resume and run.session_id is not None:
            args += ["--session", run.session_id]
        return ProgramLaunch(args=tuple(args), env=env, files={_SETTINGS: json.dumps(settings).encode()})

    def reader(self, run: ProgramRun, on_progress: Callable[[str], None]) -> Reader:
        return OpencodeReader(on_progress)

    def resumable(self, home: str, session_id: str, cwd: str) -> bool:
        return any(file_mentions(f"{home}/{name}", session_id) for name in _DATABASE)

    def read_paths(self, executable: str) -> tuple[str, ...]:
        return ()


class OpencodeReader(EventReader):
    """Reads one run."""

    def __init__(self, on_progress: Callable[[str], None], now: Callable[[], datetime] = local_now) -> None:
        super().__init__(on_progress, now)
        self._step_text = ""  # of the current step; the last step's is the answer

    def take(self, event: Event) -> None:
        self.note_session(text_at(event, "sessionID"))
        match event.get("type"):
            case "step_start":
                self._step_text = ""
                self.finished = False
            case "text":
                self._step_text += text_at(event, "part", "text")
                self.progress(text_at(event, "part", "text"))
            case "tool_use":
                self._call(event)
            case "step_finish":
                self._finish(event)
            case "error":
                self._fail(event)

    def _call(self, event: Event) -> None:
        name, state = text_at(event, "part", "tool"), at(event, "part", "state")
        line = tool_line(name, at(state, "input"))
        self.progress(line)
        if text_at(state, "status") == "completed" and name in _WRITERS:
            self.wrote(text_at(state, "input", "filePath"))
        elif "rejected permission" in text_at(state, "error") or "rule which prevents" in text_at(state, "error"):
            self.deny(line)

    def _finish(self, event: Event) -> None:
        self.text = self._step_text
        # A step that ended otherwise is followed by another one, or the stream was cut.
        self.finished = text_at(event, "part", "reason") in ("stop", "length", "content-filter")
        tokens = at(event, "part", "tokens")
        if isinstance(tokens, dict):
            read, written = count_at(tokens, "cache", "read"), count_at(tokens, "cache", "write")
            prompt = count_at(tokens, "input") + read + written
            self.add_usage(
                Usage(
                    input_tokens=prompt,
                    output_tokens=max(count_at(tokens, "output"), count_at(tokens, "total") - prompt),  # with thoughts
                    cache_read_tokens=read,
                    cache_write_tokens=written,
                )
            )
        cost = money.reported_cost(at(event, "part", "cost"))
        if cost:  # 0: it knows no price of this model
            self.cost_usd = (self.cost_usd or Decimal(0)) + cost

    def _fail(self, event: Event) -> None:
        data = at(event, "error", "data")
        message = text_at(data, "message") or text_at(event, "error", "name") or "ended with an error"
        status = number_at(data, "statusCode")
        wait = text_at(data, "responseHeaders", "retry-after")
        self.progress(message)
        self.error = ProgramError(
            message=message,
            status=None if status is None else int(status),
            until=self._now() + timedelta(seconds=int(wait)) if wait.isdecimal() and len(wait) < 8 else None,
        )


OPENCODE = Opencode()
