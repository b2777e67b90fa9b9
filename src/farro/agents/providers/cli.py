"""The cli provider: any command answers. The prompt on its standard input, the answer on its standard output.

What it may touch is kept by execution.confined; a worktree to work in comes from worktrees. Retrying is the caller's.

Its output goes to a file that has no name any more: whatever it says, and whenever this worker dies, nothing that was
not looked at for secrets stays on the disk. Secrets come by its environment, never by its arguments.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from farro.agents.providers.port import SLICE_S, Answer, ProviderTrouble, Reach, Request
from farro.agents.providers.programs import ALWAYS, LIMIT, ProgramOutput, end_of, named, own_mark
from farro.agents.providers.registry import Place
from farro.agents.providers.worktrees import Git, worktree
from farro.config.settings import ProviderSettings
from farro.errors import InputError
from farro.execution.commands import Executable, which
from farro.execution.confined import CannotConfine, Confined
from farro.host import fs
from farro.host.processes import MARKER, NotStarted, Process
from farro.jobs.outcomes import PATH_VIOLATION
from farro.lazy_dataclass import dataclass, field
from farro.roles import money

TRIES = 2  # SPEC-1 §9
ENDING_S = 1.5  # how long a caller that is ended waits for its program's end


def make(name: str, settings: ProviderSettings, place: Place) -> CliProvider:
    if settings.command is None:
        raise InputError(f"providers.{name}.command: is required: the command that answers, as a list of words")
    return CliProvider(name=name, settings=settings, environ=place.environ)


@dataclass(kw_only=True)
class CliProvider:
    """Port: Provider."""

    name: str
    settings: ProviderSettings
    environ: Mapping[str, str] = field(repr=False)  # where secrets are
    tries: int = TRIES

    def answer(self, request: Request) -> Answer:
        """On a thread of its own: an exception may be raised in the caller's at any line, also between the start of a
        program and the note of it. This one is told to end it, and ends by itself."""
        stopped, over = threading.Event(), threading.Event()  # not Thread.join, which an exception inside of it spoils
        came: list[Answer | BaseException] = []

        def make() -> None:
            try:
                came.append(self._answer(request, stopped))
            except BaseException as failure:  # noqa: BLE001 - raised by whoever waits
                came.append(failure)
            finally:
                over.set()

        try:
            threading.Thread(target=make, name="cli", daemon=True).start()
            while not over.wait(SLICE_S):
                pass
        finally:
            stopped.set()
            over.wait(ENDING_S)
        if isinstance(came[0], BaseException):
            raise came[0]
        return came[0]

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
            with worktree(git, reach.root, job, f"{attempt}.{step}.{number}") as tree:
                answer = self._ask(request, reach, folder, tree.root, stopped)
                try:
                    return replace(answer, diff=tree.diff())
                except ProviderTrouble as trouble:  # it has worked, and is paid
                    raise ProviderTrouble(
                        f"provider {self.name}: {trouble}", kind="failed", retryable=False, cost_usd=answer.cost_usd
                    ) from None
        except CannotConfine as cannot:
            raise ProviderTrouble(
                f"provider {self.name} was not asked: {cannot}",
                kind="missing",  # of the config or the machine, not of the program
                retryable=False,
                charged=False,
                violation=cannot.category == PATH_VIOLATION,
            ) from None

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _ask(self, request: Request, reach: Reach, folder: str, root: str, stopped: threading.Event) -> Answer:
        """`root` is where the allowed paths are: the repository, or a worktree of it."""
        marker = request.env[MARKER]
        confined = Confined.of(
            root=root,
            folder=folder,
            marker=marker,
            guarding=reach.guarding,
            wanted=reach.writable,
            readable=(reach.root,),
        )
        try:
            # An answer inside JSON is nothing to read along; what such a program says of its work is on its stderr.
            with ProgramOutput(folder, read_along=0 if self.settings.answer_field is None else 1) as output:
                process = self._start(confined, request, reach, folder, root, output)
                try:
                    output.forget_names()
                    code = self._wait(process, confined, request, output, stopped)
                finally:
                    # Also what it started and left behind, whatever ended the wait. The try's own mark, where it has
                    # one: another step of the same plan may run beside it.
                    process.end(own_mark(request.env), grace_s=0)
                if request.partial is not None:
                    output.pass_on(request.partial)
                text, said = output.texts()
            confined.end_strays()
            violation = confined.violation(None, said.encode() if code != 0 else b"")
            if violation is not None:
                raise self._trouble(violation, retryable=False, violation=True)
            if code != 0:
                # Some say on stdout what went wrong, as claude does: it is all that a person gets to know.
                hit = confined.hit()
                why = f": {hit}" if hit else _last(said) or _last(self._said(text))
                raise self._trouble(f"exit code {code}{why}", retryable=code not in self.settings.fatal_exit_codes)
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
                kind="missing",
                retryable=False,
                charged=False,
            )
        stdin = f"{folder}/prompt.txt"
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(stdin)
        fs.create(stdin, prompt_text(request).encode("utf-8", "replace"))
        started = confined.start(
            Executable(argv=words, file=file),
            stdin=stdin,
            stdout=output.answer,
            stderr=output.errors,
            cwd=cwd,
            env=env,
            network=self.settings.network or reach.network,
        )
        if isinstance(started, NotStarted):
            violation = started.reason == "refused"
            raise self._trouble(started.message, retryable=started.passing, charged=False, violation=violation)
        return started

    def _wait(
        self, process: Process, confined: Confined, request: Request, output: ProgramOutput, stopped: threading.Event
    ) -> int:
        """In slices: that nobody waits any more is seen between two of them."""
        until_s = time.monotonic() + request.timeout_s
        while (ended := process.wait(min(SLICE_S, max(until_s - time.monotonic(), 0.0)))) is None:
            if stopped.is_set():
                raise self._trouble("ended, because nobody waits for it", retryable=False)
            if request.partial is not None:
                output.pass_on(request.partial)
            if (trouble := confined.trouble(process)) is not None:
                raise self._trouble(trouble.message, retryable=False)
            if output.too_long(LIMIT):
                raise self._trouble(f"said more than {LIMIT} bytes", retryable=False)
            if time.monotonic() >= until_s:
                message = f"provider {self.name}: no answer within {request.timeout_s:g} s"
                raise ProviderTrouble(message, kind="timeout", retryable=True)
        return ended.code

    def _environment(self, private: str) -> dict[str, str]:
        """What it gets of the worker's: no secret that was not named for it."""
        return {"HOME": private, **named(self.environ, (*ALWAYS, *self.settings.environment))}

    def _said(self, text: str) -> str:
        """What it meant to say with its output, whether or not that is an answer."""
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
        return Answer(text=found, cost_usd=money.told(cost))

    def _trouble(
        self, message: str, *, retryable: bool, charged: bool = True, violation: bool = False
    ) -> ProviderTrouble:
        return ProviderTrouble(
            f"provider {self.name}: {message}", kind="failed", retryable=retryable, charged=charged, violation=violation
        )


def prompt_text(request: Request) -> str:
    """All of a request as one text: the policy, then what was said, the last word being the user's."""
    parts = [request.system.strip()]
    for message in request.messages:
        parts.append(message.text.strip() if message.author == "user" else f"You answered:\n\n{message.text.strip()}")
    return "\n\n---\n\n".join(part for part in parts if part) + "\n"


def _last(text: str) -> str:
    said = end_of(" ".join(text.split()), 300).strip()
    return f": {said}" if said else ""


def _at(data: Any, path: str) -> Any:
    """`result` or `usage.cost`: a member of a member."""
    for part in path.split("."):
        data = data.get(part) if isinstance(data, dict) else None
    return data
