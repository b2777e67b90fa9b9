"""Read and write the memo's jobs and results (source document 004): pushed jobs, popped jobs, posted results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from farro.documents import Document, shapes
from farro.documents.constraints import Bounds, Size
from farro.documents.shapes import Fault
from farro.errors import Problem
from farro.lazy_dataclass import dataclass
from farro.plans.forms import is_agent_prompt, is_later_form, shape
from farro.plans.graph import order
from farro.plans.loading import load_data
from farro.plans.model import Plan, Step

JOB_BYTES = 1 << 20
RESULT_STEPS = 1000
STEP_NUMBER = 1_000_000  # the highest of a posted step

# Name of the list of steps → the fields of a job, and those of a step
_REQUIRED = {
    "steps": (("id", "plan_id", "steps"), ("step_number", "tool", "command")),
    "tasks": (("job_id", "plan_id", "tasks"), ("task_number", "command")),
}


def missing(document: Document) -> list[Problem]:
    """Return the fields that the memo requires in addition to the rules of a plan."""
    data = document.data
    if not isinstance(data, dict):
        return [document.problem((), 'must be an object: {"id": …, "plan_id": …, "steps": […]}')]
    if "steps" not in data and ("command" in data or "step_number" in data):
        return []  # the old single-step job has an error message of its own
    listed = "tasks" if is_later_form(data) else "steps"
    of_job, of_step = _REQUIRED[listed]
    found = [document.problem((name,), "is required") for name in of_job if data.get(name) is None]
    steps = data.get(listed)
    for index, step in enumerate(steps if isinstance(steps, list) else ()):
        if isinstance(step, dict):
            lacking = (name for name in of_step if step.get(name) is None)
            found += [document.problem((listed, index, name), "is required") for name in lacking]
    return found


def as_job(prompt: Mapping[str, Any], job_id: str, plan: Plan | None = None) -> dict[str, Any]:
    """Return a job in the memo's form: `id`, `plan_id` and numbered steps that refer to earlier ones only.

    A pushed job comes out as it went in. Step names become numbers in the order of the run; an agent prompt is carried
    whole under `prompt`. `plan` is the plan of this prompt, if the caller has it.
    """
    plan = plan or load_data(prompt, "prompt.json")
    named = {"id": job_id, "plan_id": plan.plan_id or job_id}
    if is_agent_prompt(prompt):
        step = {"step_number": 1, "tool": "agent", "command": prompt.get("role"), "args": [prompt.get("rubric", "")]}
        return {**named, "steps": [step], "prompt": dict(prompt)}
    rest = {name: value for name, value in prompt.items() if name not in ("id", "plan_id", "steps", "tasks", "$schema")}
    if plan.keep_going:  # the form of a task list implies it
        rest["keep_going"] = True
    if shape(dict(prompt)).numbered:
        steps = [{**step, "tool": step.get("tool", "unix")} for step in prompt["steps"]]
        return {**named, "steps": steps, **rest}
    numbers = {step_id: number for number, step_id in step_ids(plan).items()}
    return {**named, "steps": [_numbered(step, numbers) for step in order(plan)], **rest}


def step_ids(plan: Plan) -> dict[int, str]:
    """Return the step id of each number that `as_job` assigned."""
    ordered = order(plan)
    if all(step.id == str(step.step_number) for step in ordered):
        return {step.step_number: step.id for step in ordered}
    return {number: step.id for number, step in enumerate(ordered, start=1)}


def _numbered(step: Step, numbers: Mapping[str, int]) -> dict[str, Any]:
    data: dict[str, Any] = {
        "step_number": numbers[step.id],
        "tool": step.tool,
        "command": step.command,
        "args": list(step.args),
    }
    if step.needs:
        data["needs"] = [numbers[need] for need in step.needs]
    if step.input_from_step is not None:
        data["input_from_step"] = numbers[step.input_from_step]
    rest: tuple[tuple[str, Any, Any], ...] = (
        ("timeout", step.timeout, None),
        ("cwd", step.cwd, None),
        ("env", dict(step.env), {}),
        ("ok_exit_codes", list(step.ok_exit_codes), [0]),
        ("retries", step.retries, 0),
        ("retry_delay", step.retry_delay, 0),
        ("retry_backoff", step.retry_backoff, 1),
    )
    return {**data, **{name: value for name, value, default in rest if value != default}}


# --- results -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class PostedStep:
    """The result of one step, as a worker posts it."""

    takes_more: ClassVar[bool] = True

    step_number: Annotated[int, Bounds(at_least=1, at_most=STEP_NUMBER)]
    exit_code: int
    success: bool
    stdout: str = ""
    stderr: str = ""
    added_by: str | None = None  # the step that added it while the plan ran


@dataclass(frozen=True, kw_only=True, slots=True)
class PostedResult:
    """The result of a job, as a worker posts it."""

    takes_more: ClassVar[bool] = True

    job_id: str | None = None
    plan_id: str | None = None
    success: bool
    step_results: Annotated[tuple[PostedStep, ...], Size(at_most=RESULT_STEPS)] = ()


def result(document: Document, job_id: str, plan: Plan) -> PostedResult:
    """Load a posted result of a job with this plan, or raise all of its problems at once."""
    checked = shapes.check(PostedResult, document.data)
    if checked.value is None:
        return checked.accepted(document, ())
    says_why = isinstance(document.data.get("error"), str | dict)
    contradictions = _contradictions(checked.value, job_id, plan, says_why=says_why)
    return checked.accepted(document, (*contradictions, *_omissions(checked.value, plan, says_why=says_why)))


def _contradictions(told: PostedResult, job_id: str, plan: Plan, *, says_why: bool) -> Iterator[Fault]:
    """Yield what contradicts the job. A result may leave out the plan_id if its plan has none, or if it has an error:
    older workers do so."""
    if told.job_id not in (None, job_id):
        yield Fault(("job_id",), f"is not {job_id}, the job that this key names")
    plan_id = plan.plan_id or job_id
    optional = plan.plan_id is None or says_why
    if told.plan_id != plan_id and not (told.plan_id is None and optional):
        yield Fault(("plan_id",), f"must be {plan_id}, the plan_id of {job_id}")
    known, seen = step_ids(plan), set[int]()
    for index, step in enumerate(told.step_results):
        at = ("step_results", index)
        if step.step_number in seen:
            yield Fault((*at, "step_number"), f"{step.step_number} was told before; one result a step")
        elif step.step_number not in known and step.added_by is None:
            yield Fault((*at, "step_number"), f"{step.step_number} is no step of this plan; it has {len(known)}")
        seen.add(step.step_number)
        if told.success and not step.success:
            yield Fault((*at, "success"), "is false, but the job's own success is true")


def _omissions(told: PostedResult, plan: Plan, *, says_why: bool) -> Iterator[Fault]:
    """Yield what is missing: each executed step has a result, and those of a failure end with the failing one.

    `says_why`: the result has an error, such as of a step that could not be started; then no step need have failed.
    """
    at = ("step_results",)
    posted = {step.step_number: step.success for step in told.step_results}
    numbers = {step_id: number for number, step_id in step_ids(plan).items()}
    if told.success:
        missing = [number for number in numbers.values() if number not in posted]
        if missing:
            yield Fault(at, f"step {missing[0]} has no result; a success has one for each of the {len(numbers)} steps")
        return
    first = next((at for at, step in enumerate(told.step_results) if not step.success), None)
    if first is None and not says_why:
        yield Fault(at, "no step failed; the results of a failure end with the failing step")
    if plan.parallel > 1 or plan.keep_going:
        return  # other steps ran beside the failing one, or after it
    before: list[int] = []  # the steps that ran before
    for step in order(plan):
        number = numbers[step.id]
        source = None if step.input_from_step is None else numbers[step.input_from_step]
        needed = before if source is None else [source]  # a reader may start while its source runs
        lacking = next((each for each in needed if each not in posted), None)
        if number in posted and lacking is not None:
            yield Fault(at, f"step {lacking} has no result, but step {number}, which runs after it, has one")
            return
        before.append(number)
    # Of two steps that run at once, one is a reader: of two others, the later result is of a step that started later.
    others = {numbers[step.id] for step in plan.steps if step.input_from_step is None}
    if first is not None and (failed := told.step_results[first].step_number) in others:
        later = (index for index in range(first + 1, len(told.step_results)))
        index = next((index for index in later if told.step_results[index].step_number in others), None)
        if index is not None:
            yield Fault((*at, index), f"the results of a failure end with the failing step, which is step {failed}")
