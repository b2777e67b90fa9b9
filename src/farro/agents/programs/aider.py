"""aider: https://aider.chat/docs/scripting.html. Tried with 0.86.2."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal

from farro.agents.programs.outcomes import ProgramError
from farro.agents.programs.output_reader import OutputReader, local_now
from farro.agents.programs.port import Dialect, NewSession, ProgramLaunch, ProgramRun, Reader
from farro.agents.programs.services import Service, refuse_login, service_model
from farro.agents.providers.port import TroubleKind, Usage
from farro.roles import money

# By service: its name in aider, the variables with its address and its key, the path of its API.
_SERVICES: dict[Service, tuple[str, str, str, str]] = {
    "anthropic": ("anthropic", "ANTHROPIC_API_BASE", "ANTHROPIC_API_KEY", ""),
    "openai": ("openai", "OPENAI_API_BASE", "OPENAI_API_KEY", "/v1"),
    "google": ("gemini", "GEMINI_API_BASE", "GEMINI_API_KEY", ""),
    "other": ("openai", "OPENAI_API_BASE", "OPENAI_API_KEY", "/v1"),
}
# Without a user it would write one into the repository's config.
_FILES = {".gitconfig": b"[user]\n\tname = aider\n\temail = aider@localhost\n"}
_FLAGS = (
    "--yes-always",  # no person is there to ask, and farro's sandbox limits what it may write
    "--no-auto-commits",
    "--no-dirty-commits",
    "--no-gitignore",
    "--no-check-update",
    "--no-analytics",
    "--no-detect-urls",
    "--no-suggest-shell-commands",
    "--no-show-model-warnings",
    "--no-show-release-notes",
    "--no-fancy-input",
    "--no-pretty",
    "--stream",  # else it reformats what the model says
)


class Aider:
    """aider (port: AgentProgram). It reads no AGENTS.md, and begins anew each time."""

    name = "aider"
    command: tuple[str, ...] = ("aider",)
    dialects: tuple[Dialect, ...] = ("chat", "anthropic", "gemini")
    new_session: NewSession = "none"
    by_hand: tuple[str, ...] = ()

    def launch(self, run: ProgramRun) -> ProgramLaunch:
        if run.login:
            raise refuse_login(self.name)
        model = service_model(self.name, run.model)
        service, address, key, path = _SERVICES[model.service]
        args = ["--message-file", run.prompt_file, "--model", f"{service}/{model.name}", *_FLAGS]
        for kind in ("chat", "input", "llm"):
            args += [f"--{kind}-history-file", f"{run.home}/.aider.{kind}.history"]
        if run.read_only:
            args += ["--chat-mode", "ask"]
        env = {"COLUMNS": "10000"}  # it breaks the lines of errors
        if run.gateway is not None:
            env |= {address: run.gateway.base_url + path, key: run.gateway.token}
        return ProgramLaunch(args=tuple(args), env=env, files=_FILES)

    def reader(self, run: ProgramRun, on_progress: Callable[[str], None]) -> Reader:
        return AiderReader(on_progress)

    def resumable(self, home: str, session_id: str, cwd: str) -> bool:
        return False

    def read_paths(self, executable: str) -> tuple[str, ...]:
        return ()


_TOKENS = re.compile(r"Tokens: ([\d.]+[kM]?) sent,(?: ([\d.]+[kM]?) cache write,)?(?: ([\d.]+[kM]?) cache hit,)? ")
_RECEIVED = re.compile(r"([\d.]+[kM]?) received\.")
_COST = re.compile(r"Cost: \$([\d.]+) message")
_APPLIED = re.compile(r"Applied edit to (.+)")
_ERROR = re.compile(r"litellm\.(\w+): (.*)")
_KINDS: dict[str, TroubleKind] = {
    "APIError": "overloaded",
    "AuthenticationError": "refused",
    "InternalServerError": "overloaded",
    "PermissionDeniedError": "refused",
    "RateLimitError": "limited",
    "ServiceUnavailableError": "overloaded",
    "Timeout": "timed_out",
}


class AiderReader(OutputReader):
    """Reads one run. aider writes text for people, and exits with 0 whatever happened."""

    def __init__(self, on_progress: Callable[[str], None], now: Callable[[], datetime] = local_now) -> None:
        super().__init__(on_progress, now)
        self._begun: bool | None = False  # None: in the banner, which ends with an empty line
        self._said: list[str] = []  # lines of the message that comes

    def take_line(self, line: str) -> None:
        if self._begun is False:
            self._begun = None if line.startswith("Aider v") else False
        elif self._begun is None:
            self._begun = True if not line.strip() else None
        elif found := _TOKENS.match(line):
            self._end_message(line, found)
        elif found := _APPLIED.match(line):
            self.wrote(found[1].strip())
            self.progress(line)
        elif found := _ERROR.match(line):
            message = found[2].rpartition("Exception - ")[2] or found[2]
            self.error = ProgramError(message=message, kind=_KINDS.get(found[1]))
            self.progress(line)
        elif line.startswith("Empty response received"):
            self.progress(line)
        else:
            self._said.append(line)
            self.progress(line)

    def _end_message(self, line: str, found: re.Match[str]) -> None:
        self.text, self._said = "\n".join(self._said).strip(), []
        self.finished, self.error = True, None
        received, cost = _RECEIVED.search(line), _COST.search(line)
        sent, written, read = (_count(found[group]) for group in (1, 2, 3))
        output = _count(received[1] if received else None)
        self.add_usage(
            Usage(input_tokens=sent, output_tokens=output, cache_read_tokens=read, cache_write_tokens=written)
        )
        if cost and (amount := money.reported_cost(cost[1])) is not None:
            self.cost_usd = (self.cost_usd or Decimal(0)) + amount


def _count(text: str | None) -> int:
    """Read a rounded count such as 1.2k."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([kM]?)", text or "")
    return round(float(found[1]) * {"": 1, "k": 1000, "M": 1_000_000}[found[2]]) if found else 0


AIDER = Aider()
