"""Gather the facts from which `farro explain` derives why a job does not run."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from farro.execution import progress, task_snapshot
from farro.host import fs
from farro.jobs import places
from farro.jobs.envelope import SCHEMA_VERSION
from farro.jobs.explain_rules import Dependency, Diagnosis, Facts, SlotFact, diagnose
from farro.jobs.ids import is_job_id
from farro.jobs.moves import awaited_accounts, waits_for_person
from farro.jobs.states import Status
from farro.jobs.times import moment_or_none
from farro.plans.metadata import metadata_of, required_tags
from farro.queue import find_job, queues
from farro.store import leadership
from farro.store.accounts import AccountPause
from farro.store.port import AgentView, JobView, Store

_JOB_LIMIT = 4 << 20


def explain(store: Store, job_id: str, *, now: datetime) -> tuple[Facts, Diagnosis]:
    """Return the facts about a job, and the finding they lead to."""
    view = find_job.find_view(store, job_id)
    gathered = facts(store, view, now=now)
    return gathered, diagnose(gathered)


def facts(store: Store, view: JobView, *, now: datetime) -> Facts:
    """Gather everything that can keep a job from running."""
    life, folder = view.lifecycle, store.folder(view)
    agents = store.agents()
    prompt = progress.read_prompt(folder)
    holder = next((agent for agent in agents if view.job_id in agent.jobs), None)
    lock = None
    with contextlib.suppress(OSError):
        lock = fs.readlink(f"{folder}/lock") if view.status is Status.QUEUED else None
    quarantined = view.damaged if view.place == places.QUARANTINE else None
    file = f"{folder}/job.json"
    said = _said(file)
    began = moment_or_none(life.updated_at)
    held = _held(store, view)
    paused = store.paused().get(life.role) if view.status is Status.QUEUED else None
    return Facts(
        job_id=view.job_id,
        status=view.status,
        role=life.role,
        now=now,
        terminal=life.terminal,
        place=view.place,
        quarantined=quarantined,
        file=file,
        foreign=_foreign(said),
        contradicting=_contradiction(said, view),
        damaged=None if quarantined else view.damaged or (None if prompt else "prompt.json cannot be read"),
        error=None if life.error is None else f"{life.error.get('category')}: {life.error.get('message')}",
        attempt=life.attempt,
        agent=holder.id if holder is not None else life.agent,
        agent_alive=None if holder is None or holder.role is None else holder.alive,
        since_s=None if began is None else (now - began).total_seconds(),
        step=progress.current(folder, life.attempt) if view.status is Status.IN_PROGRESS else None,
        not_before=moment_or_none(life.not_before),
        waits=view.place == places.WAITING,
        question=task_snapshot.question(folder, life)
        if view.status is Status.QUEUED and waits_for_person(life)
        else None,
        after=_dependencies(store, prompt, "after") if view.status is Status.QUEUED else (),
        after_any=_dependencies(store, prompt, "after_any") if view.status is Status.QUEUED else (),
        tags=required_tags(prompt),
        workers=tuple(_worker(agent) for agent in agents if agent.role == life.role),
        before=store.ahead(view) if view.status is Status.QUEUED else 0,
        manager_silent_s=leadership.manager_silent_s(store, agents=agents),
        paused=None if paused is None else queues.words(life.role, paused),
        account=None if held is None else held.account,
        account_words="" if held is None else held.words(),
        account_refused=held is not None and held.until is None,
        lock=lock,
        lock_alive=any(agent.id == lock and agent.alive for agent in agents),
    )


def _held(store: Store, view: JobView) -> AccountPause | None:
    """Return the pause that ends first of those that the job waits for."""
    awaited = awaited_accounts(view.lifecycle)
    held = [pause for pause in store.accounts().paused() if pause.account in awaited] if awaited else []
    return min(held, key=lambda pause: math.inf if pause.left_s is None else pause.left_s, default=None)


def _said(file: str) -> Mapping[str, Any]:
    """Return job.json as it is; empty if it cannot be read."""
    try:
        data = json.loads(fs.read_bytes(file, _JOB_LIMIT))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _foreign(said: Mapping[str, Any]) -> str | None:
    """Return the schema version if it is not this farro's: the store lists such a job, but does not change it."""
    version = said.get("schema_version")
    if not said or version == SCHEMA_VERSION:
        return None
    return "" if version is None else ascii(version)[:40]


def _contradiction(said: Mapping[str, Any], view: JobView) -> str | None:
    """Return the status in job.json if it is not that of the job's place: no worker takes such a job."""
    status = str(said.get("status")).replace("-", "_")
    fitting = (view.status, Status.IN_PROGRESS) if view.status is Status.QUEUED else (view.status,)
    moving = view.status in (Status.IN_PROGRESS, Status.STALE)
    return None if not said or moving or status in fitting else ascii(status)[:40]


def named_dependencies(prompt: Mapping[str, Any], key: str) -> list[str]:
    """Return the job ids that a prompt's metadata names under `key` (after, after_any)."""
    named = metadata_of(prompt).get(key)
    named = [named] if isinstance(named, str) else named
    return (
        [job_id for job_id in named if isinstance(job_id, str) and is_job_id(job_id)] if isinstance(named, list) else []
    )


def _dependencies(store: Store, prompt: Mapping[str, Any], key: str) -> tuple[Dependency, ...]:
    found = []
    for job_id in named_dependencies(prompt, key):
        view = store.find(job_id)
        found.append(
            Dependency(job_id=job_id, status=None)
            if view is None
            else Dependency(job_id=job_id, status=view.status, terminal=view.lifecycle.terminal)
        )
    return tuple(found)


def _worker(agent: AgentView) -> SlotFact:
    tags = agent.identity.get("tags")
    offered = frozenset(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else frozenset()
    return SlotFact(agent=agent.id, alive=agent.alive, busy=bool(agent.jobs), tags=offered)
