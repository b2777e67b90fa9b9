"""The files of a root's swarms: where each lies, and reading and writing those that the orchestrator keeps.

What is done about them lives in operations.swarms (asking, looking) and in services (the orchestrator).

    swarms/orchestrator/wishes/<time>.<correlation id>.json   what was asked for and is not yet in the ledger
    swarms/orchestrator/commands.json                         the ledger of commands (swarm_ledger)
    swarms/orchestrator/{about.json,audit.jsonl,.lease}
    swarms/components/                                        records of the process runtime
    swarms/<id>/desired.json                                  what is wanted of the swarm, and what became of it
    swarms/<id>/plan.json                                     the last plan that was asked for
    swarms/<id>/status.json                                   what its controller last said
    swarms/<id>/given-up.json                                 commands that its controller must not confirm any more
    swarms/<id>/{controller.json,commands.json,.lease}        the controller's own
    swarms/<id>/{audit.jsonl,logs/}
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import asdict
from typing import Any

from farro.documents import Document
from farro.errors import BadName, Damaged, FarroError, InputError
from farro.host import fs
from farro.lazy_dataclass import dataclass, field
from farro.swarm import plan as plans
from farro.swarm.lifecycle import SwarmState
from farro.swarm.plan import SwarmPlan
from farro.swarm.wire import messages
from farro.swarm.wire.messages import ControlSignal
from farro.swarm.wire.names import check_name, is_name

FOLDER = "swarms"  # in a root
ORCHESTRATOR, COMPONENTS = "orchestrator", "components"  # no swarm can have these names: their folders are farro's own
_WISH = re.compile(r"[0-9]{20}\.([0-9a-fA-F-]{36})\.json")
_LIMIT = 16 << 20
_MORE = 4096  # bytes that a command may gain on its way to a controller


def check_swarm(name: str) -> str:
    """BadName: no swarm can be called so."""
    if check_name(name, "swarm") in (ORCHESTRATOR, COMPONENTS):
        raise BadName(f"{name} is a folder of farro's own among the swarms; call the swarm otherwise")
    controller(name)
    return name


def controller(swarm: str) -> str:
    """The instance name of a swarm's controller."""
    try:
        return check_name(f"{swarm}-marshal", "instance")
    except BadName:
        raise BadName(f"{swarm[:100]} is too long for a swarm: 55 characters are the most") from None


@dataclass(kw_only=True)
class Desired:
    """What is wanted of one swarm, as the orchestrator keeps it, and what came of it."""

    swarm: str
    state: SwarmState
    controller: str  # the instance
    created_at: str
    changed_at: str
    there: bool = True  # its controller shall run
    enabled: bool = False  # its components shall work
    reason: str | None = None  # why it is Failed
    durations: dict[str, float] = field(default_factory=dict)  # provision, ready, start: the last, in seconds
    failures: dict[str, int] = field(default_factory=dict)  # by code


class Place:
    """`folder` is <root>/swarms."""

    def __init__(self, folder: str, *, durable: bool = True) -> None:
        self.folder = folder
        self.orchestrator = f"{folder}/{ORCHESTRATOR}"
        self.wishes = f"{self.orchestrator}/wishes"
        self.ledger = f"{self.orchestrator}/commands.json"
        self.lease = f"{self.orchestrator}/.lease"
        self.components = f"{folder}/{COMPONENTS}"
        self._durable = durable

    def make(self) -> None:
        with contextlib.suppress(FileExistsError):
            fs.mkdir_private(self.folder)  # plans, their `env`, and logs are nobody else's
        for path in (self.orchestrator, self.wishes, self.components):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(path)

    def of(self, swarm: str) -> str:
        return f"{self.folder}/{check_name(swarm, 'swarm')}"

    def make_swarm(self, swarm: str) -> None:
        for path in (self.of(swarm), f"{self.of(swarm)}/logs"):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(path)

    def swarms(self) -> list[str]:
        """The names of those that were ever created here. A folder that no swarm could have is somebody's copy."""
        found = fs.subdirectories(self.folder)
        return sorted(name for name in found if name not in (ORCHESTRATOR, COMPONENTS) and is_name(name))

    # --- wishes ---

    def wish(self, signal: ControlSignal, time_ns: int) -> None:
        """On the disk when this returns, whole. Behind those that wait, also when somebody set the clock back."""
        data = messages.encode(signal) + b"\n"
        if len(data) > messages.MAX_BYTES - _MORE:
            raise InputError(
                f"{signal.signal}: its arguments have {len(data)} bytes, and a message may have {messages.MAX_BYTES}"
            )
        self.make()
        last = max((name for name in fs.listdir(self.wishes) if _WISH.fullmatch(name)), default="0.")
        time_ns = max(time_ns, int(last.partition(".")[0]) + 1)
        path = f"{self.wishes}/{time_ns:020d}.{signal.correlation_id}.json"
        fs.write_atomic(path, data, sync=self._durable)
        if self._durable:
            fs.sync_all([self.wishes])

    def wished(self) -> list[tuple[str, ControlSignal | None]]:
        """What waits, in order: the file, and the signal in it; None: it is none."""
        try:
            names = sorted(fs.listdir(self.wishes))
        except FileNotFoundError:
            return []
        found: list[tuple[str, ControlSignal | None]] = []
        for name in names:
            if _WISH.fullmatch(name) is not None:
                path = f"{self.wishes}/{name}"
                with contextlib.suppress(FileNotFoundError):
                    found.append((path, _signal(path)))
        return found

    # --- what the orchestrator keeps of a swarm ---

    def desired(self, swarm: str) -> Desired | None:
        """None: nobody ever asked for it."""
        path = f"{self.of(swarm)}/desired.json"
        told = read_json(path)
        if told is None:
            return None
        try:
            return Desired(**{**told, "state": SwarmState(told["state"])})
        except (TypeError, LookupError, ValueError) as error:
            raise Damaged(f"{path} cannot be read as what is wanted of a swarm: {error}") from error

    def keep(self, desired: Desired) -> None:
        self._write(f"{self.of(desired.swarm)}/desired.json", asdict(desired))

    def plan(self, swarm: str) -> SwarmPlan | None:
        path = f"{self.of(swarm)}/plan.json"
        told = read_json(path)
        return None if told is None else plans.load(Document(told, path))

    def plan_data(self, swarm: str) -> dict[str, Any] | None:
        """The same as it was written; None: there is none yet."""
        told = read_json(f"{self.of(swarm)}/plan.json")
        return told if isinstance(told, dict) else None

    def configured(self, swarm: str) -> dict[str, dict[str, Any]]:
        """By instance: what updates changed of a component's config since the plan, as its controller keeps it."""
        with contextlib.suppress(FarroError):
            told = read_json(f"{self.of(swarm)}/controller.json")
            found = told.get("configured") if isinstance(told, dict) else None
            if isinstance(found, dict):
                return {name: value for name, value in found.items() if isinstance(value, dict)}
        return {}

    def keep_plan(self, swarm: str, data: Any) -> None:
        self._write(f"{self.of(swarm)}/plan.json", data)

    def given_up(self, swarm: str) -> list[str]:
        told = read_json(f"{self.of(swarm)}/given-up.json")
        return [str(one) for one in told] if isinstance(told, list) else []

    def keep_given_up(self, swarm: str, correlations: list[str]) -> None:
        self._write(f"{self.of(swarm)}/given-up.json", correlations)

    def status(self, swarm: str) -> dict[str, Any] | None:
        """The last that was heard, with `heard_at`; None: nothing yet, or nothing that can be read."""
        with contextlib.suppress(FarroError):
            told = read_json(f"{self.of(swarm)}/status.json")
            return told if isinstance(told, dict) else None
        return None

    def keep_status(self, swarm: str, told: dict[str, Any]) -> None:
        """Not synced: it is said again within ten seconds."""
        fs.write_atomic(f"{self.of(swarm)}/status.json", json.dumps(told).encode() + b"\n", sync=False)

    def _write(self, path: str, data: Any) -> None:
        fs.write_atomic(path, json.dumps(data).encode() + b"\n", sync=self._durable)


def read_json(path: str) -> Any:
    """None where there is no such file."""
    try:
        return json.loads(fs.read_bytes(path, _LIMIT))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise Damaged(f"{path} is no JSON: {error}") from error


def _signal(path: str) -> ControlSignal | None:
    try:
        return messages.decode(ControlSignal, fs.read_bytes(path, messages.MAX_BYTES).strip())
    except FarroError:
        return None
