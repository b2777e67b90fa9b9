"""The AgentProgram port: a coding agent of somebody else, such as Claude Code or Codex.

A program reads the prompt from standard input and writes events to standard output. Its module says three things:

- `launch`: the arguments, variables and settings files with which it works without a person, keeps its session, sends
  its requests to the gateway, tries a failed request as seldom as it allows, and reports nothing to its maker.
- `reader`: what its output means. The exit code alone is not trusted: programs exit with 0 after a refused request.
- `resumable`: whether a session of an earlier run can go on, judged by the files that the program looks for.

Nothing here starts a process or writes a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Literal, Protocol

from farro.agents.providers.port import ProviderTrouble, Usage
from farro.lazy_dataclass import dataclass, field

Dialect = Literal["anthropic", "responses", "chat", "gemini", "code_assist"]  # the forms of requests to a model
SESSION = "{session}"
NewSession = Literal["chosen", "reported", "none"]  # who names a new session: the caller, the program's output, nobody


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewayAddress:
    """Where a program sends its requests, and the token that it holds instead of a key."""

    base_url: str  # "http://127.0.0.1:PORT"
    token: str = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramRun:
    """One run of a program.

    A program with a gateway holds the gateway's token and never a key or a login. Without one it finds its own key
    among the variables that the config names for it: `variables` are the names of those that are set.
    """

    model: str | None = None
    session_id: str | None = None  # to resume, or (`new_session` is "chosen") to begin with
    resume: bool = False
    home: str  # private and writable, kept as long as the session
    cwd: str
    prompt_file: str  # its standard input, for a program that reads the prompt from a file; it may read this file
    gateway: GatewayAddress | None = None
    variables: frozenset[str] = frozenset()
    login: bool = False  # the gateway holds a subscription's login, not a key
    max_usd: Decimal | None = None  # the most that this run may cost, for programs that can keep to it
    read_only: bool = False  # the program's own tools for writing are switched off where it can


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramLaunch:
    """How a run is started. The prompt goes to standard input."""

    args: tuple[str, ...]  # after the words of `command`
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)  # settings to write, relative to the private home


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderReport:
    """What the output of a run says.

    With a trouble there may be a text, too: what was said before. Without one the text is the answer.
    """

    text: str | None
    session_id: str | None = None
    model: str | None = None  # that answered
    usage: Usage | None = None
    cost_usd: Decimal | None = None
    denied: tuple[str, ...] = ()  # what the program's own rules refused, such as "Write src/a.py"
    files: tuple[str, ...] = ()  # that its tools wrote, as it names them
    trouble: ProviderTrouble | None = None


class Reader(Protocol):
    """Reads the output of one run. Not safe for several threads."""

    @property
    def session_id(self) -> str | None:
        """The session as far as the output has named it. It is known long before the end."""

    def feed(self, data: bytes) -> None:
        """Take the next bytes of standard output. Raises nothing, whatever they are."""

    def end(self, code: int, stderr: str) -> ReaderReport:
        """Return what the whole run says. `code` is the exit code; 128 + N or -N if signal N ended it."""


class AgentProgram(Protocol):
    """A coding agent and how it is used."""

    name: str  # as in the config
    command: tuple[str, ...]  # the first words of its command line
    dialects: tuple[Dialect, ...]  # of its requests, the usual one first; none: it cannot be pointed at a gateway
    new_session: NewSession
    by_hand: tuple[str, ...]  # the words with which a person continues SESSION; none: it keeps no sessions

    def launch(self, run: ProgramRun) -> ProgramLaunch:
        """Return how this run is started. Raises InputError, with what to do, for a run that the program cannot do."""

    def reader(self, run: ProgramRun, on_progress: Callable[[str], None]) -> Reader:
        """Return a reader of this run, made before its start: some programs report the tokens of their whole session,
        and the reader takes off those of earlier runs.

        It passes on a short line, without line break, for each event worth watching.
        """

    def resumable(self, home: str, session_id: str, cwd: str) -> bool:
        """Tell whether the program would find that session again."""

    def read_paths(self, executable: str) -> tuple[str, ...]:
        """Return what it must read of the system besides what every program may read."""
