"""The environment variables that a controller gives to a component: its names, its bus, its queues, its config.

FARRO_BUS        files:FOLDER or amqp://…
FARRO_SWARM      demo
FARRO_ROLE       moderator
FARRO_INSTANCE   demo-moderator-1
FARRO_INPUTS     raw,late          suffixes of queues
FARRO_OUTPUTS    good
FARRO_CONFIG     {"rate": 5}
FARRO_HEALTH     127.0.0.1:0       address of /actuator/health; port 0 means any, reported in the status
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from farro.errors import InputError
from farro.lazy_dataclass import dataclass
from farro.swarm.wire.names import check_name, work_exchange, work_queue

NAMES = ("FARRO_BUS", "FARRO_SWARM", "FARRO_ROLE", "FARRO_INSTANCE")
VARIABLES = (*NAMES, "FARRO_INPUTS", "FARRO_OUTPUTS", "FARRO_CONFIG", "FARRO_HEALTH")


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentEnvironment:
    bus: str
    swarm: str
    role: str
    instance: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None
    health_host: str = "127.0.0.1"
    health_port: int = 0

    @property
    def exchange(self) -> str:
        return work_exchange(self.swarm)

    @property
    def input_queues(self) -> tuple[str, ...]:
        return tuple(work_queue(self.swarm, suffix) for suffix in self.inputs)

    def to_env(self) -> dict[str, str]:
        return {
            "FARRO_BUS": self.bus,
            "FARRO_SWARM": self.swarm,
            "FARRO_ROLE": self.role,
            "FARRO_INSTANCE": self.instance,
            "FARRO_INPUTS": ",".join(self.inputs),
            "FARRO_OUTPUTS": ",".join(self.outputs),
            "FARRO_CONFIG": json.dumps(dict(self.config or {})),
            "FARRO_HEALTH": f"{self.health_host}:{self.health_port}",
        }

    @classmethod
    def of(cls, environ: Mapping[str, str], role: str) -> ComponentEnvironment:
        """Read the variables. Raises InputError if some are missing or wrong."""
        missing = [name for name in NAMES if not environ.get(name)]
        if missing:
            raise InputError(
                f"not set: {', '.join(missing)}; a component is started by a swarm (farro swarm start), or tried with "
                "farro.component.testing"
            )
        if environ["FARRO_ROLE"] != role:
            raise InputError(f"FARRO_ROLE is {environ['FARRO_ROLE']!r}, but this is a {role}")
        try:
            config = json.loads(environ.get("FARRO_CONFIG") or "{}")
        except ValueError as error:
            raise InputError(f"FARRO_CONFIG is not valid JSON: {error}") from error
        if not isinstance(config, dict):
            raise InputError("FARRO_CONFIG must be an object")
        host, _, port = (environ.get("FARRO_HEALTH") or "127.0.0.1:0").rpartition(":")
        if not port.isdecimal():
            raise InputError(f"FARRO_HEALTH must be HOST:PORT, not {environ.get('FARRO_HEALTH')!r}")
        return cls(
            bus=environ["FARRO_BUS"],
            swarm=check_name(environ["FARRO_SWARM"], "swarm"),
            role=check_name(environ["FARRO_ROLE"], "role"),
            instance=check_name(environ["FARRO_INSTANCE"], "instance"),
            inputs=_list(environ.get("FARRO_INPUTS")),
            outputs=_list(environ.get("FARRO_OUTPUTS")),
            config=config,
            health_host=host.strip("[]"),
            health_port=int(port),
        )


def _list(text: str | None) -> tuple[str, ...]:
    return tuple(check_name(name.strip(), "queue") for name in (text or "").split(",") if name.strip())
