"""Record what the real coding agents write, for tests/agents/programs: PYTHONPATH=tests python -m real_agents.record.

Names of programs as arguments record only those. Paths and ports of this machine are replaced.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from model_server.server import ModelServer
from real_agents.programs import EndedRun, Workplace, executable
from support import ROOT

TRANSCRIPTS = Path(ROOT, "tests", "agents", "programs", "transcripts")
SESSION = "5f0c3d0e-6f6a-4a57-9d0e-2b6d3a1c7e11"
CHOSEN = ("claude", "gemini", "goose")
SCENARIOS = (
    *("edit", "several-turns", "denied", "usage-limit", "usage-limit-later", "rate-limit", "no-credit", "server-error"),
    *("overloaded", "bad-key", "cut", "ends-early", "empty", "prose", "half-edit", "resumed", "read-only"),
)
LOGINS = ("claude", "codex")  # and what a subscription's limit looks like
# These try a failed request for a minute or for ever.
_FAILED = ("usage-limit", "usage-limit-later", "rate-limit", "no-credit", "server-error", "overloaded")
LEFT_OUT = {
    "gemini": ("server-error", "overloaded"),
    "opencode": (*_FAILED, "cut", "ends-early"),
    "aider": (*_FAILED, "cut", "ends-early", "denied", "several-turns", "half-edit", "resumed"),
}


def main() -> None:
    for name in sys.argv[1:] or ("claude", "codex", "gemini", "opencode", "goose", "aider"):
        folder = TRANSCRIPTS / name
        folder.mkdir(parents=True, exist_ok=True)
        ends: dict[str, Any] = {}
        logins = ["usage-limit-login"] if name in LOGINS else []
        for scenario in [*SCENARIOS, *logins]:
            if scenario not in LEFT_OUT.get(name, ()):
                print(name, scenario, flush=True)
                run, clean = record(name, scenario)
                (folder / f"{scenario}.txt").write_text(clean(run.stdout.decode("utf-8", "replace")))
                ends[scenario] = {"code": run.code, "stderr": clean(run.stderr)[-4000:]}
        version = subprocess.run([executable(name), "--version"], capture_output=True, text=True, check=True).stdout
        described = {"version": version.strip(), "at": datetime.now().astimezone().isoformat(), "ends": ends}
        (folder / "ends.json").write_text(json.dumps(described, indent=1, ensure_ascii=False) + "\n")


def record(name: str, scenario: str) -> tuple[EndedRun, Callable[[str], str]]:
    """Run one scenario; return the run, and what takes this machine's names out of its output."""
    folder = Path(tempfile.mkdtemp())
    with ModelServer(within=[str(folder)]) as server:
        place = Workplace(folder=folder, server=server, token="bad-key" if scenario == "bad-key" else "job-token-1")
        changes: Mapping[str, object] = {"session_id": SESSION} if name in CHOSEN else {}
        if scenario == "half-edit":
            asked = 3 if name == "gemini" else 2  # its first request chooses a model
            run = place.run(name, "SCENARIO: half-edit\n", until=lambda: server.wait_for(asked), **changes)
        elif scenario == "resumed":
            first = place.run(name, "SCENARIO: edit\n", **changes)
            session = first.report.session_id or SESSION
            run = place.run(name, "SCENARIO: prose\n", session_id=session, resume=True)
        elif scenario == "read-only":
            run = place.run(name, "SCENARIO: edit\n", read_only=True, **changes)
        elif scenario.endswith("-login"):
            run = place.run(name, f"SCENARIO: {scenario.removesuffix('-login')}\n", login=True, **changes)
        else:
            run = place.run(name, f"SCENARIO: {'edit' if scenario == 'bad-key' else scenario}\n", **changes)

    def clean(text: str) -> str:
        text = text.replace(str(folder), "/srv/job").replace(str(folder).replace("/", "-"), "-srv-job")
        return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8555", text.replace(f"{ROOT}/.build", "/opt/build"))

    return run, clean


if __name__ == "__main__":
    main()
