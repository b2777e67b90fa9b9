"""Keep the state of a controller on disk: the plan, the swarm's state, and which components should work.

Commands are in the ledger; observations are not kept. If the file is lost or unreadable, the orchestrator's files
(desired.json, plan.json) are used instead. [test_a_lost_controller_state_is_restored_from_the_orchestrator]
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
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
class ControllerState:
    path: str
    durable: bool
    plan: SwarmPlan | None = None
    state: SwarmState = SwarmState.CREATING
    enabled: bool = False  # last command to the whole swarm
    switched: dict[str, bool] = field(default_factory=dict)  # last command to single components since then
    configured: dict[str, dict[str, Any]] = field(default_factory=dict)  # by instance: config changed since the plan
    leaving: dict[str, str] = field(default_factory=dict)  # instance → role: to be stopped, no longer in the plan
    former: list[str] = field(default_factory=list)  # queues of earlier plans, deleted with the swarm

    @classmethod
    def load(cls, path: str, *, durable: bool) -> ControllerState:
        state = cls(path=path, durable=durable)
        try:
            data = json.loads(fs.read_bytes(path, _LIMIT))
            state.plan = None if data["plan"] is None else plans.load(Document(data["plan"], path))
            state.state, state.enabled = SwarmState(data["state"]), bool(data["enabled"])
            state.switched = {str(name): bool(value) for name, value in data["switched"].items()}
            state.configured = {str(name): dict(value) for name, value in data.get("configured", {}).items()}
            state.leaving = {str(name): str(role) for name, role in data.get("leaving", {}).items()}
            state.former = [str(name) for name in data.get("former", ())]
        except FileNotFoundError:
            return cls._from_orchestrator(path, durable)
        except (ValueError, TypeError, LookupError, AttributeError, FarroError) as error:
            restored = cls._from_orchestrator(path, durable)
            if restored.plan is None:
                raise Damaged(f"{path} is not a valid state of a controller: {error}") from error
            fs.replace(path, f"{path}.damaged")
            return restored
        return state

    @classmethod
    def _from_orchestrator(cls, path: str, durable: bool) -> ControllerState:
        """Build the state from the orchestrator's files; without a readable plan, a state without one."""
        state, folder = cls(path=path, durable=durable), os.path.dirname(path)
        with contextlib.suppress(FarroError, ValueError, TypeError, LookupError):
            desired, data = read_json(f"{folder}/desired.json"), read_json(f"{folder}/plan.json")
            if desired is not None and data is not None and SwarmState(desired["state"]) in _PLANNED:
                plan = plans.load(Document(data, path))
                state.plan, state.state, state.enabled = plan, SwarmState(desired["state"]), bool(desired["enabled"])
        return state

    def config_of(self, instance: str) -> dict[str, Any]:
        """Return the config values of a component that updates changed; a restart passes them on."""
        return self.configured.get(instance, {})

    def shall_work(self, instance: str) -> bool:
        return self.switched.get(instance, self.enabled)

    def change(self, **changes: Any) -> None:
        """Set fields and write the state. Callers act on a change only after this returns.

        A new plan replaces the changed config of components, a command to the whole swarm those to single ones.
        """
        if "plan" in changes:
            self.configured = {}
        if "enabled" in changes:
            self.switched = {}
        for name, value in changes.items():
            setattr(self, name, value)
        data = {
            "plan": None if self.plan is None else _plan_data(self.plan),
            "state": str(self.state),
            "enabled": self.enabled,
            "switched": self.switched,
            "configured": self.configured,
            "leaving": self.leaving,
            "former": self.former,
        }
        fs.write_atomic(self.path, json.dumps(data).encode() + b"\n", sync=self.durable)

    def update(self, instance: str, enabled: bool, config: Mapping[str, Any]) -> None:
        """Note a config update of one component, and write the state."""
        known = {**self.config_of(instance), **config}
        self.change(switched={**self.switched, instance: enabled}, configured={**self.configured, instance: known})


def _plan_data(plan: SwarmPlan) -> dict[str, Any]:
    """Return a plan in the form of a plan document."""
    data = asdict(plan)
    for bee in data["bees"]:
        bee["work"] = {"in": list(bee["work"]["inputs"]), "out": list(bee["work"]["outputs"])}
        for name in ("image", "command"):
            if bee[name] is None:
                del bee[name]
    return data
