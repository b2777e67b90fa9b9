"""Declaring a component: its role, its config, and the one function that works.

Running it lives in running; trying it without a swarm lives in testing.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, is_dataclass
from typing import Any, Generic, Literal, TypeVar

from farro.documents import shapes
from farro.errors import InputError
from farro.swarm.names import check_name

C = TypeVar("C")
Work = Callable[..., Any]
Kind = Literal["source", "transform", "sink"]
W = TypeVar("W", bound=Work)


class Drop(Exception):
    """Raised by a function that wants an item among the dead letters at once: another try would not help."""


@dataclass(slots=True)
class Tell:
    """What a component adds to its status: `tell.data["cache"] = 5`."""

    data: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """The function, and when a source calls it."""

    kind: Kind
    function: Work
    every_s: float | None = None  # of a source: seconds from one call to the next
    rate: float | None = None  # … or calls a second; a config field of that name is stronger
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
        self._on_config: list[Callable[[Any], Awaitable[None] | None]] = []

    def source(self, *, every_s: float | None = None, rate: float | None = None) -> Callable[[W], W]:
        """A function that makes items: called every so many seconds, or so many times a second, while enabled."""
        if (every_s is None) == (rate is None):
            raise InputError(f"a source has either every_s or rate ({self.role})")
        if (every_s or rate or 0) <= 0:
            raise InputError(f"every_s and rate must be more than 0 ({self.role})")

        def declare(function: W) -> W:
            return self._declare("source", function, items=0, every_s=every_s, rate=rate)

        return declare

    def transform(self, function: W) -> W:
        """A function from an item to what comes of it."""
        return self._declare("transform", function, items=1)

    def sink(self, function: W) -> W:
        """A function that takes items, and from which nothing goes on."""
        return self._declare("sink", function, items=1)

    def on_config(self, function: Callable[[Any], Awaitable[None] | None]) -> Callable[[Any], Awaitable[None] | None]:
        """Called with the new config, after it was checked and before it is confirmed."""
        self._on_config.append(function)
        return function

    def _declare(
        self, kind: Kind, function: W, *, items: int, every_s: float | None = None, rate: float | None = None
    ) -> W:
        if self.declared is not None:
            raise InputError(f"{self.role} has a function already ({self.declared.function.__name__}): one a component")
        wanted = len(inspect.signature(function).parameters)
        if wanted not in (items, items + 1):
            raise InputError(
                f"{function.__name__} must take {'an item' if items else 'nothing'}, and may take its config"
            )
        self.declared = Declared(
            kind=kind,
            function=function,
            every_s=every_s,
            rate=rate,
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
        from farro.component.running import main

        main(self)
