"""Define `Plan` and `Step` with the rules of each field. `loading.load` makes a plan."""

from __future__ import annotations

from typing import Annotated, ClassVar

from farro.documents.constraints import Argument, Bounds, Matching, Size
from farro.jobs import ids
from farro.lazy_dataclass import dataclass, field

MAX_STEPS = 100
MAX_PARALLEL = 64
MAX_RETRIES = 100
MAX_RETRY_DELAY_S = 3600.0
MAX_TIMEOUT_S = 365 * 86_400  # a hundred of these still fit into an operating system timeout
DEFAULT_TIMEOUT_S = 1800.0
AGENT = "agent"  # the tool of a step that an agent answers
AGENT_TIMEOUT_S = 86_400.0  # of such a step with all its calls, which have timeouts of their own
AHEAD_BYTES = 1 << 30  # output of a step after which its reader starts while it still runs

ID_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"


Id = Annotated[str, Matching(ID_PATTERN, "an id")]
ToolName = Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "a tool's name")]
VariableName = Annotated[str, Matching(r"[A-Za-z_][A-Za-z0-9_]{0,254}", "a variable's name")]
FileName = Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", "a plain file name, without folders")]
Tag = Annotated[str, Matching(ids.TAG.pattern, "a tag")]
Text = Annotated[str, Argument()]
FilledText = Annotated[str, Argument(filled=True)]
Seconds = Annotated[float, Bounds(more_than=0, at_most=MAX_TIMEOUT_S)]
ExitCode = Annotated[int, Bounds(at_least=0, at_most=255)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One command or agent call."""

    id: Id  # the memo's step_number as text, where steps are numbered
    step_number: Annotated[int, Bounds(at_least=1, at_most=1_000_000)]  # or the position in the list; results carry it
    tool: ToolName = "unix"
    command: FilledText
    args: tuple[Text, ...] = ()
    needs: tuple[Id, ...] = ()
    input_from_step: Id | None = None  # its stdout becomes this step's stdin; a need as well
    timeout: Seconds | None = None  # as submitted; `timeout_s` is the effective one
    cwd: FilledText | None = None
    env: dict[VariableName, Text] = field(default_factory=dict)
    ok_exit_codes: Annotated[tuple[ExitCode, ...], Size(at_least=1)] = (0,)
    retries: Annotated[int, Bounds(at_least=0, at_most=MAX_RETRIES)] = 0
    retry_delay: Annotated[float, Bounds(at_least=0, at_most=MAX_RETRY_DELAY_S)] = 0.0  # seconds before the second try
    retry_backoff: Annotated[float, Bounds(at_least=1, at_most=10)] = 1.0  # growth factor from try to try
    tags: tuple[Tag, ...] = ()  # a plan runs on one worker, which must offer the tags of all steps

    @property
    def depends_on(self) -> tuple[str, ...]:
        """Return the ids of the steps that must succeed before this one starts."""
        source = () if self.input_from_step is None else (self.input_from_step,)
        return tuple(dict.fromkeys(self.needs + source))

    def pause_s(self, tried: int) -> float:
        """Return the delay after that many failed tries."""
        if not self.retry_delay:
            return 0.0
        return min(self.retry_delay * self.retry_backoff ** (tried - 1), MAX_RETRY_DELAY_S)

    def timeout_s(self, default_s: float = DEFAULT_TIMEOUT_S) -> float:
        """Return the step's timeout, or the default: a day for an agent's step, else the root's."""
        usual_s = AGENT_TIMEOUT_S if self.tool == AGENT else default_s
        return usual_s if self.timeout is None else self.timeout


@dataclass(frozen=True, kw_only=True, slots=True)
class Metadata:
    """Free data of the caller; farro reads only the fields named here."""

    takes_more: ClassVar[bool] = True

    tags: tuple[Tag, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The steps of one job.

    Invariant: step ids are unique, every reference names a step of the plan, no steps form a cycle.
    """

    id: Id | None = None  # the job's id, chosen by the caller; minted when absent
    plan_id: Id | None = None
    name: FilledText | None = None
    role: Id | None = None
    steps: Annotated[tuple[Step, ...], Size(at_least=1, at_most=MAX_STEPS)]
    timeout: Seconds | None = None  # as submitted; `timeout_s` is the effective one
    parallel: Annotated[int, Bounds(at_least=1, at_most=MAX_PARALLEL)] = 1
    keep_going: bool = False  # a failed step stops only the steps that depend on it
    allowed_paths: Annotated[tuple[FilledText, ...], Size(at_least=1)] | None = None
    input: FileName | None = None  # a payload file: the standard input of `reader`
    metadata: Metadata = field(default_factory=Metadata)

    def timeout_s(self, step_timeout_s: float = DEFAULT_TIMEOUT_S) -> float:
        """Return the plan's timeout, or the sum of its steps' timeouts."""
        return sum(step.timeout_s(step_timeout_s) for step in self.steps) if self.timeout is None else self.timeout

    @property
    def reader(self) -> Step:
        """Return the step that reads `input`: the first one that reads no other step."""
        return next(step for step in self.steps if step.input_from_step is None)

    def _repr_html_(self) -> str:
        """Return the plan as a table for notebooks."""
        from farro.plans.drawing.markup import html_table

        return html_table(self)
