"""The Provider port: what answers an agent's prompt. Every adapter passes tests/contracts/test_provider.py.

An adapter makes one call, once. Retries, fallbacks, prices and budgets belong to its caller.

- One `answer` is one request on the wire, or one process. The libraries' own retries are switched off.
  [test_one_answer_is_one_request]
- A call has one of eight outcomes: an Answer, or a ProviderTrouble of one of seven kinds. The trouble also says whether
  another try may help, and when. [test_errors_say_whether_a_retry_may_help]
- `answer` returns or raises within `timeout_s`. [test_a_hanging_provider_times_out]
- An exception may be raised in the calling thread at any line (the step timed out, its job was taken away). The adapter
  waits in slices of at most SLICE_S and ends its request or process before the exception leaves it: within two seconds
  of a kill nothing of the call continues. [test_a_cancelled_call_ends_its_request]
- No message that it raises contains a secret. [test_no_error_shows_the_key]
- Calls are safe from many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from farro.errors import FarroError
from farro.execution.runner import DEFAULTS, Guarding
from farro.lazy_dataclass import dataclass, field
from farro.store.ledger import Usage as Usage

if TYPE_CHECKING:
    from farro.agents.gateway.port import Meter, ModelExchange
    from farro.agents.permissions import PermissionBox

SLICE_S = 0.05  # the longest wait of a provider before an exception in its thread is noticed

TroubleKind = Literal[
    "limited",  # the account has reached a limit: `until`, or `retry_after_s`, says when it resets, if that is known
    "overloaded",  # the service cannot answer now: 5xx, 408, 409
    "refused",  # the service does not accept the account: a wrong key, no credit. Only a person can change that
    "denied",  # the service or the program does not do what is asked: a filtered answer, another 4xx
    "cut",  # the answer broke off, or a signal ended the program
    "timed_out",  # no answer within `timeout_s`, or no connection
    "failed",  # anything else: no key, no model, no program, no connection, an exit code, a reply that is no answer
]


class ProviderTrouble(FarroError):
    """A call that brought no answer. The message says what failed, which provider, and what to do next."""

    def __init__(
        self,
        message: str,
        *,
        kind: TroubleKind,
        retryable: bool,
        until: datetime | None = None,
        retry_after_s: float | None = None,
        usage: Usage | None = None,
        cost_usd: Decimal | None = None,
        charged: bool = True,
        violation: bool = False,
    ) -> None:
        self.kind = kind
        self.retryable = retryable  # another try of the same request may help at once, or after the wait
        self.until = until  # when the limit resets, if the service names a moment
        self.retry_after_s = retry_after_s  # the wait that the service asks for
        self.usage = usage
        self.cost_usd = cost_usd
        self.charged = charged  # False: the request did not reach the provider, so it cost nothing
        self.violation = violation  # the program wrote to a path that is not allowed: the job fails
        super().__init__(message)

    def saying(self, message: str, *, usage: Usage | None, cost_usd: Decimal | None) -> ProviderTrouble:
        """Return the same trouble with another message and cost."""
        return ProviderTrouble(
            message,
            kind=self.kind,
            retryable=self.retryable,
            until=self.until,
            retry_after_s=self.retry_after_s,
            usage=usage,
            cost_usd=cost_usd,
            charged=self.charged,
            violation=self.violation,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    author: Literal["user", "assistant"]
    text: str


class OutputSink(Protocol):
    """Receives the text of an answer while it comes. The caller closes it."""

    def write(self, data: bytes, /) -> int: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """The files and the network that a provider's program may use. The sandbox enforces it."""

    root: str  # of the repository
    writable: tuple[str, ...] = ()  # absolute, inside the root unless the config allows others
    reads: tuple[str, ...] = ()  # besides what every program reads; relative to the root, or absolute
    network: bool | tuple[str, ...] = False  # or these hosts
    guarding: Guarding = DEFAULTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One call of a provider."""

    key: str  # "<job>/<attempt>/<step>/<call>": identifies the call in side effects elsewhere
    system: str  # the policy
    messages: tuple[ChatMessage, ...]  # the last one is from the user
    model: str | None
    max_output_tokens: int
    timeout_s: float
    role: str = ""
    schema: Mapping[str, Any] | None = None  # JSON Schema of the wanted answer, for providers that take one
    partial: OutputSink | None = None  # receives the text as it comes, for people who watch
    # For programs only:
    folder: str = ""  # the step's folder, for files of the call
    env: Mapping[str, str] = field(default_factory=dict)  # environment of every process of the step
    reach: Reach | None = None
    sessions: str | None = None  # the folder of the step's sessions, which outlives the attempt; None: keep none
    idle_timeout_s: float | None = None  # without progress of a known program, or of an ACP agent
    progress: Callable[[str], None] | None = None  # receives a line for each thing that such an agent does
    permissions: PermissionBox | None = None  # asks a person what its agent may do; None: nobody can be asked
    meter: Meter | None = None  # counts its requests to models, one by one; None: the caller counts the whole call
    keep: Callable[[ModelExchange], None] | None = None  # records these requests and their answers

    @property
    def prompt_bytes(self) -> int:
        return len(self.system.encode()) + sum(len(message.text.encode()) for message in self.messages)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The answer to a request."""

    text: str
    model: str | None = None  # the model that answered, if the provider reports it
    usage: Usage | None = None
    cost_usd: Decimal | None = None  # if the provider reports it
    whole: bool = True  # False: cut off at max_output_tokens
    diff: bytes = field(default=b"", repr=False)  # what a program changed in its own worktree, as a git diff
    # Of a known program, and of an ACP agent:
    session_id: str | None = None
    denied: tuple[str, ...] = ()  # what its own rules, a policy or a person refused
    files: tuple[str, ...] = ()  # that its tools wrote


class Provider(Protocol):
    """Something that answers prompts."""

    tries: int  # the most calls for one request: SPEC-1 §9 sets 4 over HTTP and 2 for programs

    def answer(self, request: Request) -> Answer:
        """Return the answer, or raise ProviderTrouble."""

    def close(self) -> None:
        """Release connections and threads. No call is in progress."""


@runtime_checkable
class PricedProvider(Protocol):
    """A provider that knows the cost of a call before it is made, such as a file of answers. Optional."""

    def most_usd(self, request: Request) -> Decimal:
        """Return the cost that the answer to this request, or its trouble, will report."""
