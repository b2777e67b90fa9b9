"""Declare a component: its role, its config, its one function, and the environment in which it runs."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from farro.documents import shapes
from farro.errors import InputError
from farro.lazy_dataclass import dataclass
from farro.swarm.wire.names import check_name

if TYPE_CHECKING:
    from farro.plans.cron import Cron


import json
from collections.abc import Mapping

from farro.swarm.wire.names import work_exchange, work_queue

C = TypeVar("C")
WorkFunction = Callable[..., Any]
Kind = Literal["source", "transform", "sink", "service"]
W = TypeVar("W", bound=WorkFunction)


_GIVEN: dict[Kind, str] = {"source": "nothing", "transform": "an item", "sink": "an item", "service": "an event"}


class Drop(Exception):
    """Raise it to send an item to the dead letters at once, when another try would not help."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkDeclaration:
    """The function of a component, and when a source calls it."""

    kind: Kind
    function: WorkFunction
    every_s: float | None = None  # for a source: seconds from one call to the next
    rate: float | None = None  # or calls per second; a config field of that name takes precedence
    cron: Cron | None = None  # or the minutes of its calls, in UTC
    says_ready: bool = False  # for a service
    takes_config: bool = False
    is_async: bool = False


class Component(Generic[C]):
    """One kind of component. `config` is a dataclass: values of a plan or an update are checked against it, with
    positions, and an update that does not fit is refused and changes nothing."""

    def __init__(
        self,
        role: str,
        *,
        config: type[C] | None = None,
        prefetch: int = 8,
        tries: int = 3,
        version: str = "1.0",
    ) -> None:
        self.role = check_name(role, "role")
        if config is not None and not is_dataclass(config):
            raise InputError(f"config of {role} must be a dataclass, not {config!r}")
        self.config = config
        self.prefetch = max(1, prefetch)
        self.tries = max(1, tries)
        self.version = version
        self.declared: WorkDeclaration | None = None
        self._on_ready: list[Callable[[], None]] = []
        self.told: dict[str, Any] = {}
        self.counted = 0
        self._counting = threading.Lock()
        self._on_config: list[Callable[[Any], Awaitable[None] | None]] = []

    def source(
        self, *, every_s: float | None = None, rate: float | None = None, cron: str | None = None
    ) -> Callable[[W], W]:
        """Declare a function that makes items while enabled, called every `every_s` seconds, `rate` times a second, or
        at the minutes (UTC) of a cron line."""
        if sum(given is not None for given in (every_s, rate, cron)) != 1:
            raise InputError(f"{self.role}: give a source exactly one of every_s, rate and cron")
        line = None
        if cron is not None:
            from farro.plans.cron import BadCron, Cron

            try:
                line = Cron.parse(cron)
            except BadCron as error:
                raise InputError(f"cron of {self.role}: {error}") from error
        elif (every_s or rate or 0) <= 0:
            raise InputError(f"every_s and rate must be more than 0 ({self.role})")

        def declare(function: W) -> W:
            return self._declare("source", function, items=0, every_s=every_s, rate=rate, cron=line)

        return declare

    def transform(self, function: W) -> W:
        """Declare a function that turns an item into its results."""
        return self._declare("transform", function, items=1)

    def sink(self, function: W) -> W:
        """Declare a function that takes items and passes nothing on."""
        return self._declare("sink", function, items=1)

    @overload
    def service(self, function: W) -> W: ...

    @overload
    def service(self, *, says_ready: bool = False) -> Callable[[W], W]: ...

    def service(self, function: W | None = None, *, says_ready: bool = False) -> W | Callable[[W], W]:
        """Declare a function that runs while the component is enabled.

        It gets an event and returns soon after that is set: a threading.Event for a plain function, which has its own
        thread, an asyncio.Event for an async one. If it ends earlier, it is run again after a pause, and the component
        is not healthy until then. SystemExit ends the component; the restart policy of its plan says whether it is
        started again.

        With `says_ready` it counts as enabled when it has called `ready`, or has failed, or took too long.
        """

        def declare(given: W) -> W:
            return self._declare("service", given, items=1, says_ready=says_ready)

        return declare if function is None else declare(function)

    def ready(self) -> None:
        """Report that the service now works. May be called from any thread."""
        for callback in list(self._on_ready):
            callback()

    def on_ready(self, heard: Callable[[], None]) -> None:
        self._on_ready.append(heard)

    def tell(self, **data: Any) -> None:
        """Add values to every status from now on; None removes one. May be called from any thread."""
        self.told = {name: value for name, value in {**self.told, **data}.items() if value is not None}

    def count(self, items: int = 1) -> None:
        """Count processed items of a service, for `done` and `tps` of its status. May be called from any thread."""
        with self._counting:
            self.counted += items

    def on_config(self, function: Callable[[Any], Awaitable[None] | None]) -> Callable[[Any], Awaitable[None] | None]:
        """Call the function with a new config, after it was checked and before it is confirmed."""
        self._on_config.append(function)
        return function

    def _declare(self, kind: Kind, function: W, *, items: int, **options: Any) -> W:
        """Note the function. `options` are further fields of WorkDeclaration."""
        if self.declared is not None:
            raise InputError(
                f"{self.role} already has a function ({self.declared.function.__name__}): a component has one"
            )
        parameters = len(inspect.signature(function).parameters)
        if parameters not in (items, items + 1):
            raise InputError(f"{function.__name__} must take {_GIVEN[kind]}, and may take its config")
        self.declared = WorkDeclaration(
            kind=kind,
            function=function,
            takes_config=parameters == items + 1,
            is_async=inspect.iscoroutinefunction(function),
            **options,
        )
        return function

    def read_config(self, data: dict[str, Any]) -> Any:
        """Return the config as the component's own class, or as a dict if it has none. Raises InputError with all
        problems."""
        if self.config is None:
            return dict(data)
        checked = shapes.check(self.config, data)
        if checked.value is None or checked.faults:
            problems = "; ".join(f"{'.'.join(map(str, fault.path))} {fault.message}" for fault in checked.faults[:5])
            raise InputError(f"config: {problems}")
        return checked.value

    async def told_config(self, config: Any) -> None:
        for function in self._on_config:
            done = function(config)
            if inspect.isawaitable(done):
                await done

    def run(self) -> None:
        """Run the component as its environment says, until SIGTERM. For a module that a swarm starts."""
        from farro.swarm.component.run import main

        main(self)


# --- environment ---

NAMES = ("FARRO_BUS", "FARRO_SWARM", "FARRO_ROLE", "FARRO_INSTANCE")


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentEnvironment:
    """The environment variables that a controller gives to a component.

    FARRO_BUS        files:FOLDER or amqp://…
    FARRO_SWARM      demo
    FARRO_ROLE       moderator
    FARRO_INSTANCE   demo-moderator-1
    FARRO_INPUTS     raw,late          suffixes of queues
    FARRO_OUTPUTS    good
    FARRO_CONFIG     {"rate": 5}
    FARRO_HEALTH     127.0.0.1:0       address of /actuator/health; port 0 means any, reported in the status
    """

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
