"""The base of providers that run a command for each call: confined, with a time limit, and ended with its caller.

The command's output goes to files that have no name any more: even if this worker dies, no output that was not searched
for secrets stays on the disk. Secrets are passed in its environment, never in its arguments.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping

from farro.agents.providers.port import SLICE_S, Answer, ProviderTrouble, Reach, Request, TroubleKind
from farro.agents.providers.programs import ProgramOutput, own_mark
from farro.agents.providers.read_paths import read_paths
from farro.agents.providers.worktrees import Git, open_worktree
from farro.config.settings import ProviderSettings
from farro.execution.confined import CannotConfine, Confined
from farro.host import fs
from farro.host.process_tree import MARKER
from farro.host.processes import Launch, NotStarted, Process
from farro.host.programs import which
from farro.jobs.outcomes import PATH_VIOLATION
from farro.lazy_dataclass import dataclass, field, replace
from farro.roles.provider_rules import CLI_TRIES
from farro.sandbox.confinement import LocalService, wider

ENDING_S = 1.5  # how long a caller that is interrupted waits for its command to end


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandCall:
    """One call, and where its command works."""

    request: Request
    reach: Reach
    folder: str  # for files of this call
    root: str  # holds the allowed paths: the repository, or a worktree of it
    stopped: threading.Event  # set when the caller has gone


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderCommand:
    """What is run for a call."""

    words: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    stdin: str | int  # a file, or a descriptor, which is closed
    stdout: int | None = None  # a descriptor, which is closed; None: a file of the call
    most_output: int  # bytes
    services: tuple[LocalService, ...] = ()  # that it reaches without a network
    reads: tuple[str, ...] = ()  # that it may read besides what the config names


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningCommand:
    """A command that was started."""

    process: Process
    check: Callable[[], None]  # raises the trouble that ends it


@dataclass(kw_only=True)
class CommandProvider(ABC):
    """Runs a command for each call (port: Provider)."""

    name: str
    settings: ProviderSettings
    environ: Mapping[str, str] = field(repr=False)  # holds the secrets
    tries: int = CLI_TRIES

    def answer(self, request: Request) -> Answer:
        """Run the command on a thread of its own.

        An exception may be raised in the caller's thread at any line, also between starting the command and recording
        that it started. The thread is then asked to end the command, and ends by itself.
        """
        # An event, not Thread.join: an exception raised inside of join breaks the thread object.
        stopped, over = threading.Event(), threading.Event()
        results: list[Answer | BaseException] = []

        def make() -> None:
            try:
                results.append(self._answer(request, stopped))
            except BaseException as failure:  # noqa: BLE001 - re-raised by the caller's thread
                results.append(failure)
            finally:
                over.set()

        try:
            threading.Thread(target=make, name="cli", daemon=True).start()
            while not over.wait(SLICE_S):
                pass
        finally:
            stopped.set()
            over.wait(ENDING_S)
        if isinstance(results[0], BaseException):
            raise results[0]
        return results[0]

    def close(self) -> None:  # noqa: B027 - nothing stays open between calls
        """Do nothing."""

    @abstractmethod
    def ask(self, call: CommandCall) -> Answer:
        """Run the command and read its answer."""

    def _answer(self, request: Request, stopped: threading.Event) -> Answer:
        reach, (job, attempt, step, number) = request.reach, request.key.rsplit("/", 3)
        assert reach is not None, "a program is never asked without a word on what it may touch"
        folder = f"{request.folder}/{number}"
        with contextlib.suppress(FileExistsError):
            fs.mkdir(folder)
        call = CommandCall(request=request, reach=reach, folder=folder, root=reach.root, stopped=stopped)
        try:
            if self.settings.workspace != "worktree":
                return self.ask(call)
            git = Git(environ=self.environ, marks=request.env, folder=folder)
            with open_worktree(git, reach.root, job, f"{attempt}.{step}.{number}") as tree:
                answer = self.ask(replace(call, root=tree.root))
                try:
                    return replace(answer, diff=tree.diff())
                except ProviderTrouble as trouble:  # the program has worked, and is paid for
                    raise ProviderTrouble(
                        f"provider {self.name}: {trouble}", kind="failed", retryable=False, cost_usd=answer.cost_usd
                    ) from None
        except CannotConfine as cannot:
            raise ProviderTrouble(
                f"provider {self.name} was not asked: {cannot}",
                kind="failed",
                retryable=False,
                charged=False,
                violation=cannot.category == PATH_VIOLATION,
            ) from None

    @contextlib.contextmanager
    def confined(self, call: CommandCall, *, folder: str | None = None, home: str | None = None) -> Iterator[Confined]:
        """Open the sandbox of a call. `folder` gets its TMPDIR; None: that of the call."""
        confined = Confined(
            root=call.root,
            folder=folder or call.folder,
            marker=call.request.env[MARKER],
            guarding=call.reach.guarding,
            wanted=call.reach.writable,
            readable=(call.reach.root,),
            home=home,
        )
        try:
            yield confined
        finally:
            confined.close()

    def run(
        self,
        call: CommandCall,
        command: ProviderCommand,
        *,
        confined: Confined,
        output: ProgramOutput,
        watch: Callable[[], None],
    ) -> int:
        """Run a command to its end, with all that it started, and return its exit code. `watch` is called often while
        it runs, and once after it."""
        until_s = time.monotonic() + call.request.timeout_s
        with self.started(call, command, confined=confined, output=output) as running:
            while (ended := running.process.wait(min(SLICE_S, max(until_s - time.monotonic(), 0.0)))) is None:
                running.check()
                watch()
                if time.monotonic() >= until_s:
                    raise self.out_of_time(call)
        watch()
        confined.end_leftovers()
        return ended.code

    @contextlib.contextmanager
    def started(
        self, call: CommandCall, command: ProviderCommand, *, confined: Confined, output: ProgramOutput
    ) -> Iterator[RunningCommand]:
        """Start a command. It is ended in any case, with all that it started and left behind."""
        file = which(command.words[0], command.env.get("PATH"), command.cwd)
        if file is None:
            for end in (command.stdin, command.stdout):
                if isinstance(end, int):
                    os.close(end)
            words = f"{command.words[0]} was not found; is it installed, and on the worker's PATH?"
            raise self.trouble(words, retryable=False, charged=False)
        launch = Launch(
            argv=command.words,
            executable=file,
            stdin=command.stdin,
            stdout=output.answer if command.stdout is None else command.stdout,
            stderr=output.errors,
            cwd=command.cwd,
            env=command.env,
        )
        network = wider(self.settings.network, call.reach.network)
        reads = (*command.reads, *read_paths(self.settings, call.reach, call.root, self.environ))
        process = confined.start(launch, network=network, services=command.services, reads=reads)
        if isinstance(process, NotStarted):
            violation = process.reason == "refused"
            raise self.trouble(process.message, retryable=process.passing, charged=False, violation=violation)

        def check() -> None:
            if call.stopped.is_set():
                raise self.trouble("ended, because its caller is gone", retryable=False)
            if (trouble := confined.trouble(process)) is not None:
                raise self.trouble(trouble.message, retryable=False)
            if output.too_long(command.most_output):
                raise self.trouble(f"said more than {command.most_output} bytes", retryable=False)

        try:
            output.forget_names()
            yield RunningCommand(process=process, check=check)
        finally:
            # The mark of the try, if it has one: another step of the same plan may run at the same time.
            process.end(own_mark(call.request.env), grace_s=0)

    def out_of_time(self, call: CommandCall) -> ProviderTrouble:
        return self.trouble(f"no answer within {call.request.timeout_s:g} s", kind="timed_out", retryable=True)

    def check_violation(self, confined: Confined, said: str) -> None:
        """Raise the trouble of a command that wrote where it may not. `said`: why it failed; empty if it did not."""
        violation = confined.violation(None, said.encode())
        if violation is not None:
            raise self.trouble(violation, retryable=False, violation=True)

    def trouble(
        self,
        message: str,
        *,
        kind: TroubleKind = "failed",
        retryable: bool,
        charged: bool = True,
        violation: bool = False,
    ) -> ProviderTrouble:
        message = f"provider {self.name}: {message}"
        return ProviderTrouble(message, kind=kind, retryable=retryable, charged=charged, violation=violation)


def prompt_text(request: Request) -> str:
    """Return a request as one text: the policy, then the messages, the last one from the user."""
    parts = [request.system.strip()]
    for message in request.messages:
        parts.append(message.text.strip() if message.author == "user" else f"You answered:\n\n{message.text.strip()}")
    return joined(parts)


def joined(parts: list[str]) -> str:
    return "\n\n---\n\n".join(part for part in parts if part) + "\n"
