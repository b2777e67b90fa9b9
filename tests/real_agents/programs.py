"""Run the real coding agents as farro starts them, unconfined, against the scripted model server."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from farro.agents.programs.port import AgentProgram, GatewayAddress, ProgramRun, ReaderReport
from farro.agents.programs.registry import find_program
from model_server.server import ModelServer, ServedRequest
from support import PATIENCE_S, ROOT, need

USUAL = Path(ROOT, ".build", "agents", "node_modules", ".bin")
MORE = Path(ROOT, ".build", "agents-more", "node_modules", ".bin")
_ELSEWHERE = {
    "goose": MORE / "goose-binary-linux-x64",
    "aider": Path(ROOT, ".build", "agents-more", "aider", "bin", "aider"),
}
MODELS = {"opencode": "other/lab", "goose": "other/lab", "aider": "other/lab"}
TOKEN = "job-token-1"


def executable(name: str) -> str:
    """Return the installed program; skip the test if it is missing."""
    places = (USUAL / name, _ELSEWHERE.get(name, MORE / name))
    found = next((str(place) for place in places if place.exists()), None)
    need(found is not None, f"{name}, which scripts/agents.sh installs; {MORE.parent.parent.name} needs `more`")
    assert found is not None
    return found


@dataclass(kw_only=True)
class EndedRun:
    """What became of one run of a program."""

    code: int
    stdout: bytes
    stderr: str
    report: ReaderReport
    progress: Sequence[str]
    requests: Sequence[ServedRequest]  # to models, of this run


@dataclass(kw_only=True)
class Workplace:
    """A repository and the private home of a session."""

    folder: Path
    server: ModelServer
    token: str = TOKEN
    env: Mapping[str, str] = field(default_factory=dict)  # variables beside those of the launch

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()
        self.repository, self.home = self.folder / "repository", self.folder / "home"
        for made in (self.repository / "src", self.home, self.folder / "tmp"):
            made.mkdir(parents=True, exist_ok=True)
        (self.repository / "AGENTS.md").write_text("# Policy\n\nPOLICY-OF-THE-ROOT\n")
        (self.repository / "src" / "greeting.txt").write_text("hand it over\n")
        author = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        for words in (["init", "-q"], ["add", "-A"], [*author, "commit", "-qm", "first"]):
            subprocess.run(["git", *words], cwd=self.repository, check=True)

    def run_of(self, **changes: object) -> ProgramRun:
        run = ProgramRun(
            home=str(self.home),
            cwd=str(self.repository),
            prompt_file=str(self.folder / "prompt.txt"),
            gateway=GatewayAddress(base_url=self.server.base_url, token=self.token),
        )
        return replace(run, **changes)

    def run(self, name: str, prompt: str, *, until: Callable[[], object] | None = None, **changes: object) -> EndedRun:
        """Run a program with a prompt to its end. `until`: it is killed when this returns."""
        program = find_program(name)
        run = self.run_of(**{"model": MODELS.get(name), **changes})
        process, reader, progress = self._start(program, run, prompt)
        before = len(self.server.model_requests)
        output = bytearray()

        def read() -> None:
            assert process.stdout is not None
            while piece := process.stdout.read1(1 << 16):
                output.extend(piece)
                reader.feed(piece)

        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        try:
            if until is not None:
                until()
            else:
                process.wait(PATIENCE_S)
        finally:
            end_group(process)
        reading.join(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()
        stderr = (self.folder / "stderr").read_text(errors="replace")
        return EndedRun(
            code=process.returncode,
            stdout=bytes(output),
            stderr=stderr,
            report=reader.end(process.returncode, stderr[-8000:]),
            progress=progress,
            requests=self.server.model_requests[before:],
        )

    def _start(self, program: AgentProgram, run: ProgramRun, prompt: str):  # type: ignore[no-untyped-def]
        launch = program.launch(run)
        for path, content in launch.files.items():
            (self.home / path).parent.mkdir(parents=True, exist_ok=True)
            (self.home / path).write_bytes(content)
        Path(run.prompt_file).write_text(prompt)
        path = os.pathsep.join((str(Path(shutil.which("node") or "/usr/bin/node").parent), "/usr/bin", "/bin"))
        env = {"PATH": path, "HOME": run.home, "TMPDIR": str(self.folder / "tmp"), "LANG": "C.UTF-8"}
        progress: list[str] = []
        reader = program.reader(run, progress.append)
        with open(run.prompt_file, "rb") as stdin, open(self.folder / "stderr", "wb") as stderr:
            process = subprocess.Popen(
                [executable(program.name), *launch.args],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=run.cwd,
                env={**env, **launch.env, **self.env},
                start_new_session=True,
            )
        return process, reader, progress


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the program and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE_S)
