"""Declaring a component: its role, its config, and the one function that works.

Running it lives in running; trying it without a swarm lives in testing.
"""

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

C = TypeVar("C")
Work = Callable[..., Any]
Kind = Literal["source", "transform", "sink", "service"]
W = TypeVar("W", bound=Work)


_GIVEN: dict[Kind, str] = {"source": "nothing", "transform": "an item", "sink": "an item", "service": "an event"}


class Drop(Exception):
    """Raised by a function that wants an item among the dead letters at once: another try would not help."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """The function, and when a source calls it."""

    kind: Kind
    function: Work
    every_s: float | None = None  # of a source: seconds from one call to the next
    rate: float | None = None  # … or calls a second; a config field of that name is stronger
    cron: Cron | None = None  # … or the minutes at which it is called, in UTC
    says_ready: bool = False  # of a service
    takes_config: bool = False
    is_async: bool = False


class Component(Generic[C]):
    """One kind of member. `config` is a dataclass: what a swarm plan or an update says is checked against it, with
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
        self.declared: Declared | None = None
        self.is_ready = False
        self._on_ready: list[Callable[[], None]] = []
        self.told: dict[str, Any] = {}
        self.counted = 0
        self._counting = threading.Lock()
        self._on_config: list[Callable[[Any], Awaitable[None] | None]] = []

    def source(
        self, *, every_s: float | None = None, rate: float | None = None, cron: str | None = None
    ) -> Callable[[W], W]:
        """A function that makes items while enabled: called every so many seconds, or so many times a second, or at the
        minutes (UTC) of a cron line."""
        if sum(given is not None for given in (every_s, rate, cron)) != 1:
            raise InputError(f"a source has one of every_s, rate and cron ({self.role})")
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
        """A function from an item to what comes of it."""
        return self._declare("transform", function, items=1)

    def sink(self, function: W) -> W:
        """A function that takes items, and from which nothing goes on."""
        return self._declare("sink", function, items=1)

    @overload
    def service(self, function: W) -> W: ...

    @overload
    def service(self, *, says_ready: bool = False) -> Callable[[W], W]: ...

    def service(self, function: W | None = None, *, says_ready: bool = False) -> W | Callable[[W], W]:
        """A function that runs while it is enabled. It is given an event, and returns soon after that was set: of
        threading for a plain function, which has a thread of its own, of asyncio for an async one. When it ends before
        that, it is run again after a while, and the component is not healthy until then. SystemExit ends the component:
        whether it is started again is its plan's to say.

        With `says_ready` it counts as enabled when it has called `ready`, or has failed, or took too long."""

        def declare(given: W) -> W:
            return self._declare("service", given, items=1, says_ready=says_ready)

        return declare if function is None else declare(function)

    def ready(self) -> None:
        """Of a service: what it was enabled for goes on now. From any thread."""
        self.is_ready = True
        for heard in list(self._on_ready):
            heard()

    def on_ready(self, heard: Callable[[], None]) -> None:
        self._on_ready.append(heard)

    def tell(self, **data: Any) -> None:
        """Have this in every status from now on. From any thread; None takes a word away."""
        self.told = {name: value for name, value in {**self.told, **data}.items() if value is not None}

    def count(self, items: int = 1) -> None:
        """Of a service, which has no items that anybody else could count: for `done` and `tps` of its status. From any
        thread."""
        with self._counting:
            self.counted += items

    def on_config(self, function: Callable[[Any], Awaitable[None] | None]) -> Callable[[Any], Awaitable[None] | None]:
        """Called with the new config, after it was checked and before it is confirmed."""
        self._on_config.append(function)
        return function

    def _declare(
        self,
        kind: Kind,
        function: W,
        *,
        items: int,
        every_s: float | None = None,
        rate: float | None = None,
        cron: Cron | None = None,
        says_ready: bool = False,
    ) -> W:
        if self.declared is not None:
            raise InputError(f"{self.role} has a function already ({self.declared.function.__name__}): one a component")
        wanted = len(inspect.signature(function).parameters)
        if wanted not in (items, items + 1):
            raise InputError(f"{function.__name__} must take {_GIVEN[kind]}, and may take its config")
        self.declared = Declared(
            kind=kind,
            function=function,
            every_s=every_s,
            rate=rate,
            cron=cron,
            says_ready=says_ready,
            takes_config=wanted == items + 1,
            is_async=inspect.iscoroutinefunction(function),
        )
        return function

    def read_config(self, data: dict[str, Any]) -> Any:
        """The config as the component's own class, or as it is where it has none. InputError says what is wrong."""
        if self.config is None:
            return dict(data)
        checked = shapes.check(self.config, data)
        if checked.value is None or checked.faults:
            said = "; ".join(f"{'.'.join(map(str, fault.path))} {fault.message}" for fault in checked.faults[:5])
            raise InputError(f"config: {said}")
        return checked.value

    async def told_config(self, config: Any) -> None:
        for function in self._on_config:
            done = function(config)
            if inspect.isawaitable(done):
                await done

    def run(self) -> None:
        """Work as the environment says, until SIGTERM. For a module that a swarm starts."""
        from farro.swarm.component.run import main

        main(self)
