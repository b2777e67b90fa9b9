"""Amp, `amp --execute`: https://ampcode.com/manual. Written from its documentation and its help.

It reaches models through Amp's service only, with a key of its own, so no gateway counts its tokens. Its threads are
kept by that service.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from farro.agents.programs.port import SESSION, Dialect, NewSession, ProgramLaunch, ProgramRun, Reader
from farro.agents.programs.services import missing_own_key
from farro.agents.programs.stream_json import StreamJsonReader

_KEY = "AMP_API_KEY"
_SETTINGS = ".config/amp/settings.json"
_WRITERS = ("create_file", "edit_file")


class Amp:
    """Amp (port: AgentProgram)."""

    name = "amp"
    command: tuple[str, ...] = ("amp",)
    dialects: tuple[Dialect, ...] = ()
    new_session: NewSession = "reported"
    by_hand: tuple[str, ...] = ("threads", "continue", SESSION)

    def launch(self, run: ProgramRun) -> ProgramLaunch:
        if run.gateway is not None or _KEY not in run.variables:
            raise missing_own_key(self.name, "Amp", _KEY)
        args = ["--execute", "--stream-json", "--no-archive-after-execute", "--no-notifications", "--no-ide"]
        if run.model is not None:
            args += ["--mode", run.model]
        if run.resume and run.session_id is not None:
            args = ["threads", "continue", run.session_id, *args]
        settings: dict[str, object] = {
            # No person is there to ask, and farro's sandbox limits what it may write.
            "amp.permissions": [{"tool": "*", "action": "allow"}],
            "amp.updates.mode": "disabled",
        }
        if run.read_only:
            settings["amp.tools.disable"] = [f"builtin:{name}" for name in _WRITERS]
        return ProgramLaunch(args=tuple(args), files={_SETTINGS: json.dumps(settings).encode()})

    def reader(self, run: ProgramRun, on_progress: Callable[[str], None]) -> Reader:
        return StreamJsonReader(on_progress, resumed=run.resume)

    def resumable(self, home: str, session_id: str, cwd: str) -> bool:
        return session_id.startswith("T-")

    def read_paths(self, executable: str) -> tuple[str, ...]:
        return ()


AMP = Amp()
