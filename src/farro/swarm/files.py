"""The files of a root's swarms: their layout, and reading and writing those that the orchestrator keeps.

swarms/orchestrator/wishes/<time>.<correlation id>.json   requested commands that are not in the ledger yet
swarms/orchestrator/commands.json                         the ledger of commands (ledger.py)
swarms/orchestrator/{about.json,audit.jsonl,.lease}
swarms/components/                                        records of the process runtime
swarms/<id>/desired.json                                  the desired state of the swarm, and its last outcome
swarms/<id>/plan.json                                     the last requested plan
swarms/<id>/status.json                                   the last status of its controller
swarms/<id>/given-up.json                                 commands that its controller must not confirm any more
swarms/<id>/{controller.json,commands.json,.lease}        written by the controller
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
from farro.swarm.wire.names import ORCHESTRATOR as ORCHESTRATOR
from farro.swarm.wire.names import check_name, is_name

FOLDER = "swarms"  # in a root
COMPONENTS = "components"  # reserved, as ORCHESTRATOR is: no swarm can have these names
_REQUEST = re.compile(r"[0-9]{20}\.([0-9a-fA-F-]{36})\.json")
_LIMIT = 16 << 20
_ENVELOPE_BYTES = 4096  # that a command may gain on its way to a controller


def check_swarm(name: str) -> str:
    """Return `name`, or raise BadName if no swarm can have it."""
    if check_name(name, "swarm") in (ORCHESTRATOR, COMPONENTS):
        raise BadName(f"{name} is a reserved folder among the swarms; use another name for the swarm")
    controller_instance(name)
    return name


def controller_instance(swarm: str) -> str:
    """Return the instance name of a swarm's controller."""
    try:
        return check_name(f"{swarm}-marshal", "instance")
    except BadName:
        raise BadName(f"{swarm[:100]} is too long for a swarm: a name has at most 55 characters") from None


@dataclass(kw_only=True)
class DesiredState:
    """The desired state of one swarm, as the orchestrator keeps it, and the result."""

    swarm: str
    state: SwarmState
    controller: str  # the instance
    created_at: str
    changed_at: str
    there: bool = True  # its controller should run
    enabled: bool = False  # its components should work
    reason: str | None = None  # why it is Failed
    durations: dict[str, float] = field(default_factory=dict)  # provision, ready, start: the last, in seconds
    failures: dict[str, int] = field(default_factory=dict)  # by code


class SwarmFiles:
    """Read and write the swarm files of one root. `folder` is <root>/swarms."""

    def __init__(self, folder: str, *, durable: bool = True) -> None:
        self.folder = folder
        self.orchestrator = f"{folder}/{ORCHESTRATOR}"
        self.requests = f"{self.orchestrator}/wishes"
        self.ledger = f"{self.orchestrator}/commands.json"
        self.lease = f"{self.orchestrator}/.lease"
        self.components = f"{folder}/{COMPONENTS}"
        self._durable = durable

    def make(self) -> None:
        with contextlib.suppress(FileExistsError):
            fs.mkdir_private(self.folder)  # plans with their `env`, and logs, may hold secrets
        for path in (self.orchestrator, self.requests, self.components):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(path)

    def swarm_folder(self, swarm: str) -> str:
        return f"{self.folder}/{check_name(swarm, 'swarm')}"

    def make_swarm(self, swarm: str) -> None:
        for path in (self.swarm_folder(swarm), f"{self.swarm_folder(swarm)}/logs"):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(path)

    def swarms(self) -> list[str]:
        """List the swarms that were ever created here. Folders that cannot be a swarm's (a copy) are left out."""
        found = fs.subdirectories(self.folder)
        return sorted(name for name in found if name not in (ORCHESTRATOR, COMPONENTS) and is_name(name))

    # --- requested commands ---

    def add_request(self, signal: ControlSignal, time_ns: int) -> None:
        """Write a requested command durably, after all pending ones even if the clock was set back."""
        data = messages.encode(signal) + b"\n"
        if len(data) > messages.MAX_BYTES - _ENVELOPE_BYTES:
            raise InputError(
                f"{signal.signal}: its arguments have {len(data)} bytes, and a message may have {messages.MAX_BYTES}"
            )
        self.make()
        last = max((name for name in fs.listdir(self.requests) if _REQUEST.fullmatch(name)), default="0.")
        time_ns = max(time_ns, int(last.partition(".")[0]) + 1)
        path = f"{self.requests}/{time_ns:020d}.{signal.correlation_id}.json"
        fs.write_atomic(path, data, sync=self._durable)
        if self._durable:
            fs.sync_all([self.requests])

    def pending_requests(self) -> list[tuple[str, ControlSignal | None]]:
        """List the requested commands in order: path and signal; None where the file is not a valid signal."""
        try:
            names = sorted(fs.listdir(self.requests))
        except FileNotFoundError:
            return []
        found: list[tuple[str, ControlSignal | None]] = []
        for name in names:
            if _REQUEST.fullmatch(name) is not None:
                path = f"{self.requests}/{name}"
                with contextlib.suppress(FileNotFoundError):
                    found.append((path, _read_signal(path)))
        return found

    # --- what the orchestrator keeps of a swarm ---

    def desired(self, swarm: str) -> DesiredState | None:
        """Read the desired state; None if the swarm was never created."""
        path = f"{self.swarm_folder(swarm)}/desired.json"
        data = read_json(path)
        if data is None:
            return None
        try:
            return DesiredState(**{**data, "state": SwarmState(data["state"])})
        except (TypeError, LookupError, ValueError) as error:
            raise Damaged(f"{path} is not a valid desired state of a swarm: {error}") from error

    def write_desired(self, desired: DesiredState) -> None:
        self._write(f"{self.swarm_folder(desired.swarm)}/desired.json", asdict(desired))

    def plan(self, swarm: str) -> SwarmPlan | None:
        path = f"{self.swarm_folder(swarm)}/plan.json"
        data = read_json(path)
        return None if data is None else plans.load(Document(data, path))

    def plan_data(self, swarm: str) -> dict[str, Any] | None:
        """Read the plan as it was written; None if there is none yet."""
        data = read_json(f"{self.swarm_folder(swarm)}/plan.json")
        return data if isinstance(data, dict) else None

    def write_plan(self, swarm: str, data: Any) -> None:
        self._write(f"{self.swarm_folder(swarm)}/plan.json", data)

    def config_updates(self, swarm: str) -> dict[str, dict[str, Any]]:
        """Read which config values were changed by updates since the plan, by instance."""
        with contextlib.suppress(FarroError):
            data = read_json(f"{self.swarm_folder(swarm)}/controller.json")
            found = data.get("configured") if isinstance(data, dict) else None
            if isinstance(found, dict):
                return {name: value for name, value in found.items() if isinstance(value, dict)}
        return {}

    def controller_plan(self, swarm: str) -> Any:
        """Read the plan that the controller applied; None if there is none."""
        data = read_json(f"{self.swarm_folder(swarm)}/controller.json")
        return data.get("plan") if isinstance(data, dict) else None

    def given_up(self, swarm: str) -> list[str]:
        return read_given_up(self.swarm_folder(swarm))

    def write_given_up(self, swarm: str, correlations: list[str]) -> None:
        self._write(f"{self.swarm_folder(swarm)}/given-up.json", correlations)

    def status(self, swarm: str) -> dict[str, Any] | None:
        """Read the last status of the controller, with `heard_at`; None if there is none, or it is unreadable."""
        with contextlib.suppress(FarroError):
            data = read_json(f"{self.swarm_folder(swarm)}/status.json")
            return data if isinstance(data, dict) else None
        return None

    def write_status(self, swarm: str, status: dict[str, Any]) -> None:
        """Write a status, not synced: the controller sends the next one within ten seconds."""
        fs.write_atomic(f"{self.swarm_folder(swarm)}/status.json", json.dumps(status).encode() + b"\n", sync=False)

    def _write(self, path: str, data: Any) -> None:
        fs.write_atomic(path, json.dumps(data).encode() + b"\n", sync=self._durable)


def read_json(path: str) -> Any:
    """Read a JSON file; None if it does not exist."""
    try:
        return json.loads(fs.read_bytes(path, _LIMIT))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise Damaged(f"{path} is not valid JSON: {error}") from error


def read_given_up(folder: str) -> list[str]:
    """Read the correlation ids that the controller of a swarm must not confirm any more.

    The orchestrator writes them before it confirms the commands of a silent controller itself.
    """
    data = read_json(f"{folder}/given-up.json")
    return [str(one) for one in data] if isinstance(data, list) else []


def _read_signal(path: str) -> ControlSignal | None:
    try:
        return messages.decode(ControlSignal, fs.read_bytes(path, messages.MAX_BYTES).strip())
    except FarroError:
        return None
