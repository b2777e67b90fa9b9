"""What a controller keeps of its swarm on the disk: the plan, the state, and which components shall work.

Commands lie in the ledger; what is observed is looked up anew. Where the file was lost, or cannot be read, what the
orchestrator wants of the swarm (desired.json, plan.json) is what holds.
[test_what_a_controller_lost_its_orchestrator_knows]
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict
from typing import Any

from farro.documents import Document
from farro.errors import Damaged, FarroError
from farro.host import fs
from farro.lazy_dataclass import dataclass, field
from farro.swarm import plan as plans
from farro.swarm.files import read_json
from farro.swarm.lifecycle import SwarmState
from farro.swarm.plan import SwarmPlan

_LIMIT = 16 << 20
_PLANNED = tuple(SwarmState(one) for one in ("Ready", "Starting", "Running", "Stopping", "Stopped", "Failed"))


@dataclass(kw_only=True)
class Kept:
    path: str
    durable: bool
    plan: SwarmPlan | None = None
    state: SwarmState = SwarmState.CREATING
    enabled: bool = False  # what was last asked of the whole swarm
    switched: dict[str, bool] = field(default_factory=dict)  # … and of single components since
    configured: dict[str, dict[str, Any]] = field(default_factory=dict)  # by instance: changed since the plan
    leaving: dict[str, str] = field(default_factory=dict)  # instance → role: to be ended, not in the plan
    former: list[str] = field(default_factory=list)  # queues of plans before this one, which go when the swarm does

    @classmethod
    def load(cls, path: str, *, durable: bool) -> Kept:
        kept = cls(path=path, durable=durable)
        try:
            told = json.loads(fs.read_bytes(path, _LIMIT))
            kept.plan = None if told["plan"] is None else plans.load(Document(told["plan"], path))
            kept.state, kept.enabled = SwarmState(told["state"]), bool(told["enabled"])
            kept.switched = {str(name): bool(value) for name, value in told["switched"].items()}
            kept.configured = {str(name): dict(value) for name, value in told.get("configured", {}).items()}
            kept.leaving = {str(name): str(role) for name, role in told.get("leaving", {}).items()}
            kept.former = [str(name) for name in told.get("former", ())]
        except FileNotFoundError:
            return cls._wanted(path, durable)
        except (ValueError, TypeError, LookupError, AttributeError, FarroError) as error:
            wanted = cls._wanted(path, durable)
            if wanted.plan is None:
                raise Damaged(f"{path} cannot be read as what a controller keeps: {error}") from error
            fs.replace(path, f"{path}.damaged")
            return wanted
        return kept

    @classmethod
    def _wanted(cls, path: str, durable: bool) -> Kept:
        """By the orchestrator, as far as that can be read; else as of a swarm that has no plan yet."""
        kept, folder = cls(path=path, durable=durable), os.path.dirname(path)
        with contextlib.suppress(FarroError, ValueError, TypeError, LookupError):
            desired, data = read_json(f"{folder}/desired.json"), read_json(f"{folder}/plan.json")
            if desired is not None and data is not None and SwarmState(desired["state"]) in _PLANNED:
                plan = plans.load(Document(data, path))
                kept.plan, kept.state, kept.enabled = plan, SwarmState(desired["state"]), bool(desired["enabled"])
        return kept

    def config_of(self, instance: str) -> dict[str, Any]:
        """What updates changed of that component's config, for when it is started again."""
        return self.configured.get(instance, {})

    def wants(self, instance: str) -> bool:
        """Whether that component shall work."""
        return self.switched.get(instance, self.enabled)

    def change(
        self,
        *,
        plan: SwarmPlan | None = None,
        state: SwarmState | None = None,
        enabled: bool | None = None,
        switched: tuple[str, bool] | None = None,
        configured: tuple[str, dict[str, Any]] | None = None,
        leaving: dict[str, str] | None = None,
        former: list[str] | None = None,
    ) -> None:
        """Written before it is acted upon."""
        if plan is not None:
            self.plan, self.configured = plan, {}
        if state is not None:
            self.state = state
        if enabled is not None:
            self.enabled, self.switched = enabled, {}
        if switched is not None:
            self.switched[switched[0]] = switched[1]
        if configured is not None:
            name, more = configured
            self.configured[name] = {**self.configured.get(name, {}), **more}
        if leaving is not None:
            self.leaving = leaving
        if former is not None:
            self.former = former
        told = {
            "plan": None if self.plan is None else _written(self.plan),
            "state": str(self.state),
            "enabled": self.enabled,
            "switched": self.switched,
            "configured": self.configured,
            "leaving": self.leaving,
            "former": self.former,
        }
        fs.write_atomic(self.path, json.dumps(told).encode() + b"\n", sync=self.durable)


class GivenUp:
    """Correlation ids of commands that the orchestrator confirmed itself, because their controller was silent: it
    writes them down, and only then does so. Whoever reads them must not confirm those."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._known: frozenset[str] = frozenset()

    def read(self) -> frozenset[str]:
        try:
            status = fs.lstat(self._path)
            if (status.st_ino, status.st_mtime_ns) != self._file:
                self._known = frozenset(map(str, json.loads(fs.read_bytes(self._path, _LIMIT))))
                self._file = status.st_ino, status.st_mtime_ns
        except FileNotFoundError:
            return frozenset()
        return self._known


def _written(plan: SwarmPlan) -> dict[str, Any]:
    """As a document has it."""
    told = asdict(plan)
    for bee in told["bees"]:
        bee["work"] = {"in": list(bee["work"]["inputs"]), "out": list(bee["work"]["outputs"])}
        for name in ("image", "command"):
            if bee[name] is None:
                del bee[name]
    return told
