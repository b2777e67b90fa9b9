"""Codex, `codex exec`: https://developers.openai.com/codex/noninteractive. Tried with 0.169.0."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime

from farro.agents.programs.outcomes import ProgramError
from farro.agents.programs.output import Event, at, count_at, json_object, objects_at, text_at, tool_line
from farro.agents.programs.output_reader import EventReader, local_now
from farro.agents.programs.port import SESSION, Dialect, GatewayAddress, NewSession, ProgramLaunch, ProgramRun, Reader
from farro.agents.programs.services import missing_key
from farro.agents.programs.session_files import session_file
from farro.agents.providers.port import Usage
from farro.host import fs
from farro.lazy_dataclass import replace
from farro.store.ledger import NO_TOKENS

_TOKEN = "MODEL_TOKEN"  # noqa: S105 - the name of the variable that holds the gateway's token
_LOGIN = ".codex/auth.json"
_OPENAI = "https://api.openai.com/v1"
_KEYS = ("CODEX_API_KEY", "OPENAI_API_KEY")
_ROLLOUT = 64 << 20  # bytes of a session's file that are read


class Codex:
    """Codex (port: AgentProgram)."""

    name = "codex"
    command: tuple[str, ...] = ("codex",)
    dialects: tuple[Dialect, ...] = ("responses",)
    new_session: NewSession = "reported"

    def __init__(self) -> None:
        # Codex resumes a session only where the service under whose name it began is configured.
        service = _options(_service(_OPENAI, env_key="OPENAI_API_KEY"))
        self.by_hand: tuple[str, ...] = ("resume", *service, SESSION)

    def launch(self, run: ProgramRun) -> ProgramLaunch:
        args = ["exec"]
        if run.resume and run.session_id is not None:
            args += ["resume", run.session_id]
        args += ["--json", "--skip-git-repo-check"]
        if run.model is not None:
            args += ["--model", run.model]
        settings: dict[str, object] = {
            "sandbox_mode": "danger-full-access",  # its own sandbox cannot be set up inside farro's
            "approval_policy": "never",
            "project_doc_max_bytes": 0,  # AGENTS.md is in the prompt
            "check_for_update_on_startup": False,
            "analytics.enabled": False,
            "features.apps": False,
            "features.plugins": False,  # else it asks GitHub for a catalog of plugins, each time
            "features.unbounded_connection_retries": False,
        }
        env: dict[str, str] = {}
        files: dict[str, bytes] = {}
        if run.gateway is None:
            settings |= _without_gateway(run.variables)
        elif run.login:
            settings |= _service(f"{run.gateway.base_url}/backend-api/codex", requires_openai_auth=True)
            settings["chatgpt_base_url"] = f"{run.gateway.base_url}/backend-api"
            files[_LOGIN] = _dummy_login(run.gateway)
        else:
            settings |= _service(f"{run.gateway.base_url}/v1", env_key=_TOKEN)
            env[_TOKEN] = run.gateway.token
        return ProgramLaunch(args=(*args, *_options(settings), "-"), env=env, files=files)

    def reader(self, run: ProgramRun, on_progress: Callable[[str], None]) -> Reader:
        resumed = run.session_id if run.resume else None
        return CodexReader(on_progress, home=run.home, resumed=resumed)

    def resumable(self, home: str, session_id: str, cwd: str) -> bool:
        return _rollout(home, session_id) is not None

    def read_paths(self, executable: str) -> tuple[str, ...]:
        return ("/etc/codex",)


def _service(base_url: str, **more: object) -> dict[str, object]:
    """Return the settings of the only service that it uses."""
    service = {"name": "farro", "base_url": base_url, "wire_api": "responses"}
    retries = {"request_max_retries": 0, "stream_max_retries": 0}
    return {"model_provider": "farro", "model_providers.farro": {**service, **retries, **more}}


def _without_gateway(variables: frozenset[str]) -> Mapping[str, object]:
    """Return the settings for a key of its own. By itself it reads CODEX_API_KEY only."""
    for name in _KEYS:
        if name in variables:
            return _service(_OPENAI, env_key=name)
    if "CODEX_HOME" in variables:  # with a login, or a service, of its own
        return {}
    raise missing_key("codex", "OPENAI_API_KEY")


def _options(settings: Mapping[str, object]) -> list[str]:
    return [word for name, value in settings.items() for word in ("-c", f"{name}={_toml(value)}")]


def _toml(value: object) -> str:
    """Write a setting as TOML. Texts of JSON are texts of TOML, too."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}={_toml(member)}" for name, member in value.items()) + "}"
    return json.dumps(value)


def _dummy_login(gateway: GatewayAddress) -> bytes:
    """Return a login that never expires and that only the gateway accepts."""
    claims = {"https://api.openai.com/auth": {"chatgpt_plan_type": "pro", "chatgpt_account_id": "farro"}}
    token = ".".join((_encoded({"alg": "none"}), _encoded({"email": "farro@localhost", **claims}), "none"))
    login = {"id_token": token, "access_token": gateway.token, "refresh_token": "none", "account_id": "farro"}
    return json.dumps({"auth_mode": "chatgpt", "tokens": login, "last_refresh": "2099-01-01T00:00:00Z"}).encode()


def _encoded(data: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")


# --- what it writes ---


class CodexReader(EventReader):
    """Reads one run. Codex counts the tokens of a session over all its runs."""

    def __init__(
        self,
        on_progress: Callable[[str], None],
        *,
        home: str,
        resumed: str | None = None,
        now: Callable[[], datetime] = local_now,
    ) -> None:
        super().__init__(on_progress, now)
        self._home = home
        self._before = NO_TOKENS if resumed is None else _tokens_so_far(home, resumed)  # None: unknown

    def take(self, event: Event) -> None:
        match event.get("type"):
            case "thread.started":
                self.note_session(text_at(event, "thread_id"))
                self.progress("started")
            case "item.started":
                self._item(event, begins=True)
            case "item.completed":
                self._item(event, begins=False)
            case "turn.completed":
                self.finished = True
                self.error = None
                self._count(_usage(event.get("usage")))
            case "error":
                self.progress(text_at(event, "message"))
            case "turn.failed":
                self.error = _error(text_at(event, "error", "message"))

    def _item(self, event: Event, *, begins: bool) -> None:
        match text_at(event, "item", "type"):
            case "agent_message" if not begins:
                self.text = text_at(event, "item", "text")
                self.progress(self.text)
            case "command_execution" if begins:
                self.progress(tool_line("$", event.get("item")))
            case "file_change" if not begins:
                for change in objects_at(event, "item", "changes"):
                    path = text_at(change, "path")
                    self.progress(f"{text_at(change, 'kind') or 'change'} {path}")
                    if text_at(event, "item", "status") != "failed":
                        self.wrote(path)
            case "mcp_tool_call" | "web_search" if begins:
                self.progress(tool_line(text_at(event, "item", "tool") or "search", event.get("item")))
            case "error" if not begins:  # a warning: the run goes on
                self.progress(text_at(event, "item", "message"))

    def _count(self, total: Usage) -> None:
        before = self._before
        if before is None:
            return
        self.usage = Usage(
            input_tokens=max(total.input_tokens - before.input_tokens, 0),
            output_tokens=max(total.output_tokens - before.output_tokens, 0),
            cache_read_tokens=max(total.cache_read_tokens - before.cache_read_tokens, 0),
            cache_write_tokens=max(total.cache_write_tokens - before.cache_write_tokens, 0),
        )

    def read_stderr(self, code: int, stderr: str) -> None:
        if self.error is None and not self.finished and (said := re.search(r"^Error: (.+)$", stderr, re.MULTILINE)):
            self.error = _error(said[1])
        if self.usage is None and self.session_id is not None:  # a turn that failed reports none
            total = _tokens_so_far(self._home, self.session_id)
            if total is not None:
                self._count(total)


def _error(message: str) -> ProgramError:
    inner = json_object(message)  # the body of a bad request, as it came
    if inner is not None:
        return ProgramError(message=text_at(inner, "error", "message") or message, status=400)
    status = re.search(r"\bstatus:? (\d{3})\b", message)
    error = ProgramError(message=message or "its turn failed", status=None if status is None else int(status[1]))
    return replace(error, kind="refused") if message.startswith("Quota exceeded") else error


def _rollout(home: str, session_id: str) -> str | None:
    """Return the file of a session."""
    return session_file(home, ".codex", "sessions", "*", "*", "*", f"rollout-*-{session_id}.jsonl")


def _tokens_so_far(home: str, session_id: str) -> Usage | None:
    """Return the tokens of a session up to now; None if it cannot be read."""
    try:
        lines = fs.read_bytes(_rollout(home, session_id) or "", _ROLLOUT).splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if b'"total_token_usage"' in line:
            total = at(json_object(line), "payload", "info", "total_token_usage")
            if isinstance(total, dict):
                return _usage(total)
    return NO_TOKENS


def _usage(counts: object) -> Usage:
    return Usage(
        input_tokens=count_at(counts, "input_tokens"),
        output_tokens=count_at(counts, "output_tokens"),
        cache_read_tokens=count_at(counts, "cached_input_tokens"),
        cache_write_tokens=count_at(counts, "cache_write_input_tokens"),
    )


CODEX = Codex()
