"""What may be done about a job or a swarm from the screen: one operation each, with the question that is asked first.

Asking lives in dialogs; each of these blocks, and runs in a thread.
"""

from __future__ import annotations

from collections.abc import Callable

from farro.agents import service as agents
from farro.config.settings import Settings
from farro.host.clock_port import Clock
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.queue import jobs, retry
from farro.queue.admission import Gate
from farro.queue.tree import FINISHED
from farro.store.port import Store
from farro.swarm import files, requests


@dataclass(frozen=True, kw_only=True, slots=True)
class Hands:
    """What the actions need: the root, and who acts."""

    store: Store
    settings: Settings
    gate: Gate
    clock: Clock
    by: str  # as an agent's name
    # What sees to it that swarm commands are carried out; answers what a person should know, if anything.
    rouse: Callable[[], str | None] = lambda: None


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """`do` answers what became of it, in words."""

    name: str
    key: str
    label: str
    question: str  # {job} is the id
    do: Callable[[Hands, str, str | None], str]
    dangerous: bool = False
    takes_note: bool = True  # which goes into the job's history
    needs_note: bool = False
    offered: Callable[[Status, bool], bool] = lambda status, terminal: True  # of a job; whether that is final


def _requeue(hands: Hands, job_id: str, note: str | None) -> str:
    return f"{job_id} is {jobs.requeue(hands.store, job_id, by=hands.by, note=note).status}"


def _kill(hands: Hands, job_id: str, note: str | None) -> str:
    life = jobs.kill(hands.store, job_id, by=hands.by, note=note)
    return f"{job_id} is {life.status}" + ("" if life.status is Status.KILLED else " already; nothing was changed")


def _complete(hands: Hands, job_id: str, note: str | None) -> str:
    return f"{job_id} is {jobs.force_complete(hands.store, job_id, by=hands.by, note=note).status}"


def _retry(hands: Hands, job_id: str, note: str | None) -> str:
    durable = hands.settings.durability == "power"
    made = retry.retry(hands.store, hands.store.root, job_id, durable=durable, gate=hands.gate)
    kept = f"; not run again: {', '.join(made.kept[:5])}" if made.kept else ""
    return f"{made.job_id} repeats {job_id}{kept}"


def _approve(hands: Hands, job_id: str, note: str | None) -> str:
    agents.approve(hands.store, hands.store.root, job_id, by=hands.by, note=note)
    return f"{job_id} is approved; the manager takes it on"


def _refuse(hands: Hands, job_id: str, note: str | None) -> str:
    agents.refuse(hands.store, hands.store.root, job_id, by=hands.by, note=note or "")
    return f"{job_id} is refused; the manager sends it back"


def _swarm(signal: str) -> Callable[[Hands, str, str | None], str]:
    def do(hands: Hands, swarm: str, note: str | None) -> str:
        place = f"{hands.store.root}/{files.FOLDER}"
        requests.ask(place, signal, swarm, origin=hands.by, clock=hands.clock)
        told = hands.rouse()
        return f"{signal} of {swarm} is asked for" + (f"; {told}" if told else "")

    return do


REQUEUE = Action(
    name="requeue",
    key="r",
    label="Requeue",
    question="Put {job} back into its queue?",
    do=_requeue,
    offered=lambda status, terminal: status in (Status.STALE, Status.FAILED) and not terminal,
)
RETRY = Action(
    name="retry",
    key="t",
    label="Retry",
    question="Run {job} again, as a new job, from where it failed?",
    do=_retry,
    takes_note=False,
    offered=lambda status, terminal: status in FINISHED,
)
KILL = Action(
    name="kill",
    key="K",
    label="Kill",
    question="Kill {job}? Its processes end, and what it was doing is lost.",
    do=_kill,
    dangerous=True,
    offered=lambda status, terminal: not terminal,
)
COMPLETE = Action(
    name="complete",
    key="C",
    label="Force-complete",
    question="Declare {job} succeeded, whatever its attempts say?",
    do=_complete,
    dangerous=True,
    offered=lambda status, terminal: not terminal,
)
APPROVE = Action(name="approve", key="a", label="Approve", question="Let {job} go on?", do=_approve)
REFUSE = Action(
    name="refuse",
    key="f",
    label="Refuse",
    question="Send {job} back? The role that gets it is told why.",
    do=_refuse,
    needs_note=True,
)
START = Action(
    name="start",
    key="s",
    label="Start",
    question="Start the swarm {job}?",
    do=_swarm("swarm-start"),
    takes_note=False,
)
STOP = Action(
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
