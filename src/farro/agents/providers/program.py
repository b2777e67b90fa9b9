"""The provider of a known coding agent: `program: claude` (docs/agents.md).

Each call is one run of the program, in a session that outlives the call. A repair, a review round and the attempt after
a crash resume it and tell only what is new; if the program does not find it any more, a new one is told everything.

What became of a run is judged by what the program wrote, not by its exit code.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal

from farro.agents.gateway.port import Admission, GatewayRun, ModelExchange, Upstream
from farro.agents.programs.output import one_line
from farro.agents.programs.port import AgentProgram, GatewayAddress, ProgramRun, Reader, ReaderReport
from farro.agents.programs.registry import find_program
from farro.agents.providers.command import CommandCall, CommandProvider, ProviderCommand, prompt_text
from farro.agents.providers.port import Answer, ProviderTrouble, Request, Usage
from farro.agents.providers.programs import ALWAYS, ProgramOutput, named
from farro.agents.providers.registry import Place
from farro.agents.providers.session_messages import GO_ON, digest, digests, news, request_digests, unique
from farro.agents.session_folder import SessionFolder, SessionRecord
from farro.config.settings import ProviderSettings
from farro.errors import InputError
from farro.host import fs, machine
from farro.host.programs import which
from farro.lazy_dataclass import dataclass, replace
from farro.roles.money import exact
from farro.sandbox.confinement import LocalService
from farro.store.ledger import CallEnd

_PROMPT = ".farro-prompt"  # in the home
_WORK = "work"  # in the home: where it works if its workspace is temporary
_ENDED = 137  # the exit code of a program that farro has ended
_MOST = 1 << 30  # bytes of output: events with the content of every file that it reads


def make(name: str, settings: ProviderSettings, place: Place) -> ProgramProvider:
    assert settings.program is not None, "the caller looks"
    try:
        program = find_program(settings.program)
    except InputError as unknown:
        raise InputError(f"providers.{name}.program: {unknown}") from unknown
    if not (settings.command or program.command):
        raise InputError(f"providers.{name}.command: is required: the command that answers, as a list of words")
    return ProgramProvider(name=name, settings=settings, environ=place.environ, program=program, admit=place.admit)


@dataclass(kw_only=True)
class ProgramProvider(CommandProvider):
    """Runs a known program."""

    program: AgentProgram
    admit: Callable[[GatewayRun], Admission] | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """Return the first words of its command line."""
        return self.settings.command or self.program.command

    def ask(self, call: CommandCall) -> Answer:
        folder = SessionFolder(path=call.request.sessions or f"{call.folder}/session")
        with self._admitted(call.request) as admission:
            try:
                turn = self._turn(call, folder, admission)
            except OSError:  # an agent can make its home unusable
                folder.clear()
                turn = self._turn(call, folder, admission)
            try:
                report = self._report_of(call, turn)
            except ProviderTrouble as trouble:
                raise _with_costs(trouble, admission) from None
            return self._answer_of(turn, report, admission, root=call.root)

    def version(self, request: Request) -> str:
        """Start the program in the sandbox as a call does, without a prompt, and return the version that it prints."""
        assert request.reach is not None
        folder = SessionFolder(path=f"{request.folder}/session")
        folder.make()
        folder.put({_PROMPT: b""})
        root = request.reach.root
        call = CommandCall(
            request=request, reach=request.reach, folder=request.folder, root=root, stopped=threading.Event()
        )
        env = {**named(self.environ, ALWAYS), "HOME": folder.home}
        command = ProviderCommand(
            words=(*self.words, "--version"),
            env={**env, **request.env},
            reads=self._reads(env, root),
            cwd=root,
            stdin=f"{folder.home}/{_PROMPT}",
            most_output=1 << 20,
        )
        in_home = self.confined(call, folder=folder.path, home=folder.home)
        with in_home as confined, ProgramOutput(call.folder) as output:
            code = self.run(call, command, confined=confined, output=output, watch=lambda: None)
            text, said = output.texts()
        if code != 0:
            raise self.trouble(f"exit code {code}: {one_line(said or text, 300)}", retryable=False)
        return one_line(text, 80)

    def _reads(self, env: Mapping[str, str], cwd: str) -> tuple[str, ...]:
        return self.program.read_paths(which(self.words[0], env.get("PATH"), cwd) or self.words[0])

    def _admitted(self, request: Request) -> contextlib.AbstractContextManager[Admission | None]:
        """Ask the gateway for admission, if the requests of the program go through it."""
        settings = self.settings
        if not settings.uses_gateway:
            return contextlib.nullcontext()
        if self.admit is None:
            message = "api_key, login and base_url of a program need the model gateway, which does not run here"
            raise self.trouble(message, retryable=False, charged=False)
        try:
            key, login = (
                None if secret is None else secret.reveal(self.environ, f"providers.{self.name}")
                for secret in (settings.api_key, settings.login)
            )
        except InputError as missing:
            raise self.trouble(str(missing), retryable=False, charged=False) from None
        upstream = Upstream(base_url=settings.base_url, key=key, login=login)
        meter = request.meter or _NoMeter()
        return self.admit(GatewayRun(upstream=upstream, meter=meter, keep=request.keep or _keep_nothing))

    def _report_of(self, call: CommandCall, turn: _Turn) -> ReaderReport:
        """Run the program, and return what its output says."""
        # Some programs unpack libraries into TMPDIR, which would count as files of the job.
        in_home = self.confined(call, folder=turn.folder.path, home=turn.folder.home)
        with in_home as confined, ProgramOutput(call.folder) as output:
            watch = _Watch(self, call, turn, output)
            try:
                code = self.run(call, turn.command, confined=confined, output=output, watch=watch)
            except ProviderTrouble as trouble:
                report = watch.reader.end(_ENDED, "")
                trouble.usage, trouble.cost_usd = report.usage, report.cost_usd
                raise
            said = output.last_words()
            report = watch.reader.end(code, said)
            # An agent goes on after a write that was refused. A program that says nothing else may have failed by it.
            unexplained = code != 0 and (report.trouble is None or report.trouble.kind == "failed")
            self.check_violation(confined, said if unexplained else "")
            return report

    def _turn(self, call: CommandCall, folder: SessionFolder, admission: Admission | None) -> _Turn:
        """Prepare a run: its session, what it is told, and the files that it finds in its home."""
        folder.make()
        cwd = f"{folder.home}/{_WORK}" if self.settings.workspace == "temp" else call.root
        if cwd != call.root:
            with contextlib.suppress(FileExistsError):
                fs.mkdir_private(cwd)
        record, prompt, resume = self._session(call, folder, os.path.realpath(cwd))
        own = named(self.environ, self.settings.environment)
        run = ProgramRun(
            model=call.request.model,
            session_id=record.session_id,
            resume=resume,
            home=folder.home,
            cwd=record.cwd,
            prompt_file=f"{folder.home}/{_PROMPT}",
            gateway=None if admission is None else GatewayAddress(base_url=admission.base_url, token=admission.token),
            variables=frozenset(name for name, value in own.items() if value),
            login=self.settings.login is not None,
            max_usd=None if self.settings.call_usd is None else exact(self.settings.call_usd),
            read_only=not call.reach.writable,
        )
        try:
            launch = self.program.launch(run)
        except InputError as cannot:
            raise self.trouble(str(cannot), retryable=False, charged=False) from None
        folder.put({**launch.files, _PROMPT: prompt.encode("utf-8", "replace")})
        folder.write(self.name, record)
        env = {**named(self.environ, ALWAYS), **own, "HOME": folder.home}
        command = ProviderCommand(
            words=(*self.words, *launch.args),
            env={**env, **call.request.env, "FARRO_ROOT": call.root, **launch.env},
            reads=self._reads(env, cwd),
            cwd=cwd,
            stdin=run.prompt_file,
            most_output=_MOST,
            services=() if admission is None else (LocalService(admission.port, admission.serve),),
        )
        return _Turn(folder=folder, record=record, run=run, command=command, told=digests(call.request.messages))

    def _session(self, call: CommandCall, folder: SessionFolder, cwd: str) -> tuple[SessionRecord, str, bool]:
        """Choose the session; return it with what it is told and whether it is resumed."""
        request, known = call.request, folder.read().get(self.name)
        if known is not None and (known.given_up or (known.program, known.cwd) != (self.program.name, cwd)):
            known = None
        session_id = None if known is None else known.session_id
        if known is not None and session_id is not None and self.program.resumable(folder.home, session_id, cwd):
            new = news(request, known.told)
            if new is not None:
                return known, new or GO_ON, True
        # A new id, also if the last run recorded nothing that can be resumed: gemini refuses an id that it has seen.
        chosen = self.program.new_session == "chosen"
        session_id = str(uuid.UUID(int=machine.random_bits(128), version=4)) if chosen else None
        record = SessionRecord(program=self.program.name, cwd=cwd, session_id=session_id, told=request_digests(request))
        return record, prompt_text(request), False

    def _answer_of(self, turn: _Turn, report: ReaderReport, admission: Admission | None, *, root: str) -> Answer:
        """Return the answer of a run that has ended, and keep its session; or raise its trouble.

        The gateway knows why it refused a request; the program was told something that makes it stop at once.
        """
        usage, cost_usd, trouble, model = report.usage, report.cost_usd, report.trouble, report.model
        if admission is not None:
            admission.close()
            passed = admission.report()
            if passed.exceeded is not None:
                raise passed.exceeded
            usage, cost_usd = passed.usage, passed.cost_usd
            if passed.requests and trouble is not None and trouble.kind in ("limited", "refused"):
                # The service has answered: what the program says of an account is not about this one, and must not
                # pause it.
                trouble = ProviderTrouble(str(trouble), kind="failed", retryable=True)
            trouble, model = passed.trouble or trouble, passed.model or model
        if trouble is not None:
            self._give_up(turn, trouble)
            raise trouble.saying(f"provider {self.name}: {trouble}", usage=usage, cost_usd=cost_usd)
        text = report.text or ""
        told = (*turn.record.told, *turn.told, digest(text))
        record = replace(turn.record, session_id=report.session_id or turn.record.session_id, told=unique(told))
        turn.folder.write(self.name, record)
        return Answer(
            text=text,
            model=model,
            usage=usage,
            cost_usd=cost_usd,
            session_id=record.session_id,
            denied=report.denied,
            files=unique([path.removeprefix(f"{root}/") for path in report.files]),
        )

    def _give_up(self, turn: _Turn, trouble: ProviderTrouble) -> None:
        """Do not resume a session that would bring the same trouble again."""
        if trouble.kind == "denied" or (trouble.kind == "failed" and turn.run.resume):
            known = turn.folder.read().get(self.name, turn.record)
            turn.folder.write(self.name, replace(known, given_up=True))


@dataclass(frozen=True, kw_only=True)
class _Turn:
    """One run in a session."""

    folder: SessionFolder
    record: SessionRecord
    run: ProgramRun
    command: ProviderCommand
    told: tuple[str, ...]  # digests of the messages


class _Watch:
    """Reads the output while it comes: passes progress on, records the session, and ends a run that is stuck."""

    def __init__(self, provider: ProgramProvider, call: CommandCall, turn: _Turn, output: ProgramOutput) -> None:
        self.reader: Reader = provider.program.reader(turn.run, call.request.progress or _show_nothing)
        self._provider = provider
        self._request = call.request
        self._turn = turn
        self._output = output
        self._known = turn.record.session_id
        self._last_s = time.monotonic()

    def __call__(self) -> None:
        self._output.pass_on(self)
        if self.reader.session_id not in (None, self._known):
            self._known = self.reader.session_id
            self._turn.folder.write(self._provider.name, replace(self._turn.record, session_id=self._known))
        idle_s = self._request.idle_timeout_s
        if idle_s is not None and time.monotonic() - self._last_s >= idle_s:
            raise self._provider.trouble(f"no progress for {idle_s:g} s", kind="timed_out", retryable=True)

    def write(self, data: bytes, /) -> int:
        self.reader.feed(data)
        self._last_s = time.monotonic()
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...


def _show_nothing(line: str) -> None: ...


def _keep_nothing(exchange: ModelExchange) -> None: ...


def _with_costs(trouble: ProviderTrouble, admission: Admission | None) -> ProviderTrouble:
    """Return the trouble of a run that was ended, with what its requests cost."""
    if admission is None:
        return trouble
    admission.close()
    passed = admission.report()
    return trouble.saying(str(trouble), usage=passed.usage, cost_usd=passed.cost_usd)


class _NoMeter:
    """Port: Meter. The caller counts the whole call."""

    def reserve(self, model: str | None, prompt_bytes: int, max_output_tokens: int | None) -> str:
        return ""

    def settle(self, call_id: str, end: CallEnd, usage: Usage | None, model: str | None) -> Decimal | None:
        return None
