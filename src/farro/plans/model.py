"""The one shape of a plan: `Plan` and `Step`, frozen, with the rules of each field.

No input forms (`forms` turns them into this shape), no rules between steps (`graph`). `loading.load` makes a plan.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from farro.plans.tags import TAG_PATTERN

MAX_STEPS = 100
MAX_PARALLEL = 64
MAX_RETRIES = 100
MAX_TIMEOUT_S = 365 * 86_400  # a hundred of these still fit what the operating system can wait
DEFAULT_TIMEOUT_S = 1800.0

ID_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"


def _matching(pattern: str, meaning: str) -> Callable[[str], str]:
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if compiled.fullmatch(text) is None:
            raise PydanticCustomError("pattern", "{rule}", {"rule": f"is not {meaning}; it must match {pattern}"})
        return text

    return check


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError("nul", "holds a NUL, which no argument, variable or path can carry; take it out")
    return text


def _not_empty(text: str) -> str:
    if not text:
        raise PydanticCustomError("empty", "must not be empty")
    return text


Id = Annotated[str, AfterValidator(_matching(ID_PATTERN, "an id"))]
ToolName = Annotated[str, AfterValidator(_matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "a tool's name"))]
VariableName = Annotated[str, AfterValidator(_matching(r"[A-Za-z_][A-Za-z0-9_]{0,254}", "a variable's name"))]
Tag = Annotated[str, AfterValidator(_matching(TAG_PATTERN, "a tag"))]
Text = Annotated[str, AfterValidator(_without_nul)]
FilledText = Annotated[Text, AfterValidator(_not_empty)]
Seconds = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S, allow_inf_nan=False)]
ExitCode = Annotated[int, Field(ge=0, le=255)]

# `strict=False` only lets a JSON list become a tuple; the items stay strict.
_AsTuple = Field(strict=False)


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Step(_Frozen):
    """One command or agent call."""

    id: Id  # the memo's step_number as text, where steps are numbered
    step_number: int = Field(ge=1, le=1_000_000)  # the memo's, else the place in the list: results carry it
    tool: ToolName = "unix"
    command: FilledText
    args: Annotated[tuple[Text, ...], _AsTuple] = ()
    needs: Annotated[tuple[Id, ...], _AsTuple] = ()
    input_from_step: Id | None = None  # its stdout becomes this step's stdin; a need as well
    timeout: Seconds = DEFAULT_TIMEOUT_S
    cwd: FilledText | None = None
    env: dict[VariableName, Text] = Field(default_factory=dict)
    ok_exit_codes: Annotated[tuple[ExitCode, ...], Field(strict=False, min_length=1)] = (0,)
    retries: int = Field(default=0, ge=0, le=MAX_RETRIES)

    @property
    def depends_on(self) -> tuple[str, ...]:
        """Ids of the steps that must have succeeded before this one starts."""
        source = () if self.input_from_step is None else (self.input_from_step,)
        return tuple(dict.fromkeys(self.needs + source))


class Metadata(BaseModel):
    """The caller's own words about a plan: anything; only `tags` means something to farro."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    tags: Annotated[tuple[Tag, ...], _AsTuple] = ()


class Plan(_Frozen):
    """The steps of one job.

    Invariant: step ids are unique, every reference names a step of the plan, no steps wait for each other.
    """

    id: Id | None = None  # the job's id, chosen by the caller; minted when absent
    plan_id: Id | None = None
    name: FilledText | None = None
    role: Id | None = None
    steps: Annotated[tuple[Step, ...], Field(strict=False, min_length=1, max_length=MAX_STEPS)]
    timeout: Seconds | None = None  # as asked; `timeout_s` is what holds
    parallel: int = Field(default=1, ge=1, le=MAX_PARALLEL)
    allowed_paths: Annotated[tuple[FilledText, ...], Field(strict=False, min_length=1)] | None = None
    metadata: Metadata = Field(default_factory=Metadata)

    @property
    def timeout_s(self) -> float:
        """The plan's own timeout, else the sum of its steps'."""
        return sum(step.timeout for step in self.steps) if self.timeout is None else self.timeout


def fields_at(path: tuple[Any, ...]) -> list[str]:
    """Names that may stand where the last part of that path stands, in the words of the documentation."""
    if len(path) == 1:
        return list(Plan.model_fields)
    return list(Step.model_fields) if path[0] == "steps" and len(path) == 3 else []
