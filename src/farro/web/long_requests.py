"""Requests that may take a while: wait for jobs, replay one, list tools, lock policies, test a provider.

Most run in a thread pool of their own (`slow`), so that they never delay the quick requests of other clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from farro.agents.service import TEST_PROMPT, ReplayedAttempt, replay_job
from farro.doctor import policy_lock
from farro.documents.constraints import Bounds, Length, Size
from farro.errors import InputError
from farro.execution import tool_catalog as tools
from farro.lazy_dataclass import dataclass
from farro.queue import wait as waiting
from farro.queue.wait import EndedJob
from farro.web import responses
from farro.web.request_handling import ApiRequest, NoFields, Routes, WebState

routes = Routes("jobs")

MAX_WAIT_S = 60.0  # of one request; the client may repeat it
_SLICE_S = 1.0  # between two checks whether the server stops

# --- wait ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WaitQuery:
    job: Annotated[tuple[str, ...], Size(at_least=1, at_most=200)]
    any: bool = False  # return when the first of them has ended
    timeout_s: Annotated[float, Bounds(at_least=0, at_most=MAX_WAIT_S)] = 20.0


@dataclass(frozen=True, kw_only=True)
class EndedJobData:
    """A job that ended; `life` is None where it was removed."""

    job_id: str
    good: bool
    life: responses.LifecycleResponse | None


@dataclass(frozen=True, kw_only=True)
class WaitResponse:
    """The jobs that ended, and in `waiting` those that have not; `timed_out`: repeat the request."""

    jobs: tuple[EndedJobData, ...]
    waiting: tuple[str, ...]
    timed_out: bool


@routes.get("/api/wait", "Wait until jobs have ended.", WaitResponse, query=WaitQuery, slow=True)
def wait_for_jobs(state: WebState, request: ApiRequest) -> Any:
    query: WaitQuery = request.query
    left = dict.fromkeys(state.resolve_job(job) for job in query.job)
    ended: list[EndedJob] = []
    for end in _ends(state, left, query.timeout_s):
        ended.append(end)
        if query.any:
            break
    return {
        "jobs": [_ended_job_data(end) for end in ended],
        "waiting": list(left),
        "timed_out": bool(left) and not (query.any and ended),
    }


def _ends(state: WebState, left: dict[str, None], timeout_s: float) -> Iterator[EndedJob]:
    """Yield each job as it ends, and remove it from `left`."""
    deadline_s = state.clock.monotonic_s() + timeout_s
    while left:
        slice_s = max(0.0, min(_SLICE_S, deadline_s - state.clock.monotonic_s()))
        for end in waiting.ends(state.store, list(left), clock=state.clock, timeout_s=slice_s):
            del left[end.job_id]
            yield end
        if state.stopping.is_set() or state.clock.monotonic_s() >= deadline_s:
            return


def _ended_job_data(end: EndedJob) -> dict[str, Any]:
    life = None if end.lifecycle is None else responses.lifecycle_data(end.lifecycle)
    return {"job_id": end.job_id, "good": end.good, "life": life}


# --- replay ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ReplayResponse:
    job_id: str
    same: bool
    attempts: tuple[ReplayedAttempt, ...]


@routes.post(
    "/api/jobs/{job}/replay",
    "Replay an agent job with its recorded answers; store nothing.",
    ReplayResponse,
    body=NoFields,
    changes_nothing=True,
    slow=True,
)
def replay(state: WebState, request: ApiRequest) -> Any:
    job_id = state.resolve_job(request.path["job"])
    done = replay_job(state.store, job_id, settings_of=state.settings_of, clock=state.clock)
    return {"job_id": job_id, "same": all(one.same for one in done), "attempts": done}


# --- tools -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ToolsResponse:
    tools: tuple[tools.ToolInfo, ...]


@routes.get("/api/tools", "The tools that steps may name.", ToolsResponse, cache_s=10.0, slow=True, tag="overview")
def list_tools(state: WebState, request: ApiRequest) -> Any:
    """List the registered tools.

    Programs that are merely on the PATH are not run for their description: a read-only client must not choose which
    programs start here.
    """
    context = state.plan_context()
    search = tools.ProgramSearch(env=context.env, cwd=context.cwd)
    found = tools.listed(context.tools, search, configured=list(state.settings.tools))
    return {"tools": found}


# --- policy lock -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LockDifferenceData:
    path: str
    locked: Any
    found: Any


@dataclass(frozen=True, kw_only=True)
class LockResponse:
    """The state of policy.lock.json: does it exist, and where the current policies differ from it."""

    file: str
    locked: bool
    differences: tuple[LockDifferenceData, ...]


@routes.get(
    "/api/policy/lock",
    "policy.lock.json compared with the current policies.",
    LockResponse,
    cache_s=1.0,
    tag="overview",
)
def show_lock(state: WebState, request: ApiRequest) -> Any:
    written = policy_lock.read(state.root)
    found = [] if written is None else policy_lock.compare(written, state.policy_lock())
    differences = [{"path": one.path, "locked": _plain(one.wanted), "found": _plain(one.found)} for one in found]
    return {"file": policy_lock.FILE, "locked": written is not None, "differences": differences}


def _plain(value: Any) -> Any:
    """Turn the marker of an absent value into text."""
    return value if isinstance(value, str | int | float | bool | list | dict | None) else str(value)


@dataclass(frozen=True, kw_only=True)
class LockWriteResponse:
    file: str
    changed: bool


@routes.post("/api/policy/lock", "Write policy.lock.json.", LockWriteResponse, body=NoFields, tag="overview")
def write_lock(state: WebState, request: ApiRequest) -> Any:
    return {"file": policy_lock.FILE, "changed": policy_lock.write(state.root, state.policy_lock())}


# --- provider test ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ProviderTestBody:
    """A role, a provider, or both. The call is real, and is paid for."""

    role: str | None = None
    provider: str | None = None
    prompt: Annotated[str, Length(4000)] = TEST_PROMPT


@dataclass(frozen=True, kw_only=True)
class ProviderTestResponse:
    """The answer of the provider; with `ok` false none answered, and `error` says why."""

    ok: bool
    role: str | None
    provider: str | None = None
    model: str | None = None
    seconds: float | None = None
    usage: dict[str, Any] | None = None
    cost_usd: float | None = None
    answer: str | None = None
    whole: bool | None = None
    error: dict[str, Any] | None = None
    tried: tuple[dict[str, Any], ...] = ()


@routes.post(
    "/api/provider-test",
    "Send a test prompt to a provider.",
    ProviderTestResponse,
    body=ProviderTestBody,
    slow=True,
    tag="overview",
)
def run_provider_test(state: WebState, request: ApiRequest) -> Any:
    body: ProviderTestBody = request.body
    if body.role is None and body.provider is None:
        raise InputError("name a role to test, or a provider")
    return state.test_provider(body.role, body.provider, body.prompt)
