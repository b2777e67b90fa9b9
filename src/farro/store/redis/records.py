"""Jobs between Python and the scripts: what is sent of a new one, and a lifecycle from what is stored.

A claim is stored beside the last decided lifecycle and folded in here, by the same rule that every store uses
(kernel.moves.claimed): so a claim is one round trip, and no script knows what a lifecycle is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any

from farro import documents
from farro.documents.encoding import encoder
from farro.errors import Damaged, IllegalTransition
from farro.jobs import audit_fields, ids, places, transitions
from farro.jobs.envelope import SCHEMA_VERSION, Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.plans import after
from farro.plans.priority import PRIORITIES, priority
from farro.plans.tags import required_tags
from farro.store.port import JobView, Submission
from farro.store.redis.server import Arg
from farro.store.workspace import JobFiles, PostedFiles

MINTED = ""  # stands for the digest of an id that nobody chose
NARRATIVE, PAYLOAD, CARRIED = "prompt.md", "payload/", "carried/"
STATUS = {
    "queued": Status.QUEUED,
    "waits": Status.QUEUED,
    "held": Status.IN_PROGRESS,
    "marked": Status.STALE,
    "stale": Status.STALE,
    "open": Status.FAILED,
    "succeeded": Status.SUCCEEDED,
    "failed": Status.FAILED,
    "killed": Status.KILLED,
}
_encode = encoder(separators=(",", ":"))
_EPOCH = datetime.fromtimestamp(0, UTC)
_MS = timedelta(milliseconds=1)
_NEVER = "!"  # no agent offers it: TAG does not match it


@lru_cache(maxsize=16)  # jobs that are claimed together share theirs
def moment(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)


def milliseconds(when: datetime) -> int:
    return (when - _EPOCH) // _MS


def due_ms(lifecycle: Lifecycle) -> int:
    """As the server compares it; 0 where it is not delayed. Never earlier than the lifecycle says."""
    return 0 if lifecycle.not_before is None else milliseconds(datetime.fromisoformat(lifecycle.not_before))


def where(lifecycle: Lifecycle) -> str:
    """The place of a job that nobody holds, in the scripts' words."""
    match lifecycle.status:
        case Status.QUEUED:
            return "waits" if transitions.waits(lifecycle) else "queued"
        case Status.FAILED if not lifecycle.terminal:
            return "open"
        case status:
            return status.value


def line(codes: Mapping[str, Any]) -> bytes:
    """As the audit log spells it."""
    return text_bytes(_encode({name: value for name, value in codes.items() if value is not None}))


def tags(prompt: Mapping[str, Any]) -> str:
    """Sorted, with commas. What no agent can offer stands for itself as what none does."""
    wanted = required_tags(prompt)
    if not wanted:
        return ""
    return ",".join(sorted({tag if ids.TAG.fullmatch(tag) else _NEVER for tag in wanted}))


def digest(submission: Submission) -> str:
    payload = {name: data.hex() for name, data in submission.payload.items()}
    content = [submission.role, submission.prompt, submission.narrative, payload]
    return hashlib.sha256(documents.canonical(content)).hexdigest()


def text_bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


@dataclass(frozen=True, kw_only=True, slots=True)
class New:
    """A job to be made."""

    lifecycle: Lifecycle
    prompt: Mapping[str, Any]
    prompt_text: bytes
    digest: str
    token: str
    blocks: Sequence[str] = ()
    narrative: str | None = None
    payload: Mapping[str, bytes] | None = None
    carried: Mapping[str, bytes] | None = None  # of a job that repeats another
    actor: str = "submitter"

    @property
    def plain(self) -> bool:
        """Whether `enter` can make it."""
        more = self.blocks or self.payload or self.carried or self.narrative is not None
        return not (more or self.lifecycle.not_before) and self.digest == MINTED

    def entering(self) -> list[Arg]:
        """As `enter` reads it."""
        life = self.lifecycle
        rank = PRIORITIES.index(priority(self.prompt))
        told = line({**audit_fields.codes(life), "actor": self.actor})
        return [life.job_id, life.role, tags(self.prompt), rank, SCHEMA_VERSION, life.to_line(), self.prompt_text, told]

    def args(self) -> list[Arg]:
        """As `create` in the prelude reads it."""
        life = self.lifecycle
        args: list[Arg] = [
            life.job_id,
            self.digest,
            self.token,
            life.role,
            tags(self.prompt),
            PRIORITIES.index(priority(self.prompt)),
            due_ms(life),
            SCHEMA_VERSION,
            life.to_line(),
            self.prompt_text,
            line({**audit_fields.codes(life), "actor": self.actor}),
            len(self.blocks),
            *self.blocks,
        ]
        kept: dict[str, Arg] = {PAYLOAD + name: data for name, data in (self.payload or {}).items()}
        kept.update((_field(CARRIED + name), data) for name, data in (self.carried or {}).items())
        if self.narrative is not None:
            kept[NARRATIVE] = text_bytes(self.narrative)
        return args + files(kept)


def files(kept: Mapping[str, Arg]) -> list[Arg]:
    """As `keep` in the prelude reads them."""
    args: list[Arg] = [len(kept)]
    for name, data in kept.items():
        args += (name, data)
    return args


def posted(attempt: int, kept: PostedFiles) -> dict[str, Arg]:
    """The files of an attempt as they are stored. A name that is not UTF-8 keeps its bytes."""
    found: dict[str, Arg] = {_field(f"a/{attempt}/{name}"): data for name, data in kept.files.items()}
    if kept.elsewhere or kept.cut:
        more = {"elsewhere": dict(kept.elsewhere), "cut": dict(kept.cut)}
        found[f"a/{attempt}"] = json.dumps(more).encode()
    return found


def _field(name: str) -> Any:
    return name if name.isascii() else name.encode("utf-8", "surrogateescape")


def material(lifecycle: Lifecycle, prompt: bytes, stored: Mapping[bytes, bytes]) -> JobFiles:
    """What a job's folder is made of, from `files:<id>`."""
    narrative, payload, carried = None, {}, {}
    attempts: dict[int, tuple[dict[str, bytes], dict[str, Any]]] = {}
    for field, data in stored.items():
        name = field.decode("utf-8", "surrogateescape")
        if name == NARRATIVE:
            narrative = data.decode("utf-8", "replace")
        elif name.startswith(PAYLOAD):
            payload[name.removeprefix(PAYLOAD)] = data
        elif name.startswith(CARRIED):
            carried[name.removeprefix(CARRIED)] = data
        else:
            try:
                _, number, *rest = name.split("/", 2)
                kept, more = attempts.setdefault(int(number), ({}, {}))
                if rest:
                    kept[rest[0]] = data
                else:
                    more.update(_noted(data))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise Damaged(f"{lifecycle.job_id}: what was posted of it as {name!r} cannot be read") from error
    return JobFiles(
        lifecycle=lifecycle.to_json(),
        prompt=prompt,
        narrative=narrative,
        payload=payload,
        carried=carried,
        attempts={number: PostedFiles(files=kept, **more) for number, (kept, more) in sorted(attempts.items())},
    )


def _noted(data: bytes) -> dict[str, Any]:
    """What was cut of an attempt, and what lies elsewhere."""
    more = json.loads(data)
    elsewhere, cut = more["elsewhere"].items(), more["cut"].items()
    return {
        "elsewhere": {name: str(place) for name, place in elsewhere},
        "cut": {name: int(size) for name, size in cut},
    }


def record(text: bytes) -> Mapping[str, Any]:
    """A JSON object; an empty one where it is none: others are read beside it."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


@dataclass(kw_only=True)
class Seen:
    """A job as `look` answers it."""

    job_id: str
    life: bytes
    wh: str
    own: str  # "" when nobody has it
    attempts: int  # the highest
    claim: str  # "corr at policy" of the last claim
    version: bytes
    role: str
    prompt_text: bytes | None = None

    @classmethod
    def of(cls, job_id: str, row: Sequence[bytes | None]) -> Seen | None:
        if not row:
            return None
        life, wh, own, att, claim, version, role, *prompt = row
        assert life is not None, job_id
        assert wh is not None, job_id
        assert version is not None, job_id
        return cls(
            job_id=job_id,
            life=life,
            wh=wh.decode(),
            own=(own or b"").decode(),
            attempts=int(att or 0),
            claim=(claim or b"").decode(),
            version=version,
            role=(role or b"").decode(),
            prompt_text=prompt[0] if prompt else None,
        )

    @cached_property
    def lifecycle(self) -> Lifecycle:
        """With the claim, where there is one. UnknownSchema or Damaged: nobody decides about it."""
        before = Lifecycle.from_json(self.life)
        if self.wh != "held":
            return before
        corr, at, policy = self.claim.split(" ", 2)
        return folded(before, self.own, self.attempts, corr, int(at), policy)

    @property
    def readable(self) -> bool:
        try:
            return bool(self.lifecycle)
        except Damaged:
            return False

    @property
    def prompt(self) -> Mapping[str, Any]:
        return record(self.prompt_text or b"{}")

    def view(self) -> JobView:
        """What is damaged is shown as where it lies."""
        damaged = None
        try:
            now = self.lifecycle
        except (Damaged, IllegalTransition) as error:
            damaged = str(error)
            guess = transitions.enqueued(job_id=self.job_id, role=self.role or "Runner", now=_EPOCH)
            now = guess.changed(status=STATUS.get(self.wh, Status.FAILED), attempt=self.attempts)
        if self.own:
            return JobView(lifecycle=now, place=f"{places.in_progress(now.role)}/{self.own}", damaged=damaged)
        if self.wh == "waits":
            named = () if transitions.waits_for_person(now) else after.dependencies(self.prompt).all
            return JobView(lifecycle=now, place=places.WAITING, waits_for=named, damaged=damaged)
        return JobView(lifecycle=now, place=places.destination(now.role, now.status), damaged=damaged)


def folded(before: Lifecycle, agent: str, attempt: int, corr: str, at_ms: int, policy: str) -> Lifecycle:
    return transitions.claimed(
        before, agent=agent, attempt=attempt, correlation_id=corr, now=moment(at_ms), policy_version=policy or None
    )
