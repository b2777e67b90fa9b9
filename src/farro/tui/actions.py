"""Define what can be done to a job or a swarm from the screen, with the question that is asked first.

Each action blocks, and runs in a thread.
"""

from __future__ import annotations

from collections.abc import Callable

from farro.agents import service as agents
from farro.config.settings import Settings
from farro.host.clock import Clock
from farro.jobs.states import FINISHED, Status
from farro.lazy_dataclass import dataclass
from farro.queue import jobs, retry
from farro.queue.admission import Gate
from farro.store.port import Store
from farro.swarm import service as swarms


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionContext:
    """The root and the user in whose name the actions are done."""

    store: Store
    settings: Settings
    gate: Gate
    clock: Clock
    by: str  # as an agent name
    # Makes sure that an orchestrator runs; returns a message for the person, if any.
    rouse: Callable[[], str | None] = lambda: None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScreenAction:
    """One action; `do` returns the result as a sentence."""

    name: str
    key: str
    label: str
    question: str  # {job} is the id
    do: Callable[[ActionContext, str, str | None], str]
    dangerous: bool = False
    takes_note: bool = True  # for the job's history
    needs_note: bool = False
    offered: Callable[[Status, bool], bool] = lambda status, terminal: True  # status of a job, and whether it is final


def _requeue(hands: ActionContext, job_id: str, note: str | None) -> str:
    return f"{job_id} is {jobs.requeue(hands.store, job_id, by=hands.by, note=note).status}"


def _kill(hands: ActionContext, job_id: str, note: str | None) -> str:
    life = jobs.kill(hands.store, job_id, by=hands.by, note=note)
    return f"{job_id} is {life.status}" + ("" if life.status is Status.KILLED else " already; nothing was changed")


def _complete(hands: ActionContext, job_id: str, note: str | None) -> str:
    return f"{job_id} is {jobs.force_complete(hands.store, job_id, by=hands.by, note=note).status}"


def _retry(hands: ActionContext, job_id: str, note: str | None) -> str:
    durable = hands.settings.durability == "power"
    made = retry.retry(hands.store, job_id, durable=durable, gate=hands.gate)
    kept = f"; not run again: {', '.join(made.kept[:5])}" if made.kept else ""
    return f"{made.job_id} repeats {job_id}{kept}"


def _approve(hands: ActionContext, job_id: str, note: str | None) -> str:
    agents.approve(hands.store, job_id, by=hands.by, note=note)
    return f"{job_id} is approved; the manager takes it on"


def _refuse(hands: ActionContext, job_id: str, note: str | None) -> str:
    agents.refuse(hands.store, job_id, by=hands.by, note=note or "")
    return f"{job_id} is refused; the manager sends it back"


def _swarm(signal: str) -> Callable[[ActionContext, str, str | None], str]:
    def do(hands: ActionContext, swarm: str, note: str | None) -> str:
        request = swarms.CommandRequest(signal=signal, swarm=swarm, origin=hands.by)
        swarms.submit(swarms.folder(hands.store.root), request, clock=hands.clock)
        told = hands.rouse()
        return f"{signal} of {swarm} is asked for" + (f"; {told}" if told else "")

    return do


REQUEUE = ScreenAction(
    name="requeue",
    key="r",
    label="Requeue",
    question="Put {job} back into its queue?",
    do=_requeue,
    offered=lambda status, terminal: status in (Status.STALE, Status.FAILED) and not terminal,
)
RETRY = ScreenAction(
    name="retry",
    key="t",
    label="Retry",
    question="Run {job} again, as a new job, from where it failed?",
    do=_retry,
    takes_note=False,
    offered=lambda status, terminal: status in FINISHED,
)
KILL = ScreenAction(
    name="kill",
    key="K",
    label="Kill",
    question="Kill {job}? Its processes end, and what it was doing is lost.",
    do=_kill,
    dangerous=True,
    offered=lambda status, terminal: not terminal,
)
COMPLETE = ScreenAction(
    name="complete",
    key="C",
    label="Force-complete",
    question="Declare {job} succeeded, whatever its attempts say?",
    do=_complete,
    dangerous=True,
    offered=lambda status, terminal: not terminal,
)
APPROVE = ScreenAction(name="approve", key="a", label="Approve", question="Let {job} go on?", do=_approve)
REFUSE = ScreenAction(
    name="refuse",
    key="f",
    label="Refuse",
    question="Send {job} back? The role that gets it is told why.",
    do=_refuse,
    needs_note=True,
)
START = ScreenAction(
    name="start",
    key="s",
    label="Start",
    question="Start the swarm {job}?",
    do=_swarm("swarm-start"),
    takes_note=False,
)
STOP = ScreenAction(
    name="stop",
    key="S",
    label="Stop",
    question="Stop the swarm {job}? Its components stay, and take no more work.",
    do=_swarm("swarm-stop"),
    dangerous=True,
    takes_note=False,
)
ON_JOBS = (REQUEUE, RETRY, KILL, COMPLETE)
ACTIONS = {one.name: one for one in (*ON_JOBS, APPROVE, REFUSE, START, STOP)}
