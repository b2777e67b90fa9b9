"""The recorded output of real programs, and the readers that read it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from farro.agents.programs.port import AgentProgram, GatewayAddress, ProgramRun, ReaderReport
from farro.agents.programs.registry import find_program
from farro.lazy_dataclass import replace

FOLDER = Path(__file__).parent / "transcripts"
RUN = ProgramRun(
    home="/srv/job/home",
    cwd="/srv/job/repository",
    prompt_file="/srv/job/prompt.txt",
    gateway=GatewayAddress(base_url="http://127.0.0.1:8555", token="job-token-1"),
)


@dataclass(frozen=True, kw_only=True)
class Transcript:
    program: str
    scenario: str
    stdout: bytes
    stderr: str
    code: int
    at: datetime  # when it was recorded, in the time zone of the recording

    def __str__(self) -> str:
        return f"{self.program} {self.scenario}"

    @property
    def run(self) -> ProgramRun:
        resumed = self.scenario == "resumed"
        return replace(RUN, resume=resumed, session_id="5f0c3d0e-6f6a-4a57-9d0e-2b6d3a1c7e11" if resumed else None)

    def read(self, *, piece: int = 1 << 16) -> tuple[ReaderReport, list[str]]:
        """Return what the program's reader makes of it, fed in pieces of that size, and its progress."""
        progress: list[str] = []
        reader = reader_at(find_program(self.program), self.run, progress, self.at)
        for start in range(0, len(self.stdout), piece):
            reader.feed(self.stdout[start : start + piece])
        return reader.end(self.code, self.stderr[-2000:]), progress


def reader_at(program: AgentProgram, run: ProgramRun, progress: list[str], at: datetime) -> Any:
    """Return a reader whose clock stands still."""
    reader: Any = program.reader(run, progress.append)
    reader._now = lambda: at
    return reader


def transcripts() -> list[Transcript]:
    found = []
    for ends in sorted(FOLDER.glob("*/ends.json")):
        described = json.loads(ends.read_text())
        for scenario, end in described["ends"].items():
            found.append(
                Transcript(
                    program=ends.parent.name,
                    scenario=scenario,
                    stdout=(ends.parent / f"{scenario}.txt").read_bytes(),
                    stderr=end["stderr"],
                    code=end["code"],
                    at=datetime.fromisoformat(described["at"]),
                )
            )
    return found


def described(report: ReaderReport, progress: list[str]) -> dict[str, Any]:
    """Return a report as JSON."""
    trouble = report.trouble
    return {
        "text": report.text,
        "session_id": report.session_id,
        "model": report.model,
        "usage": None if report.usage is None else report.usage.to_json(),
        "cost_usd": None if report.cost_usd is None else str(report.cost_usd),
        "denied": list(report.denied),
        "files": list(report.files),
        "trouble": trouble
        and {
            "kind": trouble.kind,
            "retryable": trouble.retryable,
            "until": trouble.until and trouble.until.isoformat(),
            "message": str(trouble),
        },
        "progress": progress,
    }
