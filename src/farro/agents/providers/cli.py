"""The cli provider: a command that reads the prompt from standard input and writes the answer to standard output.

Its output goes to files that have no name any more: even if this worker dies, no output that was not searched for
secrets stays on the disk. Secrets are passed in its environment, never in its arguments.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from farro.agents.providers.port import SLICE_S, Answer, ProviderTrouble, Reach, Request, TroubleKind
from farro.agents.providers.programs import ALWAYS, LIMIT, ProgramOutput, end_of, named, own_mark
from farro.agents.providers.registry import Place
from farro.agents.providers.worktrees import Git, open_worktree
from farro.config.settings import ProviderSettings
from farro.errors import InputError
from farro.execution.confined import CannotConfine, Confined
from farro.host import fs
from farro.host.process_tree import MARKER
from farro.host.processes import Launch, NotStarted, Process
from farro.host.programs import which
from farro.jobs.outcomes import PATH_VIOLATION
from farro.lazy_dataclass import dataclass, field, replace
from farro.roles import money
from farro.roles.provider_rules import CLI_TRIES

SIGNALLED = 128  # an exit code above it: a signal ended the program
ENDING_S = 1.5  # how long a caller that is interrupted waits for its program to end


def make(name: str, settings: ProviderSettings, place: Place) -> CliProvider:
    if settings.command is None:
        raise InputError(f"providers.{name}.command: is required: the command that answers, as a list of words")
    return CliProvider(name=name, settings=settings, environ=place.environ)


@dataclass(kw_only=True)
class CliProvider:
    """A command that answers (port: Provider)."""

    name: str
    settings: ProviderSettings
    environ: Mapping[str, str] = field(repr=False)  # holds the secrets
    tries: int = CLI_TRIES

    def answer(self, request: Request) -> Answer:
        """Run the command on a thread of its own.

        An exception may be raised in the caller's thread at any line, also between starting the program and recording
        that it started. The thread is then asked to end the program, and ends by itself.
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

    def _answer(self, request: Request, stopped: threading.Event) -> Answer:
        reach, (job, attempt, step, number) = request.reach, request.key.rsplit("/", 3)
        assert reach is not None, "a program is never asked without a word on what it may touch"
        folder = f"{request.folder}/{number}"
        with contextlib.suppress(FileExistsError):
            fs.mkdir(folder)
        try:
            if self.settings.workspace != "worktree":
                return self._ask(request, reach, folder, reach.root, stopped)
            git = Git(environ=self.environ, marks=request.env, folder=folder)
            with open_worktree(git, reach.root, job, f"{attempt}.{step}.{number}") as tree:
                answer = self._ask(request, reach, folder, tree.root, stopped)
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

    def close(self) -> None:
        """Do nothing: nothing stays open between calls."""

    def _ask(self, request: Request, reach: Reach, folder: str, root: str, stopped: threading.Event) -> Answer:
        """Run the program and read its answer. `root` holds the allowed paths: the repository, or a worktree of it."""
        marker = request.env[MARKER]
        confined = Confined(
            root=root,
            folder=folder,
            marker=marker,
            guarding=reach.guarding,
            wanted=reach.writable,
            readable=(reach.root,),
        )
        try:
            # JSON is not worth watching; a program that answers in JSON reports its progress on stderr.
            with ProgramOutput(folder, read_along=0 if self.settings.answer_field is None else 1) as output:
                process = self._start(confined, request, reach, folder, root, output)
                try:
                    output.forget_names()
                    code = self._wait(process, confined, request, output, stopped)
                finally:
                    # Also ends what the program started and left behind, however the wait ended. The mark of the try,
                    # if it has one: another step of the same plan may run at the same time.
                    process.end(own_mark(request.env), grace_s=0)
                if request.partial is not None:
                    output.pass_on(request.partial)
                text, said = output.texts()
            confined.end_leftovers()
            violation = confined.violation(None, said.encode() if code != 0 else b"")
            if violation is not None:
                raise self._trouble(violation, retryable=False, violation=True)
            if code != 0:
                # Some programs, such as claude, print their error to stdout: it is the only explanation a person gets.
                hit = confined.hit()
                why = f": {hit}" if hit else _last(said) or _last(self._said(text))
                again = code not in self.settings.fatal_exit_codes
                kind: TroubleKind = "cut" if code > SIGNALLED else "failed"
                raise self._trouble(f"exit code {code}{why}", kind=kind, retryable=again)
            return self._read(text)
        finally:
            confined.close()

    def _start(
        self, confined: Confined, request: Request, reach: Reach, folder: str, root: str, output: ProgramOutput
    ) -> Process:
        command = self.settings.command
        assert command is not None, "`make` asks for it"
        env = {**self._environment(confined.tmp), **request.env, "FARRO_ROOT": root}
        cwd = confined.tmp if self.settings.workspace == "temp" else root
        words = tuple(word.replace("{model}", request.model or "") for word in command)
        file = which(words[0], env.get("PATH"), cwd)
        if file is None:
            raise ProviderTrouble(
                f"provider {self.name}: {words[0]} was not found; is it installed, and on the worker's PATH?",
                kind="failed",
                retryable=False,
                charged=False,
            )
        stdin = f"{folder}/prompt.txt"
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(stdin)
        fs.create(stdin, prompt_text(request).encode("utf-8", "replace"))
        launch = Launch(
            argv=words,
            executable=file,
            stdin=stdin,
            stdout=output.answer,
            stderr=output.errors,
            cwd=cwd,
            env=env,
        )
        started = confined.start(launch, network=self.settings.network or reach.network)
        if isinstance(started, NotStarted):
            violation = started.reason == "refused"
            raise self._trouble(started.message, retryable=started.passing, charged=False, violation=violation)
        return started

    def _wait(
        self, process: Process, confined: Confined, request: Request, output: ProgramOutput, stopped: threading.Event
    ) -> int:
        """Wait in slices, and end the program if its caller has gone."""
        until_s = time.monotonic() + request.timeout_s
        while (ended := process.wait(min(SLICE_S, max(until_s - time.monotonic(), 0.0)))) is None:
            if stopped.is_set():
                raise self._trouble("ended, because its caller is gone", retryable=False)
            if request.partial is not None:
                output.pass_on(request.partial)
            if (trouble := confined.trouble(process)) is not None:
                raise self._trouble(trouble.message, retryable=False)
            if output.too_long(LIMIT):
                raise self._trouble(f"said more than {LIMIT} bytes", retryable=False)
            if time.monotonic() >= until_s:
                message = f"provider {self.name}: no answer within {request.timeout_s:g} s"
                raise ProviderTrouble(message, kind="timed_out", retryable=True)
        return ended.code

    def _environment(self, private: str) -> dict[str, str]:
        """Return the variables of the worker that the program gets: no secret that was not named for it."""
        return {"HOME": private, **named(self.environ, (*ALWAYS, *self.settings.environment))}

    def _said(self, text: str) -> str:
        """Return the message in the program's output, even if it is not an answer."""
        with contextlib.suppress(ValueError, RecursionError):
            found = _at(json.loads(text), self.settings.answer_field or "")
            return found if isinstance(found, str) else text
        return text

    def _read(self, text: str) -> Answer:
        field, cost_field = self.settings.answer_field, self.settings.cost_field
        if field is None:
            return Answer(text=text)
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            message = f"its output is not JSON, and answer_field wants {field} of it{_last(text)}"
            raise self._trouble(message, retryable=True) from None
        found = _at(data, field)
        if not isinstance(found, str):
            raise self._trouble(f"its output has no text at {field} (answer_field){_last(text)}", retryable=True)
        cost = None if cost_field is None else _at(data, cost_field)
        return Answer(text=found, cost_usd=money.reported_cost(cost))

    def _trouble(
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
    return "\n\n---\n\n".join(part for part in parts if part) + "\n"


def _last(text: str) -> str:
    said = end_of(" ".join(text.split()), 300).strip()
    return f": {said}" if said else ""


def _at(data: Any, path: str) -> Any:
    """Return a nested member by its path: `result` or `usage.cost`."""
    for part in path.split("."):
        data = data.get(part) if isinstance(data, dict) else None
    return data
