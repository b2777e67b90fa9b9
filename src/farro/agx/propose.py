"""Turn words into steps: ask a model, parse and check its answer, ask for repairs, then have the plan reviewed.

Nothing is run. Every call is reserved and settled in the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from farro.agx import drafting
from farro.config.settings import FallbackSettings, ProviderSettings, RoleSettings, Settings
from farro.documents import Document, Limits, parse_json, show
from farro.errors import BadDocument, BudgetExceeded, FarroError, InputError
from farro.execution.find_program import AGENT, UNIX
from farro.execution.runner import Guarding
from farro.execution.tool_catalog import ToolInfo
from farro.host import machine
from farro.host.clock import Clock
from farro.host.process_tree import MARKER
from farro.jobs.retry import Uniform
from farro.lazy_dataclass import dataclass, field
from farro.plans.model import MAX_STEPS
from farro.queue import plan_check
from farro.queue.plan_check import PlanContext
from farro.roles.answers import MAX_BYTES, objects
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
        had = drafting.steps_of(draft)
        candidates = open_candidates(self.settings, asked(self.settings), self.provider)
        shown = {"steps": drafting.as_numbered(had)}
        told: tuple[str, ...] = ()
        outcome: Review = "skipped"
        try:
            steps = self._planned(candidates, wish, shown)
            if review:
                outcome, told, steps = self._reviewed(candidates, wish, shown, steps)
        finally:
            for candidate in candidates:
                candidate.provider.close()
        plan = {**draft, "steps": drafting.joined(had, steps)}
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
        system = _system(PLAN, self.tools)
        messages: tuple[ChatMessage, ...] = (ChatMessage(author="user", text=_plan_question(wish, draft)),)
        problems: Sequence[str] = ()
        for _ in range(REPAIRS + 1):
            come = self._ask(candidates, system, messages)
            said = read_answer(come.text, after=len(draft["steps"]))
            if said.cannot is not None:
                raise NoPlan(f"the model says that it cannot be planned: {said.cannot}")
            problems = said.problems or self._problems(draft, said.steps)
            if not problems:
                return said.steps
            if not come.whole:
                problems = [*problems, "it was cut off at the end: answer shorter"]
            quoted = ChatMessage(author="assistant", text=come.text[:_QUOTED])
            messages = (messages[0], quoted, ChatMessage(author="user", text=_repair_question(problems)))
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
        system = _system(REVIEW, self.tools)
        messages: tuple[ChatMessage, ...] = (ChatMessage(author="user", text=_review_question(wish, draft, steps)),)
        objections: tuple[str, ...] = ()
        for _ in range(2):
            come = self._ask(candidates, system, messages)
            said = read_answer(come.text, after=len(draft["steps"]), review=True)
            objections = said.objections or objections
            if said.ok:
                return "ok", (), steps
            problems = said.problems or self._problems(draft, said.steps)
            if not problems:
                return "corrected", objections, said.steps
            quoted = ChatMessage(author="assistant", text=come.text[:_QUOTED])
            messages = (messages[0], quoted, ChatMessage(author="user", text=_repair_question(problems)))
        return "unusable", objections, steps

    def _problems(self, draft: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> list[str]:
        """Collect the problems of the whole plan, and unknown tools."""
        whole = drafting.joined(draft["steps"], steps)
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
            return self.ledger.reserve(charge, budgets_of(self.settings, self.settings.agx.budget_usd, candidate.name))
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


# --- its answer ---

STEP_FIELDS = (
    *("step_number", "tool", "command", "args", "input_from_step", "needs"),
    *("timeout", "cwd", "env", "ok_exit_codes"),
    *("retries", "retry_delay", "retry_backoff"),
)
_LIMITS = Limits(size=MAX_BYTES, nodes=20_000)
_WORDS = 500  # characters of a reason that are shown
_CANDIDATES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanAnswer:
    """What a planning model answered: steps, a refusal, or what is wrong with the answer."""

    steps: tuple[Mapping[str, Any], ...] = ()
    cannot: str | None = None  # why the model cannot plan it
    ok: bool | None = None  # of a review
    objections: tuple[str, ...] = ()  # of a review
    problems: tuple[str, ...] = field(default=())  # why the answer is unusable


def read_answer(text: str, *, after: int, review: bool = False) -> PlanAnswer:
    """Parse the first usable JSON object. `after`: how many steps the draft has; new ones follow their numbers.

    Nothing in it is trusted: size, form, every field and every character are checked.
    """
    if len(text) > MAX_BYTES:
        return PlanAnswer(problems=(f"the answer has {len(text)} characters; at most {MAX_BYTES} are read",))
    first: PlanAnswer | None = None
    for place, (start, end) in enumerate(objects(text)):
        if place == _CANDIDATES:
            break
        said = _read_object(text[start:end], after, review)
        if not said.problems:
            return said
        first = first or said
    return first or PlanAnswer(problems=("there is no JSON object in the answer; answer with exactly one",))


def _read_object(text: str, after: int, review: bool) -> PlanAnswer:
    try:
        data = parse_json(text.encode("utf-8", "surrogatepass"), source="answer", limits=_LIMITS).data
    except BadDocument as bad:
        return PlanAnswer(problems=tuple(problem.render("answer") for problem in bad.problems[:5]))
    if not isinstance(data, dict):
        return PlanAnswer(problems=("must be a JSON object",))
    if not review and isinstance(data.get("cannot"), str) and "steps" not in data:
        return PlanAnswer(cannot=short(data["cannot"]))
    if review:
        if data.get("ok") is True:
            return PlanAnswer(ok=True)
        if data.get("ok") is not False:
            return PlanAnswer(problems=('`ok` must be true or false; with false say "problems" and "steps"',))
    objections = data.get("problems") if review else None
    told = tuple(short(one) for one in objections if isinstance(one, str))[:10] if isinstance(objections, list) else ()
    problems = tuple(_faults(data, after, review))
    if problems:
        return PlanAnswer(ok=False if review else None, objections=told, problems=problems)
    return PlanAnswer(ok=False if review else None, objections=told, steps=tuple(data["steps"]))


def _faults(data: Mapping[str, Any], after: int, review: bool) -> Iterator[str]:
    known = ("steps", "ok", "problems") if review else ("steps",)
    for name in data:
        if name not in known:
            yield f"{show(name)}: is not a field of the answer; only {', '.join(known)}"
    steps = data.get("steps")
    if not isinstance(steps, list) or not steps:
        yield "steps: must be a list of at least one step"
        return
    if after + len(steps) > MAX_STEPS:
        yield f"steps: a plan has at most {MAX_STEPS} steps; with the draft these are {after + len(steps)}"
        return
    for index, step in enumerate(steps):
        at = f"steps[{index}]"
        if not isinstance(step, dict):
            yield f"{at}: must be an object"
            continue
        if step.get("step_number") != after + index + 1:
            yield f"{at}.step_number: must be {after + index + 1}"
        for name in step:
            if name not in STEP_FIELDS:
                yield f"{at}.{show(name)}: is not a field of a step; known: {', '.join(STEP_FIELDS)}"
        yield from _characters(at, step)


def _characters(at: str, value: Any) -> Iterator[str]:
    """Text that a person would not see as it is: control characters, and those that turn or hide what stands by."""
    if isinstance(value, str):
        hidden = next((char for char in value if not char.isprintable() and char not in "\n\t"), None)
        if hidden is not None:
            yield f"{at}: has the character {ascii(hidden)[1:-1]}, which is invisible; write it another way"
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from _characters(at, name)
            yield from _characters(f"{at}.{ascii(name)[1:-1]}", member)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _characters(f"{at}[{index}]", member)


def short(text: str) -> str:
    """A model's words for a person: one line, not too long."""
    words = " ".join(text.split())
    return words if len(words) <= _WORDS else words[: _WORDS - 1] + "…"


# --- the texts that are sent to it ---

_TOLD = 4000  # characters of one tool's description
_FORM = """{"steps": [{"step_number": 3, "tool": "unix", "command": "sort", "args": ["-u"], "input_from_step": 2,
 "timeout": 60}]}"""

PLAN = f"""You turn a person's words into the steps of a plan. Each step runs one program.

Rules:
- Answer with exactly one JSON object and nothing else: {_FORM}
- Only the steps that are to be added; their step_number goes on after the draft's last one.
- `command` is one program, `args` its arguments, one word each. There is no shell: no pipes, redirections, globs,
  variables or && in arguments. To give one step's stdout to another step's stdin, set `input_from_step` to the number
  of an earlier step.
- `tool` is "unix" for programs on the PATH, else the name of a tool below, whose `command` is one of its commands.
- Steps run in order; the plan halts at the first that fails. `timeout` is in seconds, `ok_exit_codes` lists exit codes
  that are no failure (grep says 1 when nothing matches).
- Use as few steps as the words need. Never delete or overwrite what the words do not name.
- When it cannot be planned with these means, answer {{"cannot": "why, in one sentence"}}.
"""

REVIEW = f"""You review steps that another wrote for a person. Judge whether, together with the draft, they do what the
person's words ask for, and nothing else; whether each program is called with arguments that it has; whether each step
that needs input reads the right earlier one.

Answer with exactly one JSON object and nothing else: {{"ok": true}}, or
{{"ok": false, "problems": ["what is wrong"], "steps": [the steps to add, all of them, put right]}},
where a step looks as in {_FORM}
There is no shell: no pipes, redirections, globs, variables or && in arguments.
"""


def _system(text: str, tools: Sequence[ToolInfo]) -> str:
    """The rules, with the tools that there are."""
    return f"{text}\nTools:\n{_tool_list(tools)}\n"


def _plan_question(wish: str, draft: Mapping[str, Any]) -> str:
    return "\n\n".join([*_situation(draft), f"# What is to be added\n\n{wish.strip()}"]) + "\n"


def _review_question(wish: str, draft: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> str:
    asked = f"# What was asked for\n\n{wish.strip()}"
    return (
        "\n\n".join([*_situation(draft), asked, f"# The steps to judge\n\n{_as_json({'steps': list(steps)})}"]) + "\n"
    )


def _repair_question(problems: Sequence[str]) -> str:
    listed = "\n".join(f"- {problem}" for problem in problems[:20])
    return (
        f"That cannot be used:\n\n{listed}\n\nAnswer again, whole, in the form that was asked for, and nothing else.\n"
    )


def _situation(draft: Mapping[str, Any]) -> list[str]:
    steps = draft.get("steps") or []
    so_far = _as_json({"steps": steps}) if steps else "There are no steps yet; the first has step_number 1."
    return [f"# The system\n\n{machine.description()}", f"# The draft so far\n\n{so_far}"]


def _tool_list(tools: Sequence[ToolInfo]) -> str:
    lines = []
    for tool in tools:
        if not tool.usable:
            continue
        said = tool.said
        about = f"- {tool.name}: {said.description or 'says nothing of itself'}"
        for command in said.commands:
            usage = " ".join((command.name, *command.args))
            about += f"\n  - {usage}: {command.description}".rstrip(": ")
        lines.append(about[:_TOLD])
    return "\n".join(lines)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)
