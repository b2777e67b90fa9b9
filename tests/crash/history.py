"""Check a storm's history and its final tree: nothing lost, nothing duplicated, nothing unexpected.

`read_tree` only reads; `check` is a pure function of its arguments. Tests run it on histories with one error each,
because a checker that never fails proves nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

ENDS = frozenset({"committed", "killed", "gave_up", "force_completed"})  # reasons of a final hop
FINAL = frozenset({"succeeded", "failed", "killed"})


@dataclass(frozen=True, kw_only=True)
class Hop:
    reason: str
    attempt: int
    by: str
    to: str

    @classmethod
    def read(cls, data: dict[str, Any]) -> Hop:
        return cls(reason=data["reason"], attempt=data["attempt"], by=data["by"], to=data["to"])


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job's folder in the final tree."""

    id: str
    place: str
    status: str
    token: str  # chosen by the submitter and stored in the prompt
    finalized: bool = True
    hops: tuple[Hop, ...] = ()
    attempts: int = 0  # the highest
    resumed: frozenset[int] = frozenset()  # attempts that reused steps of an earlier one


@dataclass(kw_only=True)
class Tree:
    jobs: list[Job] = field(default_factory=list)
    registered: set[str] = field(default_factory=set)  # chosen ids
    stray: list[str] = field(default_factory=list)  # leftovers: locks, torn files, dead agents


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A worker's log line that its commit was accepted."""

    job: str
    attempt: int
    agent: str
    status: str


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A worker's log line that its claim was lost: the store must not have accepted its commit of that attempt."""

    job: str
    attempt: int
    agent: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer that an operator got for a command."""

    verb: str
    job: str
    status: str
    hops: tuple[Hop, ...]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One line that a step appended to the effects file; lines are in the order in which they happened."""

    job: str
    attempt: int


@dataclass(kw_only=True)
class History:
    tried: set[str] = field(default_factory=set)  # tokens of started submissions
    enqueued: list[tuple[str, str]] = field(default_factory=list)  # (id, token) of acknowledged submissions
    committed: list[Committed] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)  # processes of attempts that outlived all workers


@dataclass(kw_only=True)
class Verdict:
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.duplicated or self.unexpected)

    def __str__(self) -> str:
        told = []
        for name in ("lost", "duplicated", "unexpected"):
            found: list[str] = getattr(self, name)
            told += [f"{name.upper()}: {line}" for line in found[:10]]
            told += [f"{name.upper()}: and {len(found) - 10} more"] if len(found) > 10 else []
        return "\n".join(told) or "nothing lost, nothing duplicated, nothing unexpected"


def check(history: History, tree: Tree, *, late_effects: bool = False) -> Verdict:
    """Check a history. `late_effects`: a fenced attempt may act after the next one began. On one machine the recovering
    process ends the old attempt's processes first; on a machine behind a cut link they can only be fenced."""
    verdict = Verdict()
    places: dict[str, list[Job]] = defaultdict(list)
    for job in tree.jobs:
        places[job.id].append(job)
    for job_id, found in places.items():
        if len(found) > 1:
            verdict.duplicated.append(f"{job_id} lies in {', '.join(job.place for job in found)}")
    jobs = {job_id: found[0] for job_id, found in places.items()}
    _submissions(history, tree, jobs, verdict)
    for job in jobs.values():
        _ends(job, verdict)
    _commits(history, jobs, verdict)
    _answers(history, jobs, verdict)
    _refusals(history, jobs, verdict)
    _effects(history, jobs, verdict, late_effects)
    verdict.unexpected += tree.stray
    verdict.unexpected += [f"a process outlived its attempt: {orphan}" for orphan in history.orphans]
    return verdict


def _submissions(history: History, tree: Tree, jobs: dict[str, Job], verdict: Verdict) -> None:
    tokens: dict[str, str] = {}
    for job_id, token in history.enqueued:
        if job_id not in jobs:
            verdict.lost.append(f"{job_id} ({token}) was acknowledged and is nowhere")
        elif jobs[job_id].token != token:
            verdict.lost.append(f"{job_id}: {token} was acknowledged, but {jobs[job_id].token} lies there")
        if tokens.setdefault(job_id, token) != token:
            verdict.duplicated.append(f"{job_id} was acknowledged for {tokens[job_id]} and for {token}")
    for token, times in Counter(job.token for job in tree.jobs).items():
        if times > 1:
            verdict.duplicated.append(f"{token} was submitted once and is {times} jobs")
        if token not in history.tried:
            verdict.unexpected.append(f"nobody submitted {token}")
    for job_id in tree.registered - jobs.keys():
        verdict.lost.append(f"{job_id} is registered and there is no such job")


def _ends(job: Job, verdict: Verdict) -> None:
    ends = [hop for hop in job.hops if hop.reason in ENDS]
    if job.status not in FINAL or not job.finalized or not job.place.endswith(f"/completed/{job.status}"):
        verdict.unexpected.append(f"{job.id} did not end: it is {job.status} in {job.place}")
    elif len(ends) > 1:
        verdict.duplicated.append(f"{job.id} was ended {len(ends)} times: {[hop.reason for hop in ends]}")
    elif not ends or job.hops[-1] is not ends[0] or ends[0].to != job.place:
        verdict.unexpected.append(f"{job.id} is {job.status} in {job.place}, but its hops do not say so")


def _commits(history: History, jobs: dict[str, Job], verdict: Verdict) -> None:
    finals: Counter[str] = Counter()
    for said in history.committed:
        job = jobs.get(said.job)
        if job is None:
            verdict.lost.append(f"{said.job} was committed by {said.agent} and is nowhere")
            continue
        kept = [hop for hop in job.hops if hop.attempt == said.attempt and hop.by == said.agent]
        if not any(_says(hop, said.status) for hop in kept):
            verdict.lost.append(
                f"{said.job}: {said.status} by {said.agent} in attempt {said.attempt} is not in its hops"
            )
        if said.status in FINAL:
            finals[said.job] += 1
            if job.status != said.status:
                verdict.lost.append(f"{said.job} was acknowledged as {said.status} and is {job.status}")
    verdict.duplicated += [f"{job_id} was acknowledged as final {n} times" for job_id, n in finals.items() if n > 1]


def _says(hop: Hop, status: str) -> bool:
    return hop.to.endswith("/incoming" if status == "queued" else f"/{status}")


def _answers(history: History, jobs: dict[str, Job], verdict: Verdict) -> None:
    for told in history.answers:
        job = jobs.get(told.job)
        what = f"{told.verb} {told.job} was answered {told.status}"
        if job is None:
            verdict.lost.append(f"{what}, and it is nowhere")
        elif job.hops[: len(told.hops)] != told.hops:
            verdict.lost.append(f"{what}, and its hops do not say so any more")
        elif told.status in FINAL and (told.status != job.status or job.hops != told.hops):
            verdict.lost.append(f"{what}, and it is {job.status}")


def _refusals(history: History, jobs: dict[str, Job], verdict: Verdict) -> None:
    for told in history.refused:
        hops = jobs[told.job].hops if told.job in jobs else ()
        if any((hop.reason, hop.attempt, hop.by) == ("committed", told.attempt, told.agent) for hop in hops):
            verdict.unexpected.append(
                f"{told.job}: {told.agent} was told that it lost attempt {told.attempt}, and its commit was accepted"
            )


def _effects(history: History, jobs: dict[str, Job], verdict: Verdict, late: bool) -> None:
    acted: dict[str, set[int]] = defaultdict(set)
    latest: dict[str, int] = {}
    for effect in history.effects:
        job = jobs.get(effect.job)
        if job is None or not 1 <= effect.attempt <= job.attempts:
            verdict.unexpected.append(f"{effect.job} acted in attempt {effect.attempt}, which does not exist")
            continue
        acted[effect.job].add(effect.attempt)
        if effect.attempt < latest.get(effect.job, 0) and not late:
            verdict.unexpected.append(
                f"{effect.job}: attempt {effect.attempt} acted after attempt {latest[effect.job]} had begun"
            )
        latest[effect.job] = max(effect.attempt, latest.get(effect.job, 0))
    for job in jobs.values():
        accepted = [hop.attempt for hop in job.hops if hop.reason == "committed"]
        if job.status != "succeeded" or not accepted:
            continue
        earlier = accepted[0] in job.resumed and any(attempt < accepted[0] for attempt in acted[job.id])
        if accepted[0] not in acted[job.id] and not earlier:
            verdict.lost.append(f"{job.id} succeeded in attempt {accepted[0]}, but that attempt did nothing")


# --- reading -------------------------------------------------------------------------------------------------------


def read_tree(root: str) -> Tree:
    tree = Tree(registered=set(os.listdir(f"{root}/jobs/.ids")))
    for folder, names, files in os.walk(root):
        place = os.path.relpath(folder, root)
        if "prompt.json" in files and not place.startswith("jobs/.staging"):
            tree.jobs += read_folder(folder, place, tree.stray)
            names.clear()
        elif "/incoming/" in f"/{place}" or "/completed/succeeded/" in place:
            tree.stray.append(f"{place} is not a job")
    agents = [f"agents/{role}/in-progress" for role in sorted(os.listdir(f"{root}/agents"))]
    for home in (*agents, "jobs/.held", "jobs/.staging", "jobs/outbox", "jobs/stale", "jobs/quarantine"):
        tree.stray += [f"{name} is left in {home}" for name in sorted(os.listdir(f"{root}/{home}"))]
    return tree


def read_folder(folder: str, place: str, stray: list[str]) -> list[Job]:
    """Return the job in this folder; if it is unreadable, return none and add the reason to `stray`."""
    home, name = os.path.split(place)
    if os.path.lexists(f"{folder}/lock"):
        stray.append(f"a lock is left in {place}")
    documents: dict[str, Any] = {}
    for path in (f"{folder}/job.json", f"{folder}/prompt.json", *_results(folder)):
        try:
            with open(path, encoding="utf-8") as file:
                documents[os.path.relpath(path, folder)] = json.load(file)
        except (OSError, ValueError) as error:
            stray.append(f"{os.path.relpath(path, folder)} of {place} is torn: {error}")
    if not documents.keys() >= {"job.json", "prompt.json"}:
        return []
    life = documents["job.json"]
    numbers = [int(number) for number in _attempts(folder)]
    job = Job(
        id=name,
        place=home,
        status=life["status"],
        token=str(documents["prompt.json"].get("plan_id")),
        finalized=life["finalized_at"] is not None,
        hops=tuple(map(Hop.read, life["hops"])),
        attempts=max(numbers, default=0),
        resumed=frozenset(number for number in numbers if _took_over(documents, number)),
    )
    if life["job_id"] != name:
        stray.append(f"{place} says that it is {life['job_id']}")
    return [job]


def _took_over(documents: dict[str, Any], attempt: int) -> bool:
    result = documents.get(f"attempts/{attempt:04d}/result.json", {})
    return any(step.get("resumed") for step in result.get("step_results", ()))


def _attempts(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(f"{folder}/attempts") if name.isdigit()]
    except FileNotFoundError:
        return []


def _results(folder: str) -> list[str]:
    paths = [f"{folder}/attempts/{name}/result.json" for name in _attempts(folder)]
    return [path for path in paths if os.path.exists(path)]


def read_effects(path: str) -> Iterator[Effect]:
    """Read lines `<job>/<attempt>@<root>`, which steps write from FARRO_CLAIM."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            job, _, attempt = line.strip().partition("/")
            yield Effect(job=job, attempt=int(attempt.partition("@")[0]))


def read_worker_log(lines: Iterable[str]) -> Iterator[Committed]:
    """Read a worker's JSON lines. A kill may cut the last one short; then no reader got that report."""
    for line in lines:
        if "job status changed" not in line or not re.search(r"\}\s*$", line):
            continue
        said = json.loads(line)
        yield Committed(job=said["job_id"], attempt=said["attempt"], agent=said["agent"], status=said["event"]["to"])


def read_notes(lines: Iterable[str], history: History) -> None:
    """Read the notes of submitters and operators: one before each request, one after each answer."""
    for line in lines:
        note = json.loads(line)
        if note["what"] == "try":
            history.tried.add(note["token"])
        elif note["what"] == "enqueued":
            history.enqueued.append((note["id"], note["token"]))
        elif note["what"] == "told":
            life = note["life"]
            hops = tuple(map(Hop.read, life["hops"]))
            history.answers.append(Answer(verb=note["verb"], job=life["job_id"], status=life["status"], hops=hops))
