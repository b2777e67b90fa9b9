"""Read and write the memo's jobs and results (source document 004): pushed jobs, popped jobs, posted results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from farro.documents import Document, shapes
from farro.documents.constraints import Bounds, Size
from farro.documents.shapes import Fault
from farro.errors import Problem
from farro.lazy_dataclass import dataclass
from farro.plans.forms import is_agent_prompt, shape
from farro.plans.graph import order
from farro.plans.loading import load_data
from farro.plans.model import Plan, Step

JOB_BYTES = 1 << 20
RESULT_STEPS = 1000
STEP_NUMBER = 1_000_000  # the highest of a posted step
EXIT_CODE = 1 << 31

_OF_A_JOB = ("id", "plan_id", "steps")
_OF_A_STEP = ("step_number", "tool", "command")


def missing(document: Document) -> list[Problem]:
    """Return the fields that the memo requires in addition to the rules of a plan."""
    data = document.data
    if not isinstance(data, dict):
        return [document.problem((), 'must be an object: {"id": …, "plan_id": …, "steps": […]}')]
    if "steps" not in data and ("command" in data or "step_number" in data):
        return []  # the old single-step job has an error message of its own
    found = [document.problem((name,), "is required") for name in _OF_A_JOB if data.get(name) is None]
    steps = data.get("steps")
    for index, step in enumerate(steps if isinstance(steps, list) else ()):
        if isinstance(step, dict):
            lacking = (name for name in _OF_A_STEP if step.get(name) is None)
            found += [document.problem(("steps", index, name), "is required") for name in lacking]
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PostedResult:
    """The result of a job, as a worker posts it."""

    takes_more: ClassVar[bool] = True

    job_id: str | None = None
    plan_id: str | None = None
    success: bool
    step_results: Annotated[tuple[PostedStep, ...], Size(at_most=RESULT_STEPS)] = ()


def result(document: Document, job_id: str) -> PostedResult:
    """Load a posted result, or raise all of its problems at once."""
    if (plain := _plain(document.data, job_id)) is not None:
        return plain
    checked = shapes.check(PostedResult, document.data)
    return checked.accepted(document, () if checked.value is None else _contradictions(checked.value, job_id))


def _plain(data: Any, job_id: str) -> PostedResult | None:
    """Load the usual result, a success with complete steps, quickly. None: check it by the rules."""
    if type(data) is not dict or data.get("success") is not True or data.get("job_id") != job_id:
        return None
    plan_id, said = data.get("plan_id"), data.get("step_results")
    if type(said) is not list or len(said) > RESULT_STEPS or not (plan_id is None or type(plan_id) is str):
        return None
    steps: dict[int, PostedStep] = {}
    for step in said:
        if type(step) is not dict or step.get("success") is not True:
            return None
        number, code = step.get("step_number"), step.get("exit_code")
        stdout, stderr = step.get("stdout", ""), step.get("stderr", "")
        if type(number) is not int or type(code) is not int or type(stdout) is not str or type(stderr) is not str:
            return None
        if not (1 <= number <= STEP_NUMBER and -EXIT_CODE <= code <= EXIT_CODE) or number in steps:
            return None
        steps[number] = PostedStep(step_number=number, exit_code=code, success=True, stdout=stdout, stderr=stderr)
    return PostedResult(job_id=job_id, plan_id=plan_id, success=True, step_results=tuple(steps.values()))


def _contradictions(told: PostedResult, job_id: str) -> Iterator[Fault]:
    if told.job_id not in (None, job_id):
        yield Fault(("job_id",), f"is not {job_id}, the job that this key names")
    seen: set[int] = set()
    for index, step in enumerate(told.step_results):
        at = ("step_results", index)
        if step.step_number in seen:
            yield Fault((*at, "step_number"), f"{step.step_number} was told before; one result a step")
        seen.add(step.step_number)
        if told.success and not step.success:
            yield Fault((*at, "success"), "is false, but the job's own success is true")
