"""The one way to submit jobs: check requests by the rules of the root, and queue them.

The command line, the Python API, HTTP, MCP and AGQ only decode their input into a `JobRequest` and encode the answer.
So the same input is the same job everywhere, or is refused with the same message. [tests/contracts/test_ways_in.py]

- Everything is checked before anything is queued; all problems of all documents are reported at once.
- Options end up in prompt.json, so that a job alone says how it is to be run.
- A request whose id was submitted before with the same content is answered with that job, also when the jobs that it
  ran after have failed or were pruned, and also when the queue is full.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from farro.config.settings import Settings
from farro.documents import Document, refusal, refusals, show, without_schema
from farro.errors import BadDocument, BadName, InputError, Problem, Refused, UnknownRole
from farro.host.clock import Clock, SystemClock
from farro.jobs import ids
from farro.jobs.request import MAX_DELAY_S, NO_ATTACHMENTS, JobRequest, Spelling, delay_s, timeout_s
from farro.jobs.start_times import moment_of, parse_start
from farro.lazy_dataclass import dataclass, field, replace
from farro.plans.forms import Shaped, is_agent_prompt, memo_form
from farro.plans.metadata import PRIORITIES, metadata_of
from farro.plans.model import MAX_TIMEOUT_S, Plan
from farro.queue import agent_rules
from farro.queue.admission import Gate, KnownJobs, admit
from farro.queue.agent_rules import STRICT, Contract, contract_of
from farro.roles.names import MANAGER
from farro.store.port import Store, Submission, Submitted

DEFAULT_ROLE = "Runner"
STDIN = "stdin"  # the name of piped input among a job's files

_NAME_LIMIT = 80
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_SURROGATE = re.compile("[\ud800-\udfff]")


def _ignore(warning: str) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmitPolicy:
    """The rules for one submitter, and its words for messages."""

    gate: Gate | None = None  # the caps and the submitter's rights; None: no caps
    contract: Contract = STRICT  # the rules for agent work
    clock: Clock = field(default_factory=SystemClock)
    spell: Spelling = str  # how the submitter writes an option, for messages
    warn: Callable[[str], object] = _ignore

    @classmethod
    def of(
        cls,
        root: str,
        settings: Settings,
        *,
        user: str,
        spell: Spelling = str,
        warn: Callable[[str], object] = _ignore,
    ) -> SubmitPolicy:
        """Build the policy from the settings of a root."""
        gate = Gate.of(settings, user=user, force=False)
        return cls(gate=gate, contract=contract_of(root, settings), spell=spell, warn=warn)

    def forced(self) -> SubmitPolicy:
        """Return the policy for requests beyond a cap. Only users to whom the config permits it get past it."""
        return self if self.gate is None else replace(self, gate=replace(self.gate, force=True))


ANYTHING = SubmitPolicy()  # no caps, and no config for agent work


def submit(store: Store, requests: Sequence[JobRequest | Submission], policy: SubmitPolicy) -> list[Submitted]:
    """Queue the requests and return their jobs in the same order. All are valid, or none is queued.

    A Submission among them is one that `prepare` returned for an equal request before.

    InputError: fix the request. Refused (CapacityReached, NotPermitted): the config or the load does not permit it.
    """
    known = KnownJobs(store)
    wanted = prepare(store, requests, policy, known)
    if any(isinstance(request, JobRequest) and request.force for request in requests):
        policy = policy.forced()
    made = admit(store, wanted, policy.gate, known=known, enqueue=_enqueue(store, requests))
    for request, item, job in zip(requests, wanted, made, strict=True):
        if isinstance(request, JobRequest) and request.attachments.task is not None:
            from farro.worker import started_tasks

            started_tasks.mark(store.root, item.prompt["inputs"]["task_id"], job.id)
    return made


def prepare(
    store: Store, requests: Sequence[JobRequest | Submission], policy: SubmitPolicy, known: KnownJobs | None = None
) -> list[Submission]:
    """Return what `submit` would queue, or raise every problem of all documents at once. Caps are not checked."""
    if all(isinstance(request, Submission) for request in requests):
        return list(requests)  # type: ignore[arg-type]  # mypy does not narrow by all()
    checks = _Checks(store, policy, KnownJobs(store) if known is None else known)
    checked: list[Submission | _Checked] = []
    for request in requests:
        checked.append(checks.known(request) if isinstance(request, Submission) else checks.check(request))
    checks.refuse()
    return [item if isinstance(item, Submission) else checks.submission(item) for item in checked]


def _enqueue(
    store: Store, requests: Sequence[JobRequest | Submission]
) -> Callable[[Sequence[Submission]], list[Submitted]]:
    names = [request.name for request in requests if isinstance(request, JobRequest) and request.name is not None]
    if not names:
        return store.enqueue_many
    (name,) = names  # it is the only request
    return lambda submissions: [Submitted(id=store.enqueue_named(name, item)) for item in submissions]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The options of a request, checked. They are written into the prompt; `not_before` is the lifecycle's."""

    tags: tuple[str, ...] = ()
    priority: str | None = None
    timeout_s: float | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()
    not_before: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Checked:
    """A request whose options are checked and whose document was read."""

    request: JobRequest
    document: Document
    options: Options
    plan: Plan | None = None  # None: it could not be read


class _Checks:
    """Check the requests of one call. Problems of documents are collected; a bad option is raised at once."""

    def __init__(self, store: Store, policy: SubmitPolicy, known: KnownJobs) -> None:
        self._store, self._policy, self._known = store, policy, known
        self._spell = policy.spell
        self._problems: dict[str, list[Problem]] = {}  # by the source of the document
        self._first: dict[str, Document] = {}  # the first document of each id in this call
        self._agent_roles: set[str] = set()

    @cached_property
    def _roles(self) -> list[str]:
        return sorted(self._store.roles())

    def known(self, submission: Submission) -> Submission:
        """Accept a submission that was checked before; later requests may depend on it."""
        if submission.job_id is not None:
            self._first.setdefault(submission.job_id, Document(submission.prompt, "an earlier job"))
        return submission

    def check(self, request: JobRequest) -> _Checked:
        spell = self._spell
        if request.name is not None and ids.check_job_name(request.name) in self._known:
            raise InputError(
                f"{request.name} is the id of a job in {self._store.root}, and would be taken for that one; choose "
                "another name"
            )
        if request.id is not None:
            self._option("id", ids.check_job_id, request.id)
        if request.role is not None:
            self._option("role", self._known_role, request.role)
        options = self.options(request)
        document = request.document
        if document is None:
            document = _command_plan(request.command, options, spell)
            options = replace(options, timeout_s=None, cwd=None, env={})
        found = _Checked(request=request, document=document, options=options)
        try:
            plan, shaped = agent_rules.read(document, self._roles, self._policy.contract, agent=request.agent)
        except BadDocument as bad:
            self._problems.setdefault(document.source, []).extend(bad.problems)
            return found
        found = replace(found, plan=plan)
        self._problems.setdefault(document.source, []).extend(self._faults(found, plan, shaped))
        return found

    def refuse(self) -> None:
        """Raise the problems of all documents, and refuse agent work that the config does not support."""
        if found := [refusal(source, problems) for source, problems in self._problems.items() if problems]:
            raise refusals(found)
        if self._agent_roles:
            self._policy.contract.check(sorted(self._agent_roles))

    def submission(self, checked: _Checked) -> Submission:
        """Return the submission of a request without problems, with its attachments."""
        request, document, plan = checked.request, checked.document, checked.plan
        assert plan is not None
        job_id = request.id or plan.id
        if request.name is not None and job_id is not None and job_id in self._known:
            raise InputError(
                f"{document.source}: its id {job_id} is a job already, and a job has one name; take the id out, or "
                "choose another"
            )
        made = Submission(
            role=request.role or plan.role or DEFAULT_ROLE,
            prompt=with_options(_prompt(document.data), checked.options),
            job_id=job_id,
            not_before=checked.options.not_before,
        )
        if not is_agent_prompt(document.data):
            return self._with_workspace(request, self._with_input(request, made))
        from farro.queue.attachments import attached  # here: commands and plans need none of it

        try:
            made = attached(
                made,
                document,
                request.attachments,
                root=self._store.root,
                roles=self._roles,
                security=self._policy.contract.security,
                spell=self._spell,
                warn=self._policy.warn,
            )
            return self._with_workspace(request, made)
        except Refused:
            user = "" if self._policy.gate is None else self._policy.gate.user
            self._store.note("payload_refused", role=made.role, user=user)
            raise

    def _with_workspace(self, request: JobRequest, made: Submission) -> Submission:
        """Attach the state of the git repository that the request names."""
        if request.attachments.workspace is None:
            return made
        from farro.queue import workspace_snapshot

        payload = made.payload or {}
        room = self._policy.contract.security.max_job_bytes - sum(map(len, payload.values()))
        return replace(made, payload={**payload, **workspace_snapshot.take(request.attachments.workspace, room)})

    def _with_input(self, request: JobRequest, made: Submission) -> Submission:
        given = request.attachments
        if given is NO_ATTACHMENTS:
            return made
        for name in ("context_md", "narrative", "payload", "task"):
            if getattr(given, name):
                raise InputError(f"{self._spell(name)} belongs to an agent prompt; leave it out, or give a prompt")
        return made if given.input is None else with_input(made, given.input)

    # --- options ---

    def options(self, request: JobRequest) -> Options:
        spell = self._spell
        for tag in request.tags:
            self._option("tags", ids.check_tag, tag)
        return Options(
            tags=tuple(request.tags),
            after=self._dependencies("after", request),
            after_any=self._dependencies("after_any", request),
            **_values(request, self._policy.clock, spell),
        )

    def _dependencies(self, option: str, request: JobRequest) -> tuple[str, ...]:
        """Return whole ids of the jobs to run after: prompts keep whole ones."""
        named: Iterable[str] = getattr(request, option)
        return tuple(dict.fromkeys(self._option(option, self._dependency, job, request) for job in named))

    def _dependency(self, named: str, request: JobRequest) -> str:
        own = request.id or _own_id(request.document)
        if ids.check_job_id(named) == own:
            raise InputError(f"{named} cannot run after itself")
        if named in self._first:
            return named  # an earlier one of the same call
        try:
            return self._known.resolve(named)
        except InputError:
            if self._existed(own):
                return named
            raise

    def _existed(self, own: str | None) -> bool:
        """Whether the id was submitted before: the answer is that job, also when its dependencies are pruned."""
        return own is not None and own in self._known

    def _known_role(self, role: str) -> None:
        if ids.check_role(role) not in self._roles:
            raise UnknownRole(
                f"no role {role} here; known: {', '.join(self._roles)}. "
                "A new one is declared under `roles` in the config and made by `farro init`"
            )

    def _option(self, name: str, check: Callable[..., Any], *values: Any) -> Any:
        try:
            return check(*values)
        except InputError as error:
            raise type(error)(f"{self._spell(name)}: {error}") from error

    # --- documents ---

    def _faults(self, checked: _Checked, plan: Plan, shaped: Shaped) -> Iterator[Problem]:
        """Yield where a document is contradicted by this root, by the options, or by an earlier document."""
        request, document = checked.request, checked.document
        spell = self._spell
        if plan.id is not None:
            yield from self._told_twice(document, "id", plan.id, request.id)
            try:
                ids.check_job_id(plan.id)
            except BadName as error:
                yield document.problem(("id",), str(error))
        if plan.role is not None:
            yield from self._told_twice(document, "role", plan.role, request.role)
            try:
                self._known_role(plan.role)
            except InputError as error:
                yield document.problem(("role",), str(error))
        yield from self._commands_for_manager(document, plan, shaped, request.role)
        yield from agent_rules.problems(document, plan, shaped, self._roles, self._policy.contract)
        yield from contradictions(document, checked.options, spell)
        if plan.input is not None and not shaped.agent:
            if request.attachments.input is not None:
                yield document.problem(("input",), "names an input, and input was also piped in; keep one of them")
            else:
                yield document.problem(("input",), _NO_INPUT)
        if shaped.agent:
            for name in ("timeout", "cwd", "env"):
                if getattr(request, name):
                    yield document.problem((), f"{spell(name)} {_NOT_FOR_AGENTS}")
        own = request.id or plan.id
        yield from self._unknown_dependencies(document, own)
        if own is not None:
            yield from self._duplicate_id(document, request, own)
        self._agent_roles |= agent_rules.agent_roles(document, plan)

    def _told_twice(self, document: Document, name: str, own: str, asked: str | None) -> Iterator[Problem]:
        if asked is not None and own != asked:
            message = f"is {own}, but {self._spell(name)} says {asked}; keep one of them"
            yield document.problem((name,), message)

    def _commands_for_manager(
        self, document: Document, plan: Plan, shaped: Shaped, role: str | None
    ) -> Iterator[Problem]:
        """Refuse commands for the Manager role: it only decides where agents' jobs go next, so they would fail."""
        named = {role, plan.role} - {None}
        if shaped.agent or named != {MANAGER}:  # two that differ are reported already
            return
        why = f"decides where agents' jobs go next, and runs no commands; leave it out, and {DEFAULT_ROLE} runs them"
        if role is not None:
            raise InputError(f"{self._spell('role')}: {MANAGER} {why}")
        yield document.problem(("role",), f"is {MANAGER}, which {why}")

    def _duplicate_id(self, document: Document, request: JobRequest, own: str) -> Iterator[Problem]:
        """Yield a problem when two documents of one call share an id. The same plan again is the same job."""
        first = self._first.setdefault(own, document)
        if first.data == document.data:
            return
        if request.id is not None:
            raise one_id_for_several(self._spell)
        line, _ = first.locate(("id",)) or (0, 0)
        where = f"line {line}" if line and first.source == document.source else first.source
        yield document.problem(("id",), f"{where} has another plan of this id; choose another")

    def _unknown_dependencies(self, document: Document, own: str | None) -> Iterator[Problem]:
        """Yield dependencies in the metadata that are neither a job nor an earlier document of the same call."""
        metadata = metadata_of(document.data)
        for name in ("after", "after_any"):
            wanted = metadata.get(name)
            for index, dependency in enumerate(wanted if isinstance(wanted, list) else ()):
                if not (isinstance(dependency, str) and ids.is_job_id(dependency)):
                    continue  # reported as a contradiction
                at = ("metadata", name, index)
                if dependency == own:
                    yield document.problem(at, f"{dependency} cannot run after itself")
                elif dependency not in self._first and dependency not in self._known and not self._existed(own):
                    yield document.problem(at, f"no job {dependency}; `farro ls` lists what there is")


_NO_INPUT = "names a file that comes with the job, but none can be attached this way; pipe it into `agx submit`"
_NOT_FOR_AGENTS = "is for commands; an agent's calls are set up under `roles` and `providers` in the config"


def offline_options(request: JobRequest, policy: SubmitPolicy) -> Options:
    """Check the options of a request for another machine's store. The jobs to run after must be whole ids."""
    return Options(
        tags=tuple(request.tags),
        after=tuple(request.after),
        after_any=tuple(request.after_any),
        **_values(request, policy.clock, policy.spell),
    )


def _values(request: JobRequest, clock: Clock, spell: Spelling) -> dict[str, Any]:
    """Check the options that need no store."""
    if request.priority is not None and request.priority not in PRIORITIES:
        raise InputError(
            f"{spell('priority')}: {request.priority!r} is not a priority; choose one of {', '.join(PRIORITIES)}"
        )
    for name, value in request.env.items():
        if _VARIABLE.fullmatch(name) is None or "\0" in value:
            raise InputError(
                f"{spell('env')}: {name[:60]!r} is not the name of a variable (letters, digits and _), or its value "
                "holds a NUL"
            )
    return {
        "priority": request.priority,
        "timeout_s": None if request.timeout is None else timeout_s(request.timeout, spell),
        "cwd": _cwd(request, spell),
        "env": dict(request.env),
        "not_before": _start(request, clock, spell),
    }


def _cwd(request: JobRequest, spell: Spelling) -> str | None:
    if request.cwd is None and not (request.command and request.folder is not None):
        return None
    cwd = os.path.abspath(os.path.join(request.folder or "", request.cwd or ""))
    if not os.path.isdir(cwd):
        raise InputError(f"{spell('cwd')}: {request.cwd or cwd} is not a folder")
    return cwd


def _start(request: JobRequest, clock: Clock, spell: Spelling) -> datetime | None:
    """Return when the job may start; None: at once."""
    if request.delay is not None and request.at is not None:
        raise InputError(f"{spell('delay')} and {spell('at')} both set the start time; keep one of them")
    if request.delay is not None:
        seconds = delay_s(request.delay, spell)
        return clock.now() + timedelta(seconds=seconds) if seconds else None
    at = request.at
    if at is None:
        return None
    if isinstance(at, datetime):
        moment = at.astimezone(UTC)  # a datetime without a zone is local, as everywhere in Python
        if at.tzinfo is None and moment.astimezone().replace(tzinfo=None) != at:
            moment = moment_of(at, datetime.astimezone)  # the clocks skip that time
        if moment <= clock.now():
            raise InputError(f"{spell('at')}: {at} is in the past; name a later time, or leave it out to start now")
    else:
        try:
            moment = parse_start(at, clock.now(), datetime.astimezone)
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{spell('at')}: {error}") from error
    if moment - clock.now() > timedelta(seconds=MAX_DELAY_S):
        raise InputError(f"{spell('at')}: {at} is more than ten years ahead; name an earlier time")
    return moment


def one_id_for_several(spell: Spelling) -> InputError:
    return InputError(f"{spell('id')} names one job, and there are several plans; give each plan its own `id`")


def with_input(submission: Submission, data: bytes) -> Submission:
    """Return the job with `data` attached: its first step that reads no other input gets it on standard input."""
    return replace(submission, prompt={**submission.prompt, "input": STDIN}, payload={STDIN: data})


def with_options(prompt: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Return the prompt with the options in it."""
    data = dict(prompt)
    metadata = dict(data.get("metadata") or {})
    for name, more in (("tags", options.tags), ("after", options.after), ("after_any", options.after_any)):
        if more:
            metadata[name] = list(dict.fromkeys([*(metadata.get(name) or ()), *more]))
    if options.priority is not None:
        metadata["priority"] = options.priority
    if metadata:
        data["metadata"] = metadata
    if options.timeout_s is not None:
        data["timeout"] = options.timeout_s
    if options.cwd is not None or options.env:
        (name,), steps = _steps(data)
        data[name] = [_step_with_options(step, options) for step in steps]
    return data


def _step_with_options(step: Mapping[str, Any], options: Options) -> dict[str, Any]:
    placed = dict(step)
    if options.cwd is not None:
        placed["cwd"] = options.cwd
    if options.env:
        placed["env"] = {**(placed.get("env") or {}), **options.env}
    return placed


def _command_plan(argv: Sequence[str], options: Options, spell: Spelling) -> Document:
    """Return the plan of one command. Without a timeout option it may run as long as it likes: a user who types a
    command does not expect it to be ended."""
    if not argv or not argv[0].strip():
        raise InputError(f"{spell('command')}: its first word is the program, and must not be empty")
    for word in (*argv, *options.env.values(), options.cwd or ""):
        if not word.isprintable() and _SURROGATE.search(word):
            raise InputError(f"{ascii(word)[:80]} is not UTF-8 text, as a job must be; put it into a script")
    step: dict[str, Any] = {"step_number": 1, "tool": "unix", "command": argv[0], "args": list(argv[1:])}
    step["timeout"] = MAX_TIMEOUT_S if options.timeout_s is None else options.timeout_s
    if options.cwd is not None:
        step["cwd"] = options.cwd
    if options.env:
        step["env"] = dict(options.env)
    name = shlex.join(argv)
    return Document(
        {"name": name if len(name) <= _NAME_LIMIT else name[: _NAME_LIMIT - 1] + "…", "steps": [step]}, "--"
    )


def contradictions(document: Document, options: Options, spell: Spelling = str) -> Iterator[Problem]:
    """Yield where the plan contradicts the options, and invalid metadata."""
    metadata = metadata_of(document.data)
    if (urgency := metadata.get("priority")) is not None:
        at = ("metadata", "priority")
        if urgency not in PRIORITIES:
            message = f"{show(urgency)} is not a priority; choose one of {', '.join(PRIORITIES)}"
            yield document.problem(at, message)
        elif options.priority not in (None, urgency):
            message = f"is {urgency}, but {spell('priority')} says {options.priority}; keep one of them"
            yield document.problem(at, message)
    for name in ("after", "after_any"):
        yield from _no_ids(document, name, metadata.get(name))
    own = document.data.get("timeout") if isinstance(document.data, dict) else None
    if options.timeout_s is not None and own is not None and own != options.timeout_s:
        message = f"is {own:g}, but {spell('timeout')} says {options.timeout_s:g}; keep one of them"
        yield document.problem(("timeout",), message)
    prefix, steps = _steps(document.data)
    for index, step in enumerate(steps):
        if isinstance(step, dict):
            yield from _in_step(document, (*prefix, index), step, options, spell)


def _no_ids(document: Document, name: str, named: Any) -> Iterator[Problem]:
    """Yield the entries that are not job ids."""
    if named is not None and not isinstance(named, list):
        yield document.problem(("metadata", name), "must be a list of job ids")
    for index, item in enumerate(named if isinstance(named, list) else ()):
        if not (isinstance(item, str) and ids.is_job_id(item)):
            yield document.problem(("metadata", name, index), f"{show(item)} is not a job id")


def _in_step(
    document: Document, at: tuple[Any, ...], step: Mapping[str, Any], options: Options, spell: Spelling
) -> Iterator[Problem]:
    if options.cwd is not None and step.get("cwd") not in (None, options.cwd):
        message = f"is {show(step['cwd'])}, but {spell('cwd')} was given; keep one of them"
        yield document.problem((*at, "cwd"), message)
    own = step.get("env")
    for name, value in options.env.items():
        if isinstance(own, dict) and own.get(name, value) != value:
            message = f"is {show(own[name])}, but {spell('env')} says {show(value)}; keep one of them"
            yield document.problem((*at, "env", name), message)


def _steps(data: Any) -> tuple[tuple[str, ...], Collection[Any]]:
    """Return the path of the steps inside a plan of any form, and the steps."""
    if isinstance(data, list):
        return (), data
    if is_agent_prompt(data):
        return (), []
    name = "steps" if "steps" in data else "tasks"
    return (name,), data[name]


def _own_id(document: Document | None) -> str | None:
    own = memo_form(document.data).get("id") if document is not None and isinstance(document.data, dict) else None
    return own if isinstance(own, str) else None


def _prompt(data: Any) -> Mapping[str, Any]:
    """Return the content of prompt.json: what was submitted; a bare task list becomes the equivalent object, and the
    later form of the memo's plan the memo's."""
    return {"tasks": data} if isinstance(data, list) else memo_form(without_schema(data))
