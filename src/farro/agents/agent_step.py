"""Run one agent step: gather the material, ask a provider, read the answer, ask again if its form is wrong.

The result of a plan gets the answer as data and as Markdown, with its cost.

What survives a crash: a call is in the ledger before it is made, and its answer is in the attempt's folder before the
call is settled and before the step writes anything. The next attempt asks the same question, finds the answer, and
settles the call that brought it: the cost is neither lost nor counted twice. A worker that dies before the answer is
recorded leaves a call that counts as the most that it may have cost.
"""

from __future__ import annotations

import contextlib
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from hashlib import sha256
from typing import BinaryIO

from farro.agents import request as requests
from farro.agents.accounts import AccountGate
from farro.agents.agent_report import agent_report
from farro.agents.call_records import (
    AnswerFolder,
    RecordedAnswer,
    answers_of_earlier_attempts,
    remove_private_folders,
)
from farro.agents.exchange_records import SHARE, ExchangeRecorder
from farro.agents.permissions import PermissionBox
from farro.agents.provider_calls import (
    AllProvidersFailed,
    CallTry,
    ProviderCaller,
    ProviderCandidate,
    budgets_of,
    open_candidates,
    providers_of_role,
)
from farro.agents.providers.port import (
    Answer,
    ChatMessage,
    PricedProvider,
    Provider,
    ProviderTrouble,
    Reach,
    Request,
)
from farro.agents.request import PAYLOAD, PAYLOAD_VARIABLE, RequestMaterial, gather, job_folder
from farro.agents.session_folder import SessionFolder
from farro.config.settings import ProviderSettings, RoleSettings, Settings
from farro.errors import BadDocument, BudgetExceeded, FarroError, InputError, TryAgain
from farro.execution import task_file
from farro.execution.results import PlanResult
from farro.execution.runner import Work
from farro.execution.size_limit import SNAPSHOT
from farro.execution.tools import Call, Function, StepFailure
from farro.host import fs
from farro.host.clock import Clock
from farro.jobs.outcomes import PATH_VIOLATION, Report
from farro.jobs.retry import Uniform
from farro.jobs.times import timestamp
from farro.lazy_dataclass import dataclass, replace
from farro.plans.model import Plan
from farro.roles import answers
from farro.roles import prompt as prompts
from farro.roles.money import exact
from farro.sandbox.redaction import Redactor
from farro.store.accounts import Accounts
from farro.store.ledger import CallEnd, Charge, Ledger, Prices, Usage


@dataclass(frozen=True, kw_only=True)
class Agents:
    """Runs the agent steps of a root. One object for all slots of a worker."""

    settings_of: Callable[[str], Settings]  # loads the config in a folder: the job's own snapshot
    provider: Callable[[str, ProviderSettings], Provider]  # returns the same provider for the same settings
    ledger: Ledger
    prices: Callable[[Mapping[str, ProviderSettings]], Prices]
    redactor: Callable[[Settings], Redactor]
    clock: Clock
    uniform: Uniform
    accounts: Accounts | None = None  # None: paused accounts are called, too

    def tool(self, work: Work, plan: Plan) -> Function:
        """Return the function of a plan's steps whose tool is `agent`."""
        return lambda call: _Step(self, work, plan, call).run()

    def report(self, work: Work, result: PlanResult, plain: Report) -> Report:
        """Add the role's answer and its cost to the report of a plan."""
        return agent_report(work, result, plain, self.ledger.of_job(work.job_id))


class _Step:
    """One agent step of one attempt."""

    def __init__(self, agents: Agents, work: Work, plan: Plan, call: Call) -> None:
        self._agents = agents
        self._work = work
        self._plan = plan
        self._call = call
        self._role = work.role if prompts.is_agent_prompt(work.prompt) else call.command

    def run(self) -> None:
        """Write the answer to stdout; raises StepFailure if there is none. Neither contains a secret."""
        redact: Callable[[str], str] = str
        try:
            settings = self._agents.settings_of(f"{self._work.folder}/{SNAPSHOT}")
            redactor = self._agents.redactor(settings)
            redact = redactor.text
            self._call.stdout.write(self._answer(settings, redactor).encode("utf-8", "replace"))
        except StepFailure as failure:
            raise failure.saying(redact(str(failure))) from None
        except BudgetExceeded as exceeded:
            before = _failure_of(self._work.earlier[-1]) if self._work.earlier else None
            message = str(exceeded) if before is None else f"{before}. It was not tried again: {exceeded}"
            raise StepFailure("budget_exceeded", redact(message), exit_code=exceeded.exit_code) from None
        except BadDocument as bad:
            raise StepFailure("bad_prompt", redact(str(bad)), exit_code=bad.exit_code) from None
        except ProviderTrouble as trouble:
            raise _failure(trouble, redact(str(trouble))) from None
        except (FarroError, OSError) as error:
            passing = isinstance(error, (TryAgain, OSError))
            raise StepFailure("provider_refused", redact(str(error)), retryable=passing) from None
        except Exception as error:  # noqa: BLE001 - a traceback may contain the prompt: it is redacted
            self._call.stderr.write(redact(traceback.format_exc()).encode("utf-8", "replace"))
            raise StepFailure("internal_error", redact(f"{type(error).__name__}: {error}")) from None

    def _answer(self, settings: Settings, redactor: Redactor) -> str:
        role = settings.roles.get(self._role, RoleSettings())
        material = gather(self._work, self._plan, role, name=self._role, args=self._call.args, stdin=self._call.stdin)
        calls = _Calls(
            agents=self._agents,
            work=self._work,
            call=self._call,
            settings=settings,
            role=role,
            role_name=self._role,
            candidates=self._candidates(settings),
            material=material,
            redactor=redactor,
        )
        messages: tuple[ChatMessage, ...] = (ChatMessage(author="user", text=requests.user_text(material)),)
        problems: list[str] = []
        advice = ""  # for people, not for the provider
        for _ in range(role.repairs + 1):
            answer = calls.ask(messages)
            read = answers.read(self._role, answer.text)
            if answer.whole and not isinstance(read, list):
                return answer.text if isinstance(read, answers.FreeText) else _as_json(read)
            problems = [problem.render("answer") for problem in read] if isinstance(read, list) else []
            advice = "" if answer.whole else f". Raise roles.{self._role}.max_output_tokens for a longer answer"
            if not answer.whole:  # also if it can be read: the missing end may have changed its meaning
                problems.append("it was cut off at the end: be shorter")
            again = requests.repair_text(problems)
            more = (ChatMessage(author="assistant", text=answer.text), ChatMessage(author="user", text=again))
            messages = (*messages, *more)
        listed = "; ".join(problems[:5])
        message = (
            f"{self._role} gave no answer of the expected form, even after {role.repairs} repairs: {listed}{advice}"
        )
        raise StepFailure("bad_answer", message)

    def _candidates(self, settings: Settings) -> list[ProviderCandidate]:
        """Return the providers to call, in order."""
        try:
            wanted = providers_of_role(settings, self._role)
        except InputError as missing:
            raise StepFailure("no_provider", str(missing), exit_code=missing.exit_code) from None
        return open_candidates(settings, wanted, self._agents.provider)


@dataclass(kw_only=True)
class _Calls:
    """The calls of one step. Each is in the ledger, and its answer on the disk, before anything depends on it."""

    agents: Agents
    work: Work
    call: Call
    settings: Settings
    role: RoleSettings
    role_name: str
    candidates: Sequence[ProviderCandidate]
    material: RequestMaterial
    redactor: Redactor

    def __post_init__(self) -> None:
        self._step = self.call.env[task_file.STEP]
        self._files = AnswerFolder(attempt_dir=self.work.folder, step=self._step, durable=self.work.durable)
        self._files.make_folder()
        self._files.forget_diff()
        remove_private_folders(self.work.earlier, self._step)
        most = self.settings.security.max_job_bytes // SHARE
        self._exchanges = ExchangeRecorder(self._files.folder, self.redactor, most_bytes=most)
        self._system = requests.system_text(self.material)
        self._earlier = answers_of_earlier_attempts(self.work.earlier, self._step)
        self.prices = self.agents.prices(self.settings.providers)
        self._made = 0  # calls so far
        self._messages: tuple[ChatMessage, ...] = ()
        self._digest = ""
        self._call_id = ""

    def ask(self, messages: tuple[ChatMessage, ...]) -> Answer:
        """Return the answer to the last message: one that an earlier attempt recorded, else a new one."""
        self._messages = messages
        self._digest = self._question_digest(messages)
        if self._digest in self._earlier:
            recorded, home = self._earlier[self._digest]
            self._files.take_over(home)
            answer = recorded.answer
            self._settle(recorded.call_id, end="answered", usage=answer.usage, cost_usd=answer.cost_usd)
            self._made += 1
            self._files.keep(self._made, recorded)
            return answer
        caller = ProviderCaller(
            make_request=lambda candidate, number: self._request(messages, candidate, number),
            reserve=self._reserve,
            settle=self._settle,
            prices=self.prices,
            clock=self.agents.clock,
            uniform=self.agents.uniform,
            on_answer=self._keep,
            on_try=self._report_try,
            gate=self._gate(),
        )
        return caller.call(self.candidates, first_number=self._made + 1).answer

    def _gate(self) -> AccountGate | None:
        agents = self.agents
        if agents.accounts is None:
            return None
        return AccountGate(
            accounts=agents.accounts,
            settings=self.settings,
            clock=agents.clock,
            uniform=agents.uniform,
            redact=self.redactor.text,
        )

    def _keep(self, candidate: ProviderCandidate, answer: Answer) -> Answer:
        """Record an answer that has just come on the disk, without secrets."""
        if answer.diff:
            self._files.keep_diff(self.redactor.data(answer.diff))
        clean = replace(answer, text=self.redactor.text(answer.text), diff=b"")
        recorded = RecordedAnswer(
            request_sha256=self._digest,
            call_id=self._call_id,
            provider=candidate.name,
            model=candidate.model,
            answer=clean,
            asked=self.redactor.text(question_text(self._system, self._messages)),
        )
        self._files.keep(self._made, recorded)
        return clean

    def _question_digest(self, messages: tuple[ChatMessage, ...]) -> str:
        """Hash the question. The same question of a later attempt has the same digest."""
        said = [[message.author, message.text] for message in messages]
        asked = [[one.name, one.model] for one in self.candidates]
        return sha256(json.dumps([self._system, said, asked]).encode("utf-8", "surrogatepass")).hexdigest()

    def _request(self, messages: tuple[ChatMessage, ...], candidate: ProviderCandidate, number: int) -> Request:
        described = self.settings.providers[candidate.name]
        live = _LiveOutput(self.redactor, self.call.stderr)
        own = {name: self.call.env[name] for name in self.call.env if name.startswith("FARRO_")}
        if self.material.payload:
            own[PAYLOAD_VARIABLE] = f"{job_folder(self.work)}/{PAYLOAD}"
        sessions = SessionFolder.of_step(self.work.root, self.work.job_id, self.role_name, self._step).path
        return Request(
            key=f"{self.work.job_id}/{self.work.attempt:04d}/{self._step}/{number}",
            system=self._system,
            messages=messages,
            model=candidate.model,
            max_output_tokens=self.role.max_output_tokens or described.max_output_tokens,
            timeout_s=self.settings.call_timeout_s(candidate.name, self.role),
            role=self.role_name,
            partial=live if described.stream else None,
            progress=live.show,
            folder=self._files.folder,
            sessions=sessions,
            idle_timeout_s=self.settings.idle_timeout_s(candidate.name),
            meter=_StepMeter(self, candidate, number) if described.uses_gateway else None,
            keep=self._exchanges.of_call(number) if described.uses_gateway else None,
            permissions=PermissionBox(
                folder=sessions,
                role=self.role_name,
                now=lambda: timestamp(self.agents.clock.now()),
                redact=self.redactor.text,
            ),
            env=own,
            reach=Reach(
                root=self.work.root,
                writable=() if self.role.read_only else self.material.allowed_paths,
                reads=(*self.role.read_paths, *((own[PAYLOAD_VARIABLE],) if self.material.payload else ())),
                network=self.role.network,
                guarding=self.work.guarding,
            ),
        )

    def _reserve(self, candidate: ProviderCandidate, request: Request, number: int) -> str:
        if not fs.exists(self.work.folder):
            # The exception that ends this thread may come late, or a library may swallow it.
            raise StepFailure("lost", "the job was taken away: no further call is made for it")
        self._made = number
        self._call_id = ""
        if request.meter is not None:  # which reserves each request to a model
            return ""
        most = self.prices.most_usd(
            candidate.name,
            candidate.model,
            prompt_bytes=request.prompt_bytes,
            max_output_tokens=request.max_output_tokens,
        )
        if isinstance(candidate.provider, PricedProvider):
            most = max(candidate.provider.most_usd(request), most or Decimal(0))
        charge = self.charge(candidate, number, candidate.model, most)
        described = self.settings.providers[candidate.name]
        if isinstance(candidate.provider, PricedProvider):  # its price comes from a file or the config, not from tokens
            charge = replace(charge, lower=f"lower cost_usd in {described.file or 'its file'}")
        elif described.call_usd is not None and most == exact(described.call_usd):
            charge = replace(charge, lower=_lower_call_usd(candidate.name))
        self._call_id = self.agents.ledger.reserve(
            charge, budgets_of(self.settings, self.role.budget_usd, candidate.name)
        )
        return self._call_id

    def charge(self, candidate: ProviderCandidate, number: int, model: str | None, most_usd: Decimal | None) -> Charge:
        return Charge(
            job_id=self.work.job_id,
            attempt=self.work.attempt,
            role=self.role_name,
            step=self._step,
            number=number,
            provider=candidate.name,
            model=model,
            request_sha256=self._digest,
            most_usd=most_usd,
        )

    def _settle(self, call_id: str, *, end: CallEnd, usage: Usage | None, cost_usd: Decimal | None) -> None:
        if call_id:  # else a meter has settled each request
            self.agents.ledger.settle(call_id, end=end, usage=usage, cost_usd=cost_usd)

    def _report_try(self, tried: CallTry) -> None:
        """Write why a call failed to the step's stderr, for people who watch."""
        if tried.message:
            self.call.stderr.write(f"{self.redactor.text(tried.message)}\n".encode("utf-8", "replace"))
            self.call.stderr.flush()


def _lower_call_usd(provider: str) -> str:
    return f"lower providers.{provider}.call_usd, if a call costs less"


_BYTES_A_TOKEN = 3  # of a request with its tools, at least


class _StepMeter:
    """Records each request that a program makes through the gateway in the ledger (port: Meter)."""

    def __init__(self, calls: _Calls, candidate: ProviderCandidate, number: int) -> None:
        self._calls = calls
        self._candidate = candidate
        self._number = number
        self._guessed = False  # a request of unknown price was reserved

    def reserve(self, model: str | None, prompt_bytes: int, max_output_tokens: int | None) -> str:
        """Reserve an estimate: programs ask for far more tokens than an answer has."""
        calls, name = self._calls, self._candidate.name
        usual = calls.role.max_output_tokens or calls.settings.providers[name].max_output_tokens
        most = calls.prices.most_usd(
            name,
            model or self._candidate.model,
            prompt_bytes=prompt_bytes // _BYTES_A_TOKEN,
            max_output_tokens=min(max_output_tokens or usual, usual),
        )
        guess = calls.settings.providers[name].call_usd
        unpriced = guess is not None and most == exact(guess)
        if unpriced:
            # Its price is unknown. `call_usd` is the most that the whole run may cost, not each request.
            most, self._guessed = (Decimal(0) if self._guessed else most), True
        charge = calls.charge(self._candidate, self._number, model or self._candidate.model, most)
        if unpriced:
            charge = replace(charge, lower=_lower_call_usd(name))
        return calls.agents.ledger.reserve(charge, budgets_of(calls.settings, calls.role.budget_usd, name))

    def settle(self, call_id: str, end: CallEnd, usage: Usage | None, model: str | None) -> Decimal | None:
        calls, name = self._calls, self._candidate.name
        cost_usd = None if usage is None else calls.prices.cost_usd(name, model or self._candidate.model, usage)
        calls.agents.ledger.settle(call_id, end=end, usage=usage, cost_usd=cost_usd)
        return cost_usd


class _LiveOutput:
    """Write what a provider streams to the step's stderr, without secrets, for people who watch."""

    def __init__(self, redactor: Redactor, stderr: BinaryIO) -> None:
        self._stderr = stderr
        self._stream = redactor.stream(self._write)
        self._open_line = False

    def write(self, data: bytes, /) -> int:
        return self._stream.write(data)

    def show(self, line: str) -> None:
        """Write a whole line at once: no part of it is held back, as the beginning of a secret would be."""
        with contextlib.suppress(ValueError):  # it is closed: the step is over
            self._stream.write(f"{line}\n".encode("utf-8", "replace"))
            self._stream.close()
            self._stderr.flush()

    def flush(self) -> None:
        self._stderr.flush()

    def close(self) -> None:
        """End an open line, so that the next message or call begins a line of its own."""
        self._stream.close()
        if self._open_line:
            self._write(b"\n")
        self._stderr.flush()

    def _write(self, data: bytes) -> int:
        self._open_line = not data.endswith(b"\n") if data else self._open_line
        return self._stderr.write(data)


def _failure(trouble: ProviderTrouble, message: str) -> StepFailure:
    if trouble.violation:
        return StepFailure(PATH_VIOLATION, message)
    if isinstance(trouble, AllProvidersFailed) and trouble.wait is not None:
        return StepFailure("account_paused", message, wait=trouble.wait)
    never_asked = not (trouble.charged or trouble.retryable)
    if trouble.kind in ("refused", "denied") or never_asked:
        return StepFailure("provider_refused", message, retryable=trouble.retryable)
    again, wait_s = trouble.retryable, trouble.retry_after_s
    return StepFailure("provider_unavailable", message, retryable=again, retry_after_s=wait_s)


def question_text(system: str, messages: Sequence[ChatMessage]) -> str:
    """Return a question as one text, to show what was asked, or why the same job now asks something else."""
    return "\n".join([system, *(f"[{message.author}]\n{message.text}" for message in messages)])


def _as_json(answer: answers.RoleAnswer) -> str:
    return json.dumps(asdict(answer), ensure_ascii=False, indent=2) + "\n"


_LIMIT = 8 << 20


def _failure_of(attempt_dir: str) -> str | None:
    """Return why an earlier attempt failed; None if it succeeded or was killed."""
    try:
        result = json.loads(fs.read_bytes(f"{attempt_dir}/result.json", _LIMIT))
        error = result["error"]
        return None if error is None else f"{error['message']}"
    except (OSError, ValueError, LookupError, TypeError):
        return None
