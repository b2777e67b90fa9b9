"""Any other agent: it reads the prompt from standard input and writes its answer to standard output.

It finds the gateway by the variables that the libraries of the services read.
"""

from __future__ import annotations

from collections.abc import Callable

from farro.agents.programs.output_reader import OutputReader
from farro.agents.programs.port import Dialect, NewSession, ProgramLaunch, ProgramRun, Reader
from farro.agents.programs.services import refuse_login


class Generic:
    """An agent that farro does not know (port: AgentProgram). The config names its command."""

    name = "generic"
    command: tuple[str, ...] = ()
    dialects: tuple[Dialect, ...] = ("chat", "anthropic", "responses", "gemini")
    new_session: NewSession = "none"
    by_hand: tuple[str, ...] = ()

    def launch(self, run: ProgramRun) -> ProgramLaunch:
        if run.login:
            raise refuse_login("a program that farro does not know")
        if run.gateway is None:
            return ProgramLaunch(args=())
        url, token = run.gateway.base_url, run.gateway.token
        addresses = {
            "ANTHROPIC_BASE_URL": url,
            "GOOGLE_GEMINI_BASE_URL": url,
            "OPENAI_API_BASE": f"{url}/v1",
            "OPENAI_BASE_URL": f"{url}/v1",
        }
        keys = dict.fromkeys(("ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY"), token)
        return ProgramLaunch(args=(), env={**addresses, **keys})

    def reader(self, run: ProgramRun, on_progress: Callable[[str], None]) -> Reader:
        return TextReader(on_progress)

    def resumable(self, home: str, session_id: str, cwd: str) -> bool:
        return False

    def read_paths(self, executable: str) -> tuple[str, ...]:
        return ()


class TextReader(OutputReader):
    """Reads a program whose whole output is the answer."""

    def __init__(self, on_progress: Callable[[str], None]) -> None:
        super().__init__(on_progress)
        self._said: list[str] = []

    def take_line(self, line: str) -> None:
        self._said.append(line)
        self.progress(line)

    def read_stderr(self, code: int, stderr: str) -> None:
        self.text = "\n".join(self._said).strip()
        self.finished = True


GENERIC = Generic()
