"""Turn words into steps: ask a model, parse and check its answer, ask for repairs, then have the plan reviewed.

Nothing is run. Every call is reserved and settled in the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from hashlib import sha256
from typing import Any, Literal

from farro.agents.service import (
    Answer,
    CallTry,
    ChatMessage,
    Provider,
    ProviderCaller,
    ProviderCandidate,
    Reach,
    Request,
    Usage,
    budgets_of,
    open_candidates,
    providers_of_role,
)
from farro.agx import model_answer as answers
from farro.agx import model_prompt
from farro.config.settings import FallbackSettings, ProviderSettings, RoleSettings, Settings
from farro.documents import Document
from farro.errors import BudgetExceeded, FarroError, InputError
from farro.execution.commands import AGENT, UNIX
from farro.execution.runner import Guarding
from farro.execution.tool_catalog import ToolInfo
from farro.host.clock import Clock
from farro.host.processes import MARKER
from farro.jobs.retry import Uniform
from farro.lazy_dataclass import dataclass, field
from farro.plans import editing
from farro.queue import plan_check
from farro.queue.plan_check import PlanContext
from farro.sandbox.redaction import Redactor
from farro.store.ledger import CallEnd, Charge, Ledger, Prices

ROLE = "Planner"  # what the ledger calls it
DESIGNER = "Architect"  # its provider plans where the config names none for agx
REPAIRS = 3
_QUOTED = 8000  # characters of a wrong answer that are quoted in the request for a repair
_WISH = 20_000

Review = Literal["ok", "corrected", "unusable", "skipped"]


class NoPlan(FarroError):
    """The model gave no usable steps. The draft is unchanged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    plan: Mapping[str, Any]  # the draft with what was added
    added: int
    review: Review
    objections: tuple[str, ...] = ()  # of the review, where it had some
    warnings: tuple[str, ...] = ()
    provider: str = ""
    model: str | None = None
    calls: int = 0
    cost_usd: Decimal | None = None  # None: unknown


@dataclass(kw_only=True)
class Planner:
    """Turn one request in words into steps. `name` identifies its calls in the ledger."""

    name: str
    root: str
    folder: str  # empty, for the files of providers that are programs; they may write nowhere else
    settings: Settings
    context: PlanContext
    tools: Sequence[ToolInfo]
    provider: Callable[[str, ProviderSettings], Provider]
    ledger: Ledger
    prices: Prices
    redactor: Redactor
    clock: Clock
    uniform: Uniform
    on_try: Callable[[CallTry], None] = field(default=lambda _: None)

    def __post_init__(self) -> None:
        self._made = 0
        self._cost: Decimal | None = Decimal(0)
        self._who = ("", None)  # type: tuple[str, str | None]
        self._digest = ""

    def propose(self, wish: str, draft: Mapping[str, Any], *, review: bool = True) -> Proposal:
        """Return the draft with added steps.

        Raise InputError where no provider is configured or the draft cannot be extended, NoPlan where the model gave no
        usable steps, ProviderTrouble where no provider answered, BudgetExceeded where it would cost too much.
        """
        if not wish.strip():
            raise InputError("say what shall happen, such as: agx add 'count the lines of every log'")
        if len(wish) > _WISH:
            raise InputError(f"that is {len(wish)} characters; at most {_WISH} are taken")
        had = editing.steps_of(draft)
        candidates = open_candidates(self.settings, asked(self.settings), self.provider)
        shown = {"steps": editing.as_numbered(had)}
        told: tuple[str, ...] = ()
        outcome: Review = "skipped"
        try:
            steps = self._planned(candidates, wish, shown)
            if review:
                outcome, told, steps = self._reviewed(candidates, wish, shown, steps)
        finally:
            for candidate in candidates:
                candidate.provider.close()
        plan = {**draft, "steps": editing.joined(had, steps)}
        return Proposal(
            plan=plan,
            added=len(steps),
            review=outcome,
            objections=told,
            warnings=self._warnings(plan),
            provider=self._who[0],
            model=self._who[1],
            calls=self._made,
            cost_usd=self._cost,
        )

    def _planned(
        self, candidates: Sequence[ProviderCandidate], wish: str, draft: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], ...]:
        system = model_prompt.system(model_prompt.PLAN, self.tools)
        messages: tuple[ChatMessage, ...] = (ChatMessage(author="user", text=model_prompt.request(wish, draft)),)
        problems: Sequence[str] = ()
        for _ in range(REPAIRS + 1):
            come = self._ask(candidates, system, messages)
            said = answers.read(come.text, after=len(draft["steps"]))
            if said.cannot is not None:
                raise NoPlan(f"the model says that it cannot be planned: {said.cannot}")
            problems = said.problems or self._problems(draft, said.steps)
            if not problems:
                return said.steps
            if not come.whole:
                problems = [*problems, "it was cut off at the end: answer shorter"]
            quoted = ChatMessage(author="assistant", text=come.text[:_QUOTED])
            messages = (messages[0], quoted, ChatMessage(author="user", text=model_prompt.repair(problems)))
        raise NoPlan(
            f"no usable plan after {REPAIRS} repairs: {'; '.join(problems[:3])}. The draft is as it "
            "was; say it in other words, or add commands: agx add -- COMMAND"
        )

    def _reviewed(
        self,
        candidates: Sequence[ProviderCandidate],
        wish: str,
        draft: Mapping[str, Any],
        steps: tuple[Mapping[str, Any], ...],
    ) -> tuple[Review, tuple[str, ...], tuple[Mapping[str, Any], ...]]:
        """Ask for a review. Its corrections are checked by the same rules as the first answer."""
        system = model_prompt.system(model_prompt.REVIEW, self.tools)
        messages: tuple[ChatMessage, ...] = (ChatMessage(author="user", text=model_prompt.review(wish, draft, steps)),)
        objections: tuple[str, ...] = ()
        for _ in range(2):
            come = self._ask(candidates, system, messages)
            said = answers.read(come.text, after=len(draft["steps"]), review=True)
            objections = said.objections or objections
            if said.ok:
                return "ok", (), steps
            problems = said.problems or self._problems(draft, said.steps)
            if not problems:
                return "corrected", objections, said.steps
            quoted = ChatMessage(author="assistant", text=come.text[:_QUOTED])
            messages = (messages[0], quoted, ChatMessage(author="user", text=model_prompt.repair(problems)))
        return "unusable", objections, steps

    def _problems(self, draft: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> list[str]:
        """Collect the problems of the whole plan, and unknown tools."""
        whole = editing.joined(draft["steps"], steps)
        checked = plan_check.check(Document({"steps": whole}, "plan"), self.context)
        found = [problem.render("plan") for problem in checked.problems]
        known = {UNIX, AGENT, *(tool.name for tool in self.tools if tool.usable)}
        for index, step in enumerate(steps):
            tool = step.get("tool", UNIX)
            if isinstance(tool, str) and tool not in known:
                there = ", ".join(sorted(known - {AGENT}))
                found.append(f"steps[{index}].tool: there is no tool {tool!r} here; known: {there}")
        return found

    def _warnings(self, plan: Mapping[str, Any]) -> tuple[str, ...]:
        checked = plan_check.check(Document(dict(plan), "draft"), self.context)
        return tuple(problem.render("draft") for problem in (*checked.problems, *checked.warnings))

    def _ask(self, candidates: Sequence[ProviderCandidate], system: str, messages: tuple[ChatMessage, ...]) -> Answer:
        system = self.redactor.text(system)
        messages = tuple(ChatMessage(author=one.author, text=self.redactor.text(one.text)) for one in messages)
        said = [[one.author, one.text] for one in messages]
        self._digest = sha256(json.dumps([system, said]).encode("utf-8", "surrogatepass")).hexdigest()
        caller = ProviderCaller(
            make_request=lambda candidate, number: self._request(system, messages, candidate, number),
            reserve=self._reserve,
            settle=self._settle,
            prices=self.prices,
            clock=self.clock,
            uniform=self.uniform,
            on_try=self.on_try,
        )
        answered = caller.call(candidates, first_number=self._made + 1)
        come, who = answered.answer, answered.candidate
        self._who = (who.name, come.model or who.model)
        return Answer(text=self.redactor.text(come.text), model=come.model, whole=come.whole)

    def _request(
        self, system: str, messages: tuple[ChatMessage, ...], candidate: ProviderCandidate, number: int
    ) -> Request:
        return Request(
            key=f"{self.name}/0001/plan/{number}",
            system=system,
            messages=messages,
            model=candidate.model,
            max_output_tokens=self.settings.providers[candidate.name].max_output_tokens,
            timeout_s=self.settings.call_timeout_s(candidate.name),
            role=ROLE,
            folder=self.folder,
            env={MARKER: self.folder},
            reach=Reach(root=self.root, guarding=Guarding.of(self.settings.security)),
        )

    def _reserve(self, candidate: ProviderCandidate, request: Request, number: int) -> str:
        self._made = number
        most = self.prices.most_usd(
            candidate.name,
            candidate.model,
            prompt_bytes=request.prompt_bytes,
            max_output_tokens=request.max_output_tokens,
        )
        charge = Charge(
            job_id=self.name,
            attempt=1,
            role=ROLE,
            step="plan",
            number=number,
            provider=candidate.name,
            model=candidate.model,
            request_sha256=self._digest,
            most_usd=most,
        )
        try:
            return self.ledger.reserve(charge, budgets_of(self.settings, self.settings.agx.budget_usd))
        except BudgetExceeded as exceeded:  # the ledger names a role's budget; the planner has its own key
            raise BudgetExceeded(str(exceeded).replace(f"roles.{ROLE}.budget_usd", "agx.budget_usd")) from None

    def _settle(self, call_id: str, *, end: CallEnd, usage: Usage | None, cost_usd: Decimal | None) -> None:
        if end != "not_charged":
            self._cost = None if self._cost is None or cost_usd is None else self._cost + cost_usd
        self.ledger.settle(call_id, end=end, usage=usage, cost_usd=cost_usd)


def asked(settings: Settings) -> tuple[FallbackSettings, ...]:
    """Choose the planner's providers: those of `agx` in the config, else the Architect's, else the first one."""
    own = settings.agx
    if own.provider is not None:
        if own.provider not in settings.providers:
            there = ", ".join(settings.providers) or "none"
            raise InputError(f"agx.provider names {own.provider}, and `providers` does not have it; known: {there}")
        return (FallbackSettings(provider=own.provider, model=own.model),)
    if not settings.providers:
        raise InputError(
            "no model can turn words into steps: the config has no `providers`. `farro init --agents claude` (or "
            "codex, or gemini) adds one, and `agx: {provider: NAME}` chooses among several. Commands need none: "
            "agx add -- sort -u names.txt"
        )
    if settings.roles.get(DESIGNER, RoleSettings()).provider is not None:
        first, *rest = providers_of_role(settings, DESIGNER)
        return (FallbackSettings(provider=first.provider, model=own.model or first.model), *rest)
    return (FallbackSettings(provider=next(iter(settings.providers)), model=own.model),)
