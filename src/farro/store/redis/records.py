"""Convert jobs between Python and the Lua scripts.

A claim is stored beside the last decided lifecycle and applied on reading, by the rule that every store uses
(farro.jobs.moves.claimed). So a claim takes one round trip, and no script parses a lifecycle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any

from farro.documents.json_text import encoder
from farro.errors import Damaged, IllegalTransition
from farro.jobs import audit_fields, ids, moves, places
from farro.jobs.envelope import SCHEMA_VERSION, Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.plans import after
from farro.plans.metadata import PRIORITIES, priority, required_tags
from farro.store.port import JobView
from farro.store.redis.client import Arg
from farro.store.workspace import JobFiles, PostedFiles

MINTED = ""  # the digest of a job whose id farro made
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
_NEVER = "!"  # no agent offers it: ids.TAG does not match it


@lru_cache(maxsize=16)  # jobs that are claimed together share their time
def from_ms(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)


def to_ms(when: datetime) -> int:
    return (when - _EPOCH) // _MS


def due_ms(lifecycle: Lifecycle) -> int:
    """Return the due time as the server compares it, never earlier than the lifecycle says; 0: not delayed."""
    return 0 if lifecycle.not_before is None else to_ms(datetime.fromisoformat(lifecycle.not_before))


def place_of(lifecycle: Lifecycle) -> str:
    """Return the place (`wh`) of a job that no agent holds."""
    match lifecycle.status:
        case Status.QUEUED:
            return "waits" if moves.waits(lifecycle) else "queued"
        case Status.FAILED if not lifecycle.terminal:
            return "open"
        case status:
            return status.value


def audit_line(codes: Mapping[str, Any]) -> bytes:
    """Encode a line of the audit log."""
    told = audit_fields.without_names(codes, actor="")
    return text_bytes(_encode({name: value for name, value in told.items() if value is not None}))


def tags(prompt: Mapping[str, Any]) -> str:
    """Return the required tags, sorted and joined by commas. A tag that is not valid is replaced by one that no agent
    offers."""
    wanted = required_tags(prompt)
    if not wanted:
        return ""
    return ",".join(sorted({tag if ids.TAG.fullmatch(tag) else _NEVER for tag in wanted}))


def text_bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


@dataclass(frozen=True, kw_only=True, slots=True)
class NewJob:
    """A job to be created."""

    lifecycle: Lifecycle
    prompt: Mapping[str, Any]
    prompt_text: bytes
    digest: str
    token: str
    blocks: Sequence[str] = ()
    narrative: str | None = None
    payload: Mapping[str, bytes] | None = None
    carried: Mapping[str, bytes] | None = None  # from the job that this one repeats
    actor: str = "submitter"

    @property
    def plain(self) -> bool:
        """Return whether the `enter` script can create it."""
        more = self.blocks or self.payload or self.carried or self.narrative is not None
        return not (more or self.lifecycle.not_before) and self.digest == MINTED

    def entering(self) -> list[Arg]:
        """Return the arguments of the `enter` script."""
        life = self.lifecycle
        rank = PRIORITIES.index(priority(self.prompt))
        event = audit_line({**audit_fields.codes(life), "actor": self.actor})
        return [
            life.job_id,
            life.role,
            tags(self.prompt),
            rank,
            SCHEMA_VERSION,
            life.to_line(),
            self.prompt_text,
            event,
        ]

    def args(self) -> list[Arg]:
        """Return the job's arguments as `create` in prelude.lua reads them."""
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
            audit_line({**audit_fields.codes(life), "actor": self.actor}),
            len(self.blocks),
            *self.blocks,
        ]
        kept: dict[str, Arg] = {PAYLOAD + name: data for name, data in (self.payload or {}).items()}
        kept.update((_field(CARRIED + name), data) for name, data in (self.carried or {}).items())
        if self.narrative is not None:
            kept[NARRATIVE] = text_bytes(self.narrative)
        return args + file_args(kept)


def file_args(kept: Mapping[str, Arg]) -> list[Arg]:
    """Return files as `store_files` in prelude.lua reads them."""
    args: list[Arg] = [len(kept)]
    for name, data in kept.items():
        args += (name, data)
    return args


def attempt_fields(attempt: int, kept: PostedFiles) -> dict[str, Arg]:
    """Return the fields of `files:<id>` for one attempt. A name that is not UTF-8 keeps its bytes."""
    found: dict[str, Arg] = {_field(f"a/{attempt}/{name}"): data for name, data in kept.files.items()}
    if kept.elsewhere or kept.cut:
        more = {"elsewhere": dict(kept.elsewhere), "cut": dict(kept.cut)}
        found[f"a/{attempt}"] = json.dumps(more).encode()
    return found


def _field(name: str) -> Any:
    return name if name.isascii() else name.encode("utf-8", "surrogateescape")


def material_of(lifecycle: Lifecycle, prompt: bytes, stored: Mapping[bytes, bytes]) -> JobFiles:
    """Build the contents of a job's folder from `files:<id>`."""
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
    """Read which files of an attempt were truncated, and which are stored in the shared directory."""
    more = json.loads(data)
    elsewhere, cut = more["elsewhere"].items(), more["cut"].items()
    return {
        "elsewhere": {name: str(place) for name, place in elsewhere},
        "cut": {name: int(size) for name, size in cut},
    }


def json_object(text: bytes) -> Mapping[str, Any]:
    """Parse a JSON object; return {} for anything else, so that one bad record does not hide the others."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


@dataclass(kw_only=True)
class JobRecord:
    """A job as the `look` script returns it."""

    job_id: str
    life: bytes
    place: str
    owner: str  # "" if no agent has it
    attempts: int  # the highest attempt so far
    claim: str  # "correlation-id at policy" of the last claim
    version: bytes
    role: str
    prompt_text: bytes | None = None

    @classmethod
    def of(cls, job_id: str, row: Sequence[bytes | None]) -> JobRecord | None:
        if not row:
            return None
        life, wh, own, att, claim, version, role, *prompt = row
        assert life is not None, job_id
        assert wh is not None, job_id
        assert version is not None, job_id
        return cls(
            job_id=job_id,
            life=life,
            place=wh.decode(),
            owner=(own or b"").decode(),
            attempts=int(att or 0),
            claim=(claim or b"").decode(),
            version=version,
            role=(role or b"").decode(),
            prompt_text=prompt[0] if prompt else None,
        )

    @cached_property
    def lifecycle(self) -> Lifecycle:
        """Return the lifecycle with its claim, if there is one. UnknownSchema or Damaged: no decision about it is
        possible."""
        before = Lifecycle.from_json(self.life)
        if self.place != "held":
            return before
        corr, at, policy = self.claim.split(" ", 2)
        return with_claim(before, self.owner, self.attempts, corr, int(at), policy)

    @property
    def readable(self) -> bool:
        try:
            return bool(self.lifecycle)
        except Damaged:
            return False

    @property
    def prompt(self) -> Mapping[str, Any]:
        return json_object(self.prompt_text or b"{}")

    def view(self) -> JobView:
        """Build a view. A damaged job is shown by the place that it is in."""
        damaged = None
        try:
            now = self.lifecycle
        except (Damaged, IllegalTransition) as error:
            damaged = str(error)
            guess = moves.enqueued(job_id=self.job_id, role=self.role or "Runner", now=_EPOCH)
            now = guess.changed(status=STATUS.get(self.place, Status.FAILED), attempt=self.attempts)
        if self.owner:
            return JobView(lifecycle=now, place=f"{places.in_progress(now.role)}/{self.owner}", damaged=damaged)
        if self.place == "waits":
            named = () if moves.waits_for_person(now) else after.dependencies(self.prompt).all
            return JobView(lifecycle=now, place=places.WAITING, waits_for=named, damaged=damaged)
        return JobView(lifecycle=now, place=places.destination(now.role, now.status), damaged=damaged)


def with_claim(before: Lifecycle, agent: str, attempt: int, corr: str, at_ms: int, policy: str) -> Lifecycle:
    """Apply a claim to a lifecycle."""
    return moves.claimed(
        before, agent=agent, attempt=attempt, correlation_id=corr, now=from_ms(at_ms), policy_version=policy or None
    )
