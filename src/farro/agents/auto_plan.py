"""Create jobs from an Architect's drafts, and from tasks without a job (auto-plan). Off by default.

Jobs from drafts are part of the manager's own commit, through the outbox: a crash neither loses nor doubles them. Jobs
from tasks have an id derived from the task's id: enqueued twice, they exist once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any

from farro.config.settings import Settings
from farro.documents import Document
from farro.errors import BadDocument, CapacityReached, FarroError, SyncFailed
from farro.host import fs
from farro.host.clock import Clock
from farro.jobs.outcomes import Child
from farro.lazy_dataclass import dataclass, field
from farro.log.structured import Log
from farro.queue.admission import Caps, Gate, admit
from farro.roles import paths, prompt, task
from farro.roles.task import HUMAN, WorkflowTask
from farro.roles.workflow import MANAGER, Position
from farro.store.port import Claim, Store, Submission
from farro.worker import started_tasks

ORIGIN = "auto-plan"
# Inputs that a draft may not set: a task may allow more paths than the draft, so only a person chooses one.
_FORBIDDEN_INPUTS = ("task_id",)


def is_paused(before: bool, shares: Collection[float], *, pause: float, resume: float) -> bool:
    """Tell whether job creation is paused (SPEC-1 §10).

    It pauses when a role reaches the share `pause` of its cap, and resumes when no role exceeds `resume`.
    """
    fullest = max(shares, default=0.0)
    return fullest > min(resume, pause) if before else fullest >= pause


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftSelection:
    """The drafts that become jobs, and why the others do not."""

    prompts: tuple[Mapping[str, Any], ...]  # each in the form of prompt.json
    refused: tuple[str, ...]  # the reason for each of the others


def select_drafts(
    drafts: Sequence[Any],
    *,
    parent: str,
    allowed: Sequence[str],
    roles: Collection[str],
    limit: int,
    allow_absolute: bool = False,
    root: str | None = None,
) -> DraftSelection:
    """Select the drafts that may become jobs: at most `limit`, none that may write more than its parent."""
    prompts: list[Mapping[str, Any]] = []
    refused: list[str] = []
    for number, draft in enumerate(drafts, start=1):
        if not isinstance(draft, Mapping):
            refused.append(f"draft {number} is not a prompt")
            continue
        wider = [path for path in draft.get("allowed_paths") or () if not paths.within(str(path), allowed)]
        own = [name for name in _FORBIDDEN_INPUTS if name in (draft.get("inputs") or {})]
        if wider:
            refused.append(f"draft {number} would write {', '.join(wider)}, beyond {', '.join(allowed)}")
        elif own:
            refused.append(f"draft {number} chooses a task of its own (inputs.{own[0]})")
        elif len(prompts) >= limit:
            refused.append(f"draft {number} is beyond the limit of this run (manager.auto_plan_limit)")
        else:
            made = _prompt(draft, parent)
            try:
                prompt.load(Document(made, "draft"), roles=roles, allow_absolute=allow_absolute, root=root)
            except BadDocument as bad:
                refused.append(f"draft {number}: {bad.problems[0].message}")
            else:
                prompts.append(made)
    return DraftSelection(prompts=tuple(prompts), refused=tuple(refused))


def _prompt(draft: Mapping[str, Any], parent: str) -> dict[str, Any]:
    routing = draft.get("routing") or {"mode": "manager"}
    made = {name: draft.get(name) for name in ("role", "rubric", "success")}
    made["allowed_paths"] = list(draft.get("allowed_paths") or ())
    made["routing"] = {name: value for name, value in routing.items() if value is not None}
    if draft.get("inputs"):
        made["inputs"] = dict(draft["inputs"])
    made["metadata"] = {"origin": ORIGIN, "parent": parent}
    return made


LOOK_S = 10.0  # between two scans of tasks/
_LIMIT = 1 << 20
_README = "README"


@dataclass(kw_only=True)
class AutoPlan:
    """Auto-plan of one manager process: `made` counts against its limit."""

    store: Store
    root: str
    settings: Settings
    gate: Gate
    clock: Clock
    log: Log
    is_on: Callable[[], bool] = lambda: True  # asked before every job
    made: int = 0
    paused: bool = False
    _looked_s: float = float("-inf")
    _logged: set[str] = field(default_factory=set)

    @property
    def left(self) -> int:
        return max(0, self.settings.manager.auto_plan_limit - self.made)

    def look(self) -> bool:
        """Tell whether jobs may be created now. Logs when that changes."""
        caps: Caps = self.gate.caps
        loads = [(self.store.load(role), caps.of(role)) for role in self.store.roles()]
        shares = [load / cap if cap else 1.0 for load, cap in loads if cap is not None]
        capacity = self.settings.capacity
        now = is_paused(self.paused, shares, pause=capacity.pause, resume=capacity.resume)
        if now != self.paused:
            word = "paused" if now else "resumed"
            self.log("warning" if now else "info", f"auto-plan {word}", {"event": {"type": f"auto_plan_{word}"}})
            self.store.note(f"auto_plan_{word}", load=int(100 * max(shares, default=0.0)))
        self.paused = now
        return not now

    def select(self, claim: Claim, drafts: Any, task: WorkflowTask | None, at: Position) -> DraftSelection:
        """Select the drafts that become jobs when the manager's decision is committed."""
        return select_drafts(
            drafts,
            parent=claim.job_id,
            allowed=_allowed(claim.envelope.prompt, task, at),
            roles=list(self.store.roles()),
            limit=self.left,
            allow_absolute=self.settings.security.allow_absolute_paths,
            root=self.root,
        )

    def delivered(self, claim: Claim, chosen: DraftSelection) -> None:
        """Count and log the drafts after the commit that created their jobs."""
        self.made += len(chosen.prompts)
        for why in chosen.refused:
            fields = {"job_id": claim.job_id, "event": {"type": "auto_plan_refused"}}
            self.log("warning", f"auto-plan: {why}", fields)
        if chosen.refused:
            self.store.note("auto_plan_refused", job_id=claim.job_id, drafts=len(chosen.refused))

    def turn(self) -> list[str]:
        """Start the tasks that no job follows yet; return their jobs."""
        if not self.is_on():
            self._looked_s = float("-inf")  # once it is on, look at once
            return []
        now_s = self.clock.monotonic_s()
        if now_s - self._looked_s < LOOK_S:
            return []
        self._looked_s = now_s
        jobs: list[str] = []
        for name in self._files():
            task_id, _, _ = name.rpartition(".")
            if started_tasks.is_started(self.root, task_id):
                continue
            if not self.left:
                self._once("limit", f"auto-plan made {self.made} jobs, which is its limit (manager.auto_plan_limit)")
                break
            if not self.look():
                break
            try:
                found = task.read(
                    fs.read_regular(f"{self.root}/tasks/{name}", _LIMIT),
                    f"tasks/{name}",
                    name=task_id,
                    roles=list(self.store.roles()),
                    allow_absolute=self.settings.security.allow_absolute_paths,
                )
                if isinstance(found, WorkflowTask):
                    jobs += self._start(found)
            except CapacityReached as full:
                self._once("full", str(full))
                break
            except SyncFailed:
                raise
            except (BadDocument, FarroError, OSError) as error:
                self._once(name, f"auto-plan: {error}")
        return jobs

    def _files(self) -> list[str]:
        try:
            names = fs.listdir(f"{self.root}/tasks")
        except FileNotFoundError:
            return []
        return sorted(name for name in names if name.endswith((".json", ".md")) and not name.startswith((_README, ".")))

    def _start(self, found: WorkflowTask) -> list[str]:
        first = found.workflow[0]
        prompt: dict[str, Any] = {
            "role": MANAGER if first.role == HUMAN else first.role,
            "rubric": first.rubric,
            "allowed_paths": list(first.allowed_paths or found.allowed_paths or (".",)),
            "success": first.success or found.success or found.title,
            "routing": {"mode": "manager"},
            "inputs": {**found.inputs, "task_id": found.id},
            "metadata": {"origin": ORIGIN, **({"tags": list(found.metadata.tags)} if found.metadata.tags else {})},
        }
        job_id = job_of(found.id)
        admit(self.store, [Submission(role=prompt["role"], prompt=prompt, job_id=job_id)], self.gate)
        started_tasks.mark(self.root, found.id, job_id)
        self.made += 1
        event = {"type": ORIGIN, "task": found.id}
        self.log("info", f"auto-plan started task {found.id}", {"job_id": job_id, "event": event})
        return [job_id]

    def _once(self, key: str, message: str) -> None:
        if (entry := f"{key} {message}") not in self._logged:
            self._logged.add(entry)
            self.log("warning", message, {"event": {"type": "auto_plan_refused"}})


def job_of(task_id: str) -> str:
    """Return the id of the job that auto-plan creates for a task."""
    whole = f"auto-{task_id}"
    return whole if len(whole) <= 64 else f"{whole[:47]}-{sha256(task_id.encode()).hexdigest()[:16]}"


def child_jobs(chosen: DraftSelection) -> tuple[Child, ...]:
    """Return the selected drafts as child jobs of an outcome."""
    return tuple(Child(role=str(prompt["role"]), prompt=prompt) for prompt in chosen.prompts)


def _allowed(prompt: Mapping[str, Any], task: WorkflowTask | None, at: Position) -> tuple[str, ...]:
    """Return what the role that drafted may write: the paths of its step, else of the task.

    If its work was outside of the workflow, the paths of the prompt count. farro.agents.request tells the role the
    same.
    """
    own = tuple(prompt.get("allowed_paths") or ())
    step = task.workflow[at.step] if task is not None and at.step is not None else None
    if task is None or step is None or at.worked is None or step.role != at.worked.role:
        return own
    return step.allowed_paths or task.allowed_paths or own
