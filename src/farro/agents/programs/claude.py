"""Claude Code, `claude`: https://docs.claude.com/en/docs/claude-code/headless. Tried with 2.1.327."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from farro.agents.programs.port import SESSION, Dialect, NewSession, ProgramLaunch, ProgramRun, Reader
from farro.agents.programs.services import missing_key
from farro.agents.programs.session_files import session_file
from farro.agents.programs.stream_json import StreamJsonReader

_SETTINGS = ".claude/farro.json"
_ALLOWED = "Read,Glob,Grep,Bash"
_OWN = ("ANTHROPIC_", "AWS_", "CLAUDE_", "CLOUD_ML_")  # variables with a key, a login or another service
_WRITERS = "Edit,Write,NotebookEdit"


class Claude:
    """Claude Code (port: AgentProgram)."""

    name = "claude"
    command: tuple[str, ...] = ("claude",)
    dialects: tuple[Dialect, ...] = ("anthropic",)
    new_session: NewSession = "chosen"
    by_hand: tuple[str, ...] = ("--resume", SESSION)

    def launch(self, run: ProgramRun) -> ProgramLaunch:
        args = ["-p", "--output-format", "stream-json", "--verbose", "--settings", f"{run.home}/{_SETTINGS}"]
        # It may edit its workspace and use these tools. Anything else is refused: no person is there to ask.
        args += ["--allowedTools", _ALLOWED, "--permission-mode", "default" if run.read_only else "acceptEdits"]
        if run.read_only:
            args += ["--disallowedTools", _WRITERS]
        if run.model is not None:
            args += ["--model", run.model]
        if run.session_id is not None:
            args += ["--resume" if run.resume else "--session-id", run.session_id]
        if run.max_usd is not None:
            args += ["--max-budget-usd", f"{run.max_usd:f}"]
        env = {
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",  # updates, telemetry, reports of errors
            "CLAUDE_CODE_MAX_RETRIES": "0",
        }
        if run.gateway is None and not any(name.startswith(_OWN) for name in run.variables):
            raise missing_key(self.name, "ANTHROPIC_API_KEY")
        if run.gateway is not None:
            env["ANTHROPIC_BASE_URL"] = run.gateway.base_url
            env["CLAUDE_CODE_OAUTH_TOKEN" if run.login else "ANTHROPIC_API_KEY"] = run.gateway.token
        return ProgramLaunch(args=tuple(args), env=env, files={_SETTINGS: _settings(run.cwd)})

    def reader(self, run: ProgramRun, on_progress: Callable[[str], None]) -> Reader:
        return StreamJsonReader(on_progress, resumed=run.resume)

    def resumable(self, home: str, session_id: str, cwd: str) -> bool:
        # A run that is killed in its first half second leaves none: then a new session begins.
        return session_file(home, ".claude", "projects", "*", f"{session_id}.jsonl") is not None

    def read_paths(self, executable: str) -> tuple[str, ...]:
        return ("/etc/claude-code",)


def _settings(cwd: str) -> bytes:
    """Return settings that leave out AGENTS.md, which is in the prompt, and the memories of the folders above."""
    left_out, folder = [f"{cwd}/AGENTS.md"], os.path.dirname(cwd)
    while folder != os.path.dirname(folder):
        left_out += [f"{folder}/{name}" for name in ("AGENTS.md", "CLAUDE.md", "CLAUDE.local.md", ".claude/**")]
        folder = os.path.dirname(folder)
    return json.dumps({"claudeMdExcludes": left_out}).encode()


CLAUDE = Claude()
