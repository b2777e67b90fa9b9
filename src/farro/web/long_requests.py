"""What is asked for once and may take a while: waiting, a replay, tools, the lock of policies, a provider's test.

What each does lives in operations, under these names. They run in threads of their own (`running`): however many wait,
whoever looks does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

from farro.agents.service import TEST_PROMPT, ReplayedAttempt, replay_job
from farro.doctor import policy_lock
from farro.documents.constraints import Bounds, Length, Size
from farro.errors import InputError
from farro.execution import tool_catalog as tools
from farro.lazy_dataclass import dataclass
from farro.queue import wait as waiting
from farro.queue.wait import EndedJob
from farro.web import answers
from farro.web.endpoints import Asked, Endpoint, Nothing, get, post
from farro.web.state import House

LONGEST_S = 60.0  # that one request waits; whoever wants more asks again
_SLICE_S = 1.0  # how soon a server that stops lets go of those who wait

# --- waiting -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WaitQuery:
    job: Annotated[tuple[str, ...], Size(at_least=1, at_most=200)]
    any: bool = False  # return when the first of them has ended
    timeout_s: Annotated[float, Bounds(at_least=0, at_most=LONGEST_S)] = 20.0


@dataclass(frozen=True, kw_only=True)
class EndTold:
    """`life` None: the job is not there any more."""

    job_id: str
    good: bool
    life: answers.Life | None


@dataclass(frozen=True, kw_only=True)
class Waited:
    """`waiting` are those that have not ended; `timed_out`: ask again."""

    jobs: tuple[EndTold, ...]
    waiting: tuple[str, ...]
    timed_out: bool


def wait(house: House, asked: Asked) -> Any:
    query: WaitQuery = asked.query
    left = dict.fromkeys(house.meant(job) for job in query.job)
    ended: list[EndedJob] = []
    for end in _ends(house, left, query.timeout_s):
        ended.append(end)
        if query.any:
            break
    return {
        "jobs": [_told(end) for end in ended],
        "waiting": list(left),
        "timed_out": bool(left) and not (query.any and ended),
    }


def _ends(house: House, left: dict[str, None], timeout_s: float) -> Iterator[EndedJob]:
    """Each as it ends, and is taken out of `left`."""
    deadline_s = house.clock.monotonic_s() + timeout_s
    while left:
        slice_s = max(0.0, min(_SLICE_S, deadline_s - house.clock.monotonic_s()))
        for end in waiting.ends(house.store, house.root, list(left), clock=house.clock, timeout_s=slice_s):
            del left[end.job_id]
            yield end
        if house.stopping.is_set() or house.clock.monotonic_s() >= deadline_s:
            return


def _told(end: EndedJob) -> dict[str, Any]:
    life = None if end.lifecycle is None else answers.life(end.lifecycle)
    return {"job_id": end.job_id, "good": end.good, "life": life}


# --- replay ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ReplayTold:
    job_id: str
    same: bool
    attempts: tuple[ReplayedAttempt, ...]


def replayed(house: House, asked: Asked) -> Any:
    job_id = house.meant(asked.path["job"])
    done = replay_job(house.store, house.root, job_id, settings_of=house.settings_of, clock=house.clock)
    return {"job_id": job_id, "same": all(one.same for one in done), "attempts": [asdict(one) for one in done]}


# --- tools -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ToolsTold:
    tools: tuple[tools.ToolInfo, ...]


def listed_tools(house: House, asked: Asked) -> Any:
    """Those that are registered. Programs that merely lie on the PATH are not asked: whoever may only look must not be
    able to choose what is started here."""
    ground = house.ground()
    place = tools.ProgramSearch(env=ground.env, cwd=ground.cwd)
    found = tools.listed(ground.tools, place, configured=list(house.settings.tools))
    return {"tools": [asdict(one) for one in found]}


# --- the lock of policies ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DifferenceTold:
    path: str
    locked: Any
    found: Any


@dataclass(frozen=True, kw_only=True)
class LockTold:
    """`locked`: the file is there. `differences`: where what is differs from it."""

    file: str
    locked: bool
    differences: tuple[DifferenceTold, ...]


def lock_shown(house: House, asked: Asked) -> Any:
    written = policy_lock.read(house.root)
    found = [] if written is None else policy_lock.compare(written, house.lock())
    told = [{"path": one.path, "locked": _plain(one.wanted), "found": _plain(one.found)} for one in found]
    return {"file": policy_lock.FILE, "locked": written is not None, "differences": told}


def _plain(value: Any) -> Any:
    """What is absent on one side has no value."""
    return value if isinstance(value, str | int | float | bool | list | dict | None) else str(value)


@dataclass(frozen=True, kw_only=True)
class LockWritten:
    file: str
    changed: bool


def lock_written(house: House, asked: Asked) -> Any:
    return {"file": policy_lock.FILE, "changed": policy_lock.write(house.root, house.lock())}


# --- a provider --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ProviderAsked:
    """A role, a provider, or both. The call is a real one, and costs what it costs."""

    role: str | None = None
    provider: str | None = None
    prompt: Annotated[str, Length(4000)] = TEST_PROMPT


@dataclass(frozen=True, kw_only=True)
class ProviderTold:
    """`ok` false: nobody answered; `error` says why."""

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


def provider_asked(house: House, asked: Asked) -> Any:
    body: ProviderAsked = asked.body
    if body.role is None and body.provider is None:
        raise InputError("name a role to test, or a provider")
    return house.ask_provider(body.role, body.provider, body.prompt)


ENDPOINTS: tuple[Endpoint, ...] = (
    get("/api/wait", wait, "Wait until jobs have ended.", Waited, query=WaitQuery, slow=True),
    post(
        "/api/jobs/{job}/replay",
        replayed,
        "An agent job once more, with its recorded answers; nothing is kept.",
        ReplayTold,
        body=Nothing,
        harmless=True,
        slow=True,
    ),
    get(
        "/api/tools", listed_tools, "The tools that steps may name.", ToolsTold, keep_s=10.0, tag="overview", slow=True
    ),
    get("/api/policy/lock", lock_shown, "policy.lock.json beside what is.", LockTold, keep_s=1.0, tag="overview"),
    post("/api/policy/lock", lock_written, "Write policy.lock.json.", LockWritten, body=Nothing, tag="overview"),
    post(
        "/api/provider-test",
        provider_asked,
        "Ask a role's provider something.",
        ProviderTold,
        body=ProviderAsked,
        tag="overview",
        slow=True,
    ),
)
