"""The Provider port: who answers an agent's prompt. Guarantees in words; every adapter passes
tests/contracts/test_provider.py.

Adapters live in providers/; what is asked, and what is made of the answer, lives in execution.agents. Trying again,
falling back, prices and budgets are the caller's alone: an adapter makes one call, once.

- One `answer` is one request on the wire, or one process. The libraries' own retries are switched off.
  [test_one_answer_is_one_request]
- What went wrong is a ProviderTrouble that says whether another try may help, and how long the other side wants to be
  left alone. [test_troubles_say_whether_another_try_helps]
- `answer` returns or raises within `timeout_s`. [test_a_hanging_provider_is_left_in_time]
- An exception may be raised in the calling thread at any line (the step's time is over, its job was taken away). The
  adapter waits in slices of SLICE_S at most, and ends what it began before it lets the exception through: within two
  seconds of a kill nothing of the call goes on. [test_an_ended_call_ends_its_request]
- No secret is in any message that it raises. [test_no_trouble_tells_the_key]
- Calls are safe from many threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal, Protocol, runtime_checkable

from farro.errors import FarroError
from farro.execution.runner import DEFAULTS, Guarding
from farro.lazy_dataclass import dataclass, field
from farro.store.ledger import Usage as Usage

SLICE_S = 0.05  # how long a provider waits at most before an exception for its thread is heard

TroubleKind = Literal["rate_limited", "server", "timeout", "network", "refused", "garbage", "failed", "missing"]


class ProviderTrouble(FarroError):
    """A call that brought no answer. What, which provider, what next."""

    def __init__(
        self,
        message: str,
        *,
        kind: TroubleKind,
        retryable: bool,
        retry_after_s: float | None = None,
        usage: Usage | None = None,
        cost_usd: Decimal | None = None,
        charged: bool = True,
        violation: bool = False,
    ) -> None:
        self.kind = kind
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.usage = usage
        self.cost_usd = cost_usd
        self.charged = charged  # whether it may have cost something: False for what never reached anybody
        self.violation = violation  # a write where it may not: the job fails for it
        super().__init__(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatMessage:
    author: Literal["user", "assistant"]
    text: str


class OutputSink(Protocol):
    """Where a provider passes on what comes. Closed by the caller."""

    def write(self, data: bytes, /) -> int: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """What a provider that is a program may touch: the sandbox keeps it."""

    root: str  # of the repository
    writable: tuple[str, ...] = ()  # absolute, inside the root unless the config allows others
    network: bool = False
    guarding: Guarding = DEFAULTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One call."""

    key: str  # "<job>/<attempt>/<step>/<call>": what side effects elsewhere are known by
    system: str  # the policy
    messages: tuple[ChatMessage, ...]  # the last one is the user's
    model: str | None
    max_output_tokens: int
    timeout_s: float
    role: str = ""
    schema: Mapping[str, Any] | None = None  # JSON Schema of the wanted answer, for providers that take one
    partial: OutputSink | None = None  # gets the text as it comes; for people who read along
    # For programs only:
    folder: str = ""  # the step's own, for files of the call
    env: Mapping[str, str] = field(default_factory=dict)  # what every process of the step carries
    reach: Reach | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    text: str
    model: str | None = None  # the one that answered, where the provider says it
    usage: Usage | None = None
    cost_usd: Decimal | None = None  # where the provider itself says what it cost
    whole: bool = True  # False: cut off at max_output_tokens
    diff: bytes = field(default=b"", repr=False)  # what a program changed in a worktree of its own, as git tells it


class Provider(Protocol):
    tries: int  # how often a call is made at most: SPEC-1 §9 pins 4 over HTTP and 2 for programs

    def answer(self, request: Request) -> Answer:
        """The answer, or ProviderTrouble."""

    def close(self) -> None:
        """Give connections and threads back. Nothing is under way."""


@runtime_checkable
class PricedProvider(Protocol):
    """A provider that knows before a call what it will cost: a file of answers does. It need not be one."""

    def most_usd(self, request: Request) -> Decimal:
        """What the answer to that request, or its trouble, will say that it cost."""
