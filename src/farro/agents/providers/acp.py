"""The acp provider: any coding agent that speaks the Agent Client Protocol (docs/providers.md).

Each call starts the agent in its sandbox, makes one turn with it, and ends it. The session outlives the call, as that
of a known program does: an agent that can load sessions is told only what is new.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from typing import TYPE_CHECKING

from farro.agents.programs.session_files import is_session_id
from farro.agents.providers import event_loop
from farro.agents.providers.command import CommandCall, CommandProvider, ProviderCommand, RunningCommand, prompt_text
from farro.agents.providers.port import SLICE_S, Answer, ProviderTrouble
from farro.agents.providers.programs import ALWAYS, ProgramOutput, named
from farro.agents.providers.registry import Place
from farro.agents.providers.session_messages import GO_ON, digest, digests, news, request_digests, unique
from farro.agents.session_folder import ACP, SessionFolder, SessionRecord
from farro.config.settings import ProviderSettings
from farro.errors import InputError
from farro.execution.confined import Confined
from farro.host import fs
from farro.lazy_dataclass import dataclass, replace
from farro.sandbox.redaction import Redactor

if TYPE_CHECKING:
    from farro.agents.acp.permission_policy import PermissionPolicy
    from farro.agents.acp.turn import AgentTurn
    from farro.agents.acp.turn_reader import TurnReader
    from farro.agents.programs.port import ReaderReport

_WORK = "work"  # in the home: where it works if its workspace is temporary
_MOST = 64 << 20  # bytes of its standard error
_EXIT_S = 1.0  # how long an agent may take to end after its input was closed
_ENDED = 137  # the exit code of an agent that farro has ended


def make(name: str, settings: ProviderSettings, place: Place) -> CommandProvider:
    if settings.command is None:
        raise InputError(f"providers.{name}.command: is required: the command of the agent, as a list of words")
    return AcpProvider(name=name, settings=settings, environ=place.environ)


@dataclass(kw_only=True)
class AcpProvider(CommandProvider):
    """Makes turns with an ACP agent."""

    def ask(self, call: CommandCall) -> Answer:
        folder = SessionFolder(path=call.request.sessions or f"{call.folder}/session")
        try:
            cwd = self._workplace(call, folder)
        except OSError:  # an agent can make its home unusable
            folder.clear()
            cwd = self._workplace(call, folder)
        known = folder.read().get(self.name)
        usable = known is not None and known.session_id is not None and not known.given_up
        if known is not None and (not usable or (known.program, known.cwd) != (ACP, cwd)):
            known = None
        new = None if known is None else news(call.request, known.told)
        record = SessionRecord(program=ACP, cwd=cwd, session_id=None, told=request_digests(call.request))
        if known is not None and new is not None:
            record = known
        with (
            self.confined(call, folder=folder.path, home=folder.home) as confined,
            ProgramOutput(call.folder) as output,
            call.request.permissions or contextlib.nullcontext(),
        ):
            try:
                conversation = _Conversation(self, call, folder, record, new or GO_ON, confined)
            except ImportError as error:
                words = f"needs a library that is not installed ({error.name}): install farro[agents]"
                raise self.trouble(words, retryable=False, charged=False) from None
            try:
                report = self._report_of(conversation, output)
            except ProviderTrouble as trouble:
                trouble.cost_usd = None if conversation.turn.loaded else conversation.reader.cost_usd
                raise
        return self._answer_of(conversation, report)

    def _workplace(self, call: CommandCall, folder: SessionFolder) -> str:
        folder.make()
        cwd = f"{folder.home}/{_WORK}" if self.settings.workspace == "temp" else call.root
        if cwd != call.root:
            with contextlib.suppress(FileExistsError):
                fs.mkdir_private(cwd)
        return os.path.realpath(cwd)

    def _report_of(self, conversation: _Conversation, output: ProgramOutput) -> ReaderReport:
        """Start the agent, make the turn, end the agent, and return what was said."""
        call, confined, turn = conversation.call, conversation.confined, conversation.turn
        until_s = time.monotonic() + call.request.timeout_s
        (stdin, to_agent), (from_agent, stdout) = os.pipe(), os.pipe()
        try:
            command = self._command(call, conversation.folder, conversation.cwd, stdin, stdout)
            with self.started(call, command, confined=confined, output=output) as running:
                try:
                    event_loop.run(
                        lambda: turn.run(to_agent, from_agent),
                        max(until_s - time.monotonic(), 0.0),
                        while_waiting=lambda: conversation.watch(running),
                    )
                except event_loop.OutOfTime:
                    raise self.out_of_time(call) from None
                code = self._exit_code(call, running)
        finally:
            if not turn.pipes.opened:
                os.close(to_agent)
                os.close(from_agent)
        confined.end_leftovers()
        said = output.last_words()
        conversation.flush()
        report = conversation.reader.end(0 if conversation.reader.finished else code, said)
        self.check_violation(confined, said if report.trouble is not None else "")
        return report

    def _command(self, call: CommandCall, folder: SessionFolder, cwd: str, stdin: int, stdout: int) -> ProviderCommand:
        own = named(self.environ, (*ALWAYS, *self.settings.environment))
        return ProviderCommand(
            words=tuple(word.replace("{model}", call.request.model or "") for word in self.settings.command or ()),
            env={**own, **call.request.env, "HOME": folder.home, "FARRO_ROOT": call.root},
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            most_output=_MOST,
        )

    def _exit_code(self, call: CommandCall, running: RunningCommand) -> int:
        """Give the agent a moment to end by itself; return its exit code."""
        until_s = time.monotonic() + _EXIT_S
        while (ended := running.process.wait(SLICE_S)) is None:
            if call.stopped.is_set() or time.monotonic() >= until_s:
                return _ENDED
        return ended.code

    def _answer_of(self, conversation: _Conversation, report: ReaderReport) -> Answer:
        """Return the answer of a turn, and keep its session; or raise its trouble."""
        call, folder, loaded = conversation.call, conversation.folder, conversation.turn.loaded
        cost_usd = None if loaded else report.cost_usd  # the agent tells that of the whole session
        if report.trouble is not None:
            trouble = report.trouble
            if trouble.kind == "denied" or (trouble.kind == "failed" and loaded):
                # It would bring the same trouble again.
                folder.write(self.name, replace(conversation.record, given_up=True))
            redact = Redactor.of_variables(self.settings.environment, self.environ).text
            raise trouble.saying(f"provider {self.name}: {redact(str(trouble))}", usage=report.usage, cost_usd=cost_usd)
        text, record = report.text or "", conversation.record
        told = unique((*record.told, *digests(call.request.messages), digest(text)))
        folder.write(self.name, replace(record, told=told))
        return Answer(
            text=text,
            whole=conversation.reader.whole,
            usage=report.usage,
            cost_usd=cost_usd,
            session_id=record.session_id,
            denied=report.denied,
            files=unique([path.removeprefix(f"{os.path.realpath(call.root)}/") for path in report.files]),
        )


class _Conversation:
    """One turn and what watches over it: progress, the record of the session, and the idle timeout."""

    def __init__(
        self,
        provider: AcpProvider,
        call: CommandCall,
        folder: SessionFolder,
        record: SessionRecord,
        news: str,
        confined: Confined,
    ) -> None:
        # Imported here, because the library takes half a second.
        from farro.agents.acp.permission_policy import PermissionPolicy
        from farro.agents.acp.turn import AgentTurn, TurnPlan
        from farro.agents.acp.turn_reader import TurnReader

        self.call, self.folder, self.record, self.confined, self.cwd = call, folder, record, confined, record.cwd
        self._provider = provider
        self._lines: deque[str] = deque()
        self._gone_s: float | None = None  # when the agent was found to have ended
        self.reader: TurnReader = TurnReader(self._lines.append)
        self._policy: PermissionPolicy = PermissionPolicy(
            settings=provider.settings,
            may_write=confined.may_write,
            cwd=self.cwd,
            box=call.request.permissions,
            on_progress=self.reader.progress,
        )
        plan = TurnPlan(
            cwd=self.cwd,
            prompt=prompt_text(call.request),
            session_id=record.session_id,
            news=news,
            permit=self._policy.permit,
        )
        self.turn: AgentTurn = AgentTurn(plan, self.reader)

    def watch(self, running: RunningCommand) -> None:
        """Look after the agent. Runs often on the thread of the call; raises the trouble that ends it."""
        running.check()
        self.flush()
        session = self.turn.session_id
        if session is not None and session != self.record.session_id and is_session_id(session):
            told = request_digests(self.call.request)
            self.record = replace(self.record, session_id=session, told=told)
            self.folder.write(self._provider.name, self.record)
        now_s = time.monotonic()
        if running.process.wait(0) is not None:
            self._gone_s = self._gone_s or now_s
            if now_s - self._gone_s > _EXIT_S:  # what it started holds its output open
                raise self._provider.trouble("ended in the middle of its work", kind="cut", retryable=True)
        idle_s = self.call.request.idle_timeout_s
        if idle_s is not None and now_s - max(self.turn.pipes.last_s, self._policy.asked_s) >= idle_s:
            raise self._provider.trouble(f"no progress for {idle_s:g} s", kind="timed_out", retryable=True)

    def flush(self) -> None:
        """Pass progress on, from the thread of the call."""
        while self._lines:
            line = self._lines.popleft()
            if self.call.request.progress is not None:
                self.call.request.progress(line)
