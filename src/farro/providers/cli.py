"""The cli provider: any command answers. The prompt on its standard input, the answer on its standard output.

What it may touch is kept by guard.sandbox; where it works is workspaces. Retrying is the caller's.

Its output goes to a file that has no name any more: whatever it says, and whenever this worker dies, nothing that was
not looked at for secrets stays on the disk. Secrets come by its environment, never by its arguments.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from farro.errors import InputError, NotPermitted
from farro.guard import judge
from farro.guard.confinement import Confinement
from farro.guard.paths import Allowed, PathRefused, allowed
from farro.guard.sandbox import Sandbox
from farro.ports.provider import SLICE_S, Answer, Partial, ProviderTrouble, Reach, Request
from farro.providers.registry import Place
from farro.providers.workspaces import DIFF, Workspace, workspace
from farro.settings import ProviderSettings
from farro.system import fs
from farro.system.processes import MARKER, NotStarted, Process

TRIES = 2  # SPEC-1 §9
ALWAYS = ("PATH", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM")  # no secret is in these
OUTPUT_LIMIT = 16 << 20  # bytes of an answer that are read
_SAID = 2000  # characters of stderr in a message


def make(name: str, settings: ProviderSettings, place: Place) -> CliProvider:
    if settings.command is None:
        raise InputError(f"providers.{name}.command: is required: the command that answers, as a list of words")
    security = place.security
    sandbox = Sandbox.available(security.sandbox)
    if sandbox.level == "none" and security.require_sandbox:
        why = "; ".join(probe.why for probe in sandbox.probes) or "security.sandbox is none"
        raise NotPermitted(f"provider {name} is a program, security.require_sandbox is on, and no sandbox works: {why}")
    return CliProvider(
        name=name,
        settings=settings,
        sandbox=sandbox,
        environ=place.environ,
        absolute=security.allow_absolute_paths,
        processes=security.max_processes,
        memory_bytes=security.max_memory_bytes,
    )


@dataclass(kw_only=True)
class CliProvider:
    """Port: Provider."""

    name: str
    settings: ProviderSettings
    sandbox: Sandbox
    environ: Mapping[str, str]
    absolute: bool = False  # allowed paths may be absolute
    processes: int | None = None  # at once
    memory_bytes: int | None = None
    tries: int = TRIES

    def answer(self, request: Request) -> Answer:
        reach = request.reach
        assert reach is not None, "a program is never asked without a word on what it may touch"
        folder = f"{request.folder}/{request.key.rsplit('/', 1)[-1]}"
        with contextlib.suppress(FileExistsError):
            fs.mkdir(folder)
        name = request.key.replace("/", ".")
        with workspace(self.settings.workspace, root=reach.root, folder=folder, name=name) as place:
            answer = self._in(place, request, reach, folder)
        return self._with_diff(answer, request, folder)

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _in(self, place: Workspace, request: Request, reach: Reach, folder: str) -> Answer:
        try:
            may_write = allowed(place.root, reach.writable, absolute=self.absolute)
        except PathRefused as refused:
            raise self._trouble(str(refused), retryable=False, charged=False, violation=True) from None
        before = judge.snapshot(place.root, may_write.writable) if self.sandbox.compares else {}
        with _Output(folder) as output:
            process = self._start(place, request, reach, may_write, folder, output)
            try:
                output.forget_names()
                code = self._wait(process, request, output)
            finally:
                # Also what it started and left behind, whatever ended the wait.
                process.end(f"{MARKER}={request.env[MARKER]}" if MARKER in request.env else None, grace_s=0)
            text, said = output.texts()
            refusal = judge.refused_in(said.encode()) if code != 0 else None
        if self.sandbox.compares:
            changed = judge.changed(
                before,
                judge.snapshot(place.root, may_write.writable),
                only_attributes=self.sandbox.level == "B",
            )
            if changed:
                message = f"changed what it may not: {judge.listed(changed)}"
                raise self._trouble(message, retryable=False, violation=True)
        if refusal is not None:
            raise self._trouble(f"tried to write where it may not: {refusal}", retryable=False, violation=True)
        if code != 0:
            fatal = code in self.settings.fatal_exit_codes
            raise self._trouble(f"exit code {code}{_last(said)}", retryable=not fatal)
        return self._read(text)

    def _start(
        self, place: Workspace, request: Request, reach: Reach, may_write: Allowed, folder: str, output: _Output
    ) -> Process:
        command = self.settings.command
        assert command is not None, "the config's rules ask for it"
        private = place.own[0]
        env = {**self._environment(private), **request.env, "FARRO_ROOT": place.root}
        words = [word.replace("{model}", request.model or "") for word in command]
        stdin = f"{folder}/prompt.txt"
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(stdin)
        fs.create(stdin, prompt_text(request).encode("utf-8", "replace"))
        started = self.sandbox.start(
            words,
            confinement=Confinement(
                writable=may_write.writable,
                protected=may_write.protected,
                readable=tuple(dict.fromkeys(map(os.path.realpath, (reach.root, place.root)))),
                network=self.settings.network or reach.network,
                tmp=private,
                processes=self.processes,
                memory_bytes=self.memory_bytes,
            ),
            stdin=stdin,
            stdout=output.answer,
            stderr=output.errors,
            cwd=place.cwd,
            env=env,
        )
        if isinstance(started, NotStarted):
            missing = started.reason == "not_found"
            hint = "; is it installed, and on the worker's PATH?" if missing else ""
            raise ProviderTrouble(
                f"provider {self.name}: {started.message}{hint}",
                kind="missing" if missing else "failed",
                retryable=started.passing,
                charged=False,
            )
        return started

    def _wait(self, process: Process, request: Request, output: _Output) -> int:
        """In slices: an exception for this thread is heard between two of them."""
        until_s = time.monotonic() + request.timeout_s
        while (ended := process.wait(min(SLICE_S, max(until_s - time.monotonic(), 0.0)))) is None:
            if request.partial is not None:
                output.pass_on(request.partial)
            if output.too_long():
                raise self._trouble(f"said more than {OUTPUT_LIMIT} bytes", retryable=False)
            if time.monotonic() >= until_s:
                message = f"provider {self.name}: no answer within {request.timeout_s:g} s"
                raise ProviderTrouble(message, kind="timeout", retryable=True)
        return ended.code

    def _environment(self, private: str) -> dict[str, str]:
        """What it gets of the worker's: no secret that was not named for it."""
        names = {*ALWAYS, *self.settings.environment}
        whole = {name for name in names if not name.endswith("*")}
        beginnings = tuple(name[:-1] for name in names if name.endswith("*"))
        kept = {name: value for name, value in self.environ.items() if name in whole or name.startswith(beginnings)}
        return {"HOME": private, **kept}

    def _read(self, text: str) -> Answer:
        field, cost_field = self.settings.answer_field, self.settings.cost_field
        if field is None:
            return Answer(text=text)
        try:
            data = json.loads(text)
        except ValueError:
            message = f"its output is not JSON, and answer_field wants {field} of it{_last(text)}"
            raise self._trouble(message, retryable=True) from None
        found = _at(data, field)
        if not isinstance(found, str):
            raise self._trouble(f"its output has no text at {field} (answer_field)", retryable=True)
        cost = None if cost_field is None else _at(data, cost_field)
        return Answer(text=found, cost_usd=_amount(cost))

    def _with_diff(self, answer: Answer, request: Request, folder: str) -> Answer:
        """The diff goes where the report looks for it: the step's own folder."""
        step = request.folder.rsplit("/", 1)[0]
        if fs.exists(f"{folder}/{DIFF}"):
            fs.replace(f"{folder}/{DIFF}", f"{step}/{DIFF}")
        return answer

    def _trouble(
        self, message: str, *, retryable: bool, charged: bool = True, violation: bool = False
    ) -> ProviderTrouble:
        return ProviderTrouble(
            f"provider {self.name}: {message}", kind="failed", retryable=retryable, charged=charged, violation=violation
        )


class _Output:
    """The two files of a program, whose names go as soon as it has them."""

    def __init__(self, folder: str) -> None:
        self.answer = f"{folder}/answer.tmp"
        self.errors = f"{folder}/errors.tmp"
        self._fds: list[int] = []  # of the answer and of the errors
        self._passed = 0

    def __enter__(self) -> _Output:
        self._remove()
        return self

    def __exit__(self, *exception: object) -> None:
        self._remove()
        for fd in self._fds:
            os.close(fd)

    def forget_names(self) -> None:
        for path in (self.answer, self.errors):
            self._fds.append(fs.open_read(path))
        self._remove()

    def texts(self) -> tuple[str, str]:
        """The answer, and the end of what else it said."""
        answer, errors = (os.pread(fd, OUTPUT_LIMIT, 0).decode("utf-8", "replace") for fd in self._fds)
        return answer, errors[-_SAID:]

    def too_long(self) -> bool:
        return max(os.fstat(fd).st_size for fd in self._fds) > OUTPUT_LIMIT

    def pass_on(self, partial: Partial) -> None:
        """What came since the last time, for people who read along."""
        while piece := os.pread(self._fds[0], 1 << 16, self._passed):
            partial.write(piece)
            self._passed += len(piece)
        partial.flush()

    def _remove(self) -> None:
        for path in (self.answer, self.errors):
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(path)


def prompt_text(request: Request) -> str:
    """All of a request as one text: the policy, then what was said, the last word being the user's."""
    parts = [request.system.strip()]
    for message in request.messages:
        parts.append(message.text.strip() if message.author == "user" else f"You answered:\n\n{message.text.strip()}")
    return "\n\n---\n\n".join(part for part in parts if part) + "\n"


def _last(text: str) -> str:
    said = " ".join(text.split())
    return f": {said[-300:]}" if said else ""


def _at(data: Any, path: str) -> Any:
    """`result` or `usage.cost`: a member of a member."""
    for part in path.split("."):
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _amount(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return None
    return amount if amount.is_finite() and amount >= 0 else None
