"""The agent tool: one step that a provider answers. Gather → ask → read → ask again where the form is wrong → say.

Retries and fallbacks live in calling, what a call costs in the ledger, what the answer means in roles.answers.

What survives a crash: a call is in the ledger before it is made, and its answer is in the attempt's folder before it is
settled and before the step says anything. The next attempt asks the same question, finds the answer, and settles the
call that brought it: the cost is neither lost nor doubled. A worker that dies before the answer is kept leaves a call
that counts as the most that it may have cost.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from hashlib import sha256
from typing import Protocol

from farro.errors import BadDocument, BudgetExceeded, FarroError
from farro.execution.agents import briefing
from farro.execution.agents.briefing import Material
from farro.execution.agents.calling import Candidate, NobodyAnswered, call_in_turn
from farro.execution.agents.calls import Bought, Calls, bought_before
from farro.execution.agents.material import SNAPSHOT, gather, job_folder
from farro.execution.tools import Call, Function, StepFailure
from farro.kernel.retry import Uniform
from farro.plans.model import Plan
from farro.ports.clock import Clock
from farro.ports.ledger import Budgets, CallEnd, Charge, Ledger, Prices
from farro.ports.provider import Answer, Message, Provider, ProviderTrouble, Reach, Request, Usage
from farro.ports.runner import Work
from farro.roles import answers
from farro.roles import prompt as prompts
from farro.settings import ProviderSettings, RoleSettings, Settings

NETWORK_KINDS = ("cli",)


class Redact(Protocol):
    """Takes secrets out of a text (guard.redaction)."""

    def text(self, text: str, /) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Agents:
    """Answers the agent steps of a root. One for all slots of a worker."""

    root: str
    settings_of: Callable[[str], Settings]  # the config in a folder: the job's own snapshot
    provider: Callable[[str, ProviderSettings], Provider]  # the same one for the same settings
    ledger: Ledger
    prices: Callable[[Mapping[str, ProviderSettings]], Prices]
    redactor: Callable[[Settings], Redact]
    clock: Clock
    uniform: Uniform

    def tool(self, work: Work, plan: Plan) -> Function:
        """What a step of that plan calls, whose tool is `agent`."""
        return lambda call: _Step(self, work, plan, call).run()


class _Step:
    """One agent step of one attempt."""

    def __init__(self, agents: Agents, work: Work, plan: Plan, call: Call) -> None:
        self._agents = agents
        self._work = work
        self._plan = plan
        self._call = call
        self._role = work.role if prompts.is_agent_prompt(work.prompt) else call.command
        self._step = call.env["FARRO_STEP"]
        self._calls = Calls(attempt_dir=work.folder, step=self._step, durable=work.durable)
        self._number = 0

    def run(self) -> None:
        """Write the answer to stdout; StepFailure when there is none. No secret is in what it says or raises."""
        redact: Callable[[str], str] = str
        try:
            settings = self._agents.settings_of(f"{job_folder(self._work)}/{SNAPSHOT}")
            redact = self._agents.redactor(settings).text
            self._call.stdout.write(self._answer(settings, redact).encode("utf-8", "replace"))
        except StepFailure as failure:
            category, retryable, code = failure.category, failure.retryable, failure.exit_code
            raise StepFailure(category, redact(str(failure)), retryable=retryable, exit_code=code) from None
        except BudgetExceeded as exceeded:
            raise StepFailure("budget_exceeded", str(exceeded), exit_code=exceeded.exit_code) from None
        except BadDocument as bad:
            raise StepFailure("bad_prompt", redact(str(bad)), exit_code=bad.exit_code) from None
        except NobodyAnswered as nobody:
            raise _failure(nobody, redact) from None
        except FarroError as error:
            raise StepFailure("provider_refused", redact(str(error)), exit_code=error.exit_code) from None
        except Exception as error:  # noqa: BLE001 - a bug's traceback may hold what a provider was told: it is redacted
            self._call.stderr.write(redact(traceback.format_exc()).encode("utf-8", "replace"))
            raise StepFailure("internal_error", redact(f"{type(error).__name__}: {error}")) from None

    def _answer(self, settings: Settings, redact: Callable[[str], str]) -> str:
        role = settings.roles.get(self._role, RoleSettings())
        candidates = self._candidates(settings, role)
        material = gather(
            self._work, self._plan, role, role_name=self._role, args=self._call.args, stdin=self._call.stdin
        )
        asked = _Asked(self, settings, role, candidates, material)
        messages: tuple[Message, ...] = (Message(author="user", text=briefing.user(material)),)
        for _ in range(role.repairs + 1):
            answer = asked.ask(messages)
            text = redact(answer.text)
            read = answers.read(self._role, text)
            if not isinstance(read, list):
                return read.text if isinstance(read, answers.Free) else _as_json(read)
            problems = [problem.render("answer") for problem in read]
            if not answer.whole:
                problems.append("it was cut off at the end: be shorter")
            more = (Message(author="assistant", text=text), Message(author="user", text=briefing.repair(problems)))
            messages = (*messages, *more)
        first = "; ".join(problems[:5])
        raise StepFailure(
            "bad_answer", f"{self._role} gave no answer of its form, also after {role.repairs} repairs: {first}"
        )

    def _candidates(self, settings: Settings, role: RoleSettings) -> list[Candidate]:
        """Who is asked, in turn."""
        name = role.provider or (next(iter(settings.providers)) if len(settings.providers) == 1 else None)
        if name is None:
            raise StepFailure(
                "no_provider",
                f"no provider is configured for {self._role}; name one under roles.{self._role}.provider, and describe "
                "it under providers, in agents-config.json",
                exit_code=2,
            )
        wanted = [(name, role.model), *((one.provider, one.model) for one in role.fallbacks)]
        found = []
        for provider, model in wanted:
            described = settings.providers.get(provider)
            if described is None:
                raise StepFailure("no_provider", f"there is no provider {provider} under providers", exit_code=2)
            made = self._agents.provider(provider, described)
            found.append(Candidate(name=provider, provider=made, model=model or described.model))
        return found

    def next_number(self) -> int:
        self._number += 1
        return self._number
