"""What a controller does to its components: start them, ask them to work or to stop, look at their health, end them.

When it does so is decided in the controller.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from farro.errors import AlreadyRunning, FarroError
from farro.lazy_dataclass import dataclass
from farro.swarm import restarts
from farro.swarm.audit import Trail
from farro.swarm.component.environment import Surroundings
from farro.swarm.controller.observed import Watch
from farro.swarm.plan import Member, SwarmPlan
from farro.swarm.publish import Voice
from farro.swarm.reconcile import Do
from farro.swarm.wire.names import Scope, Signal
from farro.worker.runtime import Component, Limits, Runtime
from farro.worker.runtime import Seen as Found

ORIGIN = "controller"  # of signals: a controller does not confirm its own


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Where a controller works."""

    swarm: str
    instance: str
    bus_address: str
    folder: str  # swarms/<id>: its own files, and the logs of its components
    cwd: str
    env: Mapping[str, str]


class Hands:
    """`configured`: what updates changed of a component's config since the plan."""

    def __init__(
        self,
        ground: Ground,
        runtime: Runtime,
        watch: Watch,
        voice: Voice,
        trail: Trail,
        configured: Callable[[str], Mapping[str, Any]],
    ) -> None:
        self._trail = trail
        self._configured = configured
        self._ground = ground
        self._runtime = runtime
        self._watch = watch
        self._voice = voice
        self._polls: set[asyncio.Task[None]] = set()

    async def do(self, wanted: SwarmPlan, member: Member, one: Do, now_s: float) -> None:
        match one.what:
            case "launch":
                await self.launch(wanted, member, now_s)
            case "enable" | "disable":
                await self.ask(member, one.what == "enable", now_s)
            case "poll":
                self.poll(one.instance, now_s)
            case "force":
                await asyncio.to_thread(self._runtime.stop, [one.instance], 0.0)
                self._trail.note("forced", instance=one.instance)
                seen = self._watch.of(one.instance)
                self._watch.put(one.instance, replace(seen, alive=False, launched=False, enabled=False, forced=True))
            case "deprovision":
                pass

    async def launch(self, wanted: SwarmPlan, member: Member, now_s: float) -> None:
        """Start a component, again if it died and its plan says so (swarm.restarts)."""
        bee, instance = wanted.bees[member.bee], member.instance
        seen = self._watch.of(instance)
        if seen.launched and not seen.alive and seen.starts:
            ended_s = now_s if seen.ended_s is None else seen.ended_s
            judged = restarts.judge(
                bee.restart, starts=seen.starts, exit_code=seen.exit_code, ended_s=ended_s, now_s=now_s
            )
            if judged.what == "failed":
                why = f"{judged.why}; {self._said(instance, seen.end_words)}"
                self._watch.put(instance, replace(seen, failure=why))
            elif judged.what == "finished":
                self._watch.put(instance, replace(seen, finished=judged.why))
            if judged.what != "launch":
                return
        about = Surroundings(
            bus=self._ground.bus_address,
            swarm=self._ground.swarm,
            role=bee.role,
            instance=instance,
            inputs=bee.work.inputs,
            outputs=bee.work.outputs,
            config={**bee.config, **self._configured(instance)},
        )
        command = bee.command or ()
        if command and command[0] == "python":
            command = (sys.executable, *command[1:])
        component = Component(
            name=instance,
            argv=tuple(command),
            env={**self._ground.env, **bee.env, **about.to_env()},
            cwd=self._ground.cwd,
            log=self._log(instance),
            image=bee.image,
            limits=Limits(memory_bytes=bee.limits.memory_bytes, cpu_s=bee.limits.cpu_s),
        )
        fresh = replace(seen, launched=True, alive=True, launched_s=now_s, starts=seen.starts + 1, healthy=None)
        began = self._voice.now()
        try:
            made: Found | None = await asyncio.to_thread(self._runtime.launch, component)
            self._watch.launching(instance, began)
        except AlreadyRunning:
            made = self._runtime.look(instance)
        except (FarroError, OSError) as error:
            why = str(error).removeprefix(f"{instance} ")  # whoever tells it says whose it is
            why = why if why != str(error) else f"could not be started: {error}"
            self._watch.put(instance, replace(seen, failure=why))
            self._trail.note("launch-failed", instance=instance, reason=str(error))
            return
        launches = seen.launches + 1 if made is None else made.launches
        self._trail.note("launched", instance=instance, starts=launches)
        fresh = replace(fresh, ended_s=None, exit_code=None, launches=launches)
        self._watch.put(instance, replace(fresh, enabled=None, word_s=None, asked_s=None))

    async def end_hung(self, instance: str, silence_s: float) -> None:
        """It lives and says nothing. Once it is dead it is started again, or not, as any other that died."""
        why = f"said nothing for {silence_s:.0f} s"
        self._trail.note("hung", instance=instance, reason=why)
        self._watch.put(instance, replace(self._watch.of(instance), hung=why))
        await asyncio.to_thread(self._runtime.kill, instance)

    def _log(self, instance: str) -> str:
        return f"{self._ground.folder}/logs/{instance}.log"

    def _said(self, instance: str, words: str | None) -> str:
        """Where one that is given up has told why, and the last of it."""
        where = os.path.relpath(self._log(instance), self._ground.cwd)
        return f"{where} ends with: {words}" if words else f"its log: {where}"

    async def ask(self, member: Member, enabled: bool, now_s: float) -> None:
        """To work, or to stop working."""
        instance = member.instance
        scope = Scope(swarm=self._ground.swarm, role=member.role, instance=instance)
        correlation = str(uuid.uuid4())
        self._trail.note("sent", correlation, signal=Signal.CONFIG.value, scope=scope.words, enabled=enabled)
        await self._voice.signal(Signal.CONFIG, scope, {"enabled": enabled}, origin=ORIGIN, correlation_id=correlation)
        self._watch.put(instance, replace(self._watch.of(instance), asked_s=now_s))

    async def request_status(self, member: Member) -> None:
        scope = Scope(swarm=self._ground.swarm, role=member.role, instance=member.instance)
        await self._voice.signal(Signal.STATUS, scope, None, origin=ORIGIN, correlation_id=str(uuid.uuid4()))

    def poll(self, instance: str, now_s: float) -> None:
        task = asyncio.create_task(self._watch.poll(instance, now_s))
        self._polls.add(task)
        task.add_done_callback(self._polls.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._polls, return_exceptions=True)


def environment(keep: Collection[str] = ()) -> dict[str, str]:
    """What components inherit: not what belongs to the process that starts them, but for the names in `keep`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FARRO_") or name in keep}
