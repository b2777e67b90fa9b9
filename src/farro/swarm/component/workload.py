"""The workload of a component while it is enabled: items that its function works, or one service that runs.

- An item is acknowledged when the bus has accepted all its results. A crash in between repeats it, with result ids made
  of the item's own, so that readers recognise the repetition. [test_nothing_is_lost_on_the_way]
- A function that raises gets the item again, up to `tries` times; then the item goes to the queue's dead letters.
  [test_an_item_that_keeps_failing_becomes_a_dead_letter]
- A source is called again when the bus has accepted all that it made before: one that notes its progress when it is
  called loses nothing in any crash. [test_a_source_is_called_again_after_its_items_were_accepted]
- Stopping drains: nothing new is taken, items in progress are finished, the rest goes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue as queues
import sys
import threading
import time
import traceback
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from farro.errors import BusTrouble, FarroError, InputError
from farro.lazy_dataclass import dataclass, field
from farro.plans.cron import due
from farro.swarm.bus import wait
from farro.swarm.bus.port import Bus, BusMessage, Consumer, Delivery
from farro.swarm.component.declare import Component, ComponentEnvironment, Drop

TPS_WINDOW_S = 10.0
_PAUSE_S = 0.2  # before a failed item is tried again, and after trouble with the bus
_SPACE = uuid.UUID("6f9a3d1e-6b1c-4b8f-9b2f-6a1c5a3c7f10")  # namespace of result ids


@dataclass
class WorkCounts:
    """Counts and times of processed items, for the status."""

    done: int = 0
    failed: int = 0
    dead: int = 0
    last_error: str | None = None
    _times: deque[float] = field(default_factory=deque)

    def count(self, now_s: float) -> None:
        self.done += 1
        self._times.append(now_s)

    def tps(self, now_s: float) -> float:
        while self._times and now_s - self._times[0] > TPS_WINDOW_S:
            self._times.popleft()
        return round(len(self._times) / TPS_WINDOW_S, 3)


class Workload(ABC):
    """What a component does while it is enabled. `begin` and `end` may be called repeatedly."""

    def __init__(self, component: Component[Any], config: Callable[[], Any]) -> None:
        assert component.declared is not None
        self._component = component
        self._declared = component.declared
        self._config = config
        self._ending = asyncio.Event()
        self.counts = WorkCounts()
        self.trouble: str | None = None  # why the component is not healthy
        self.exit: SystemExit | None = None  # raised by the function to end the process

    @abstractmethod
    async def begin(self) -> None: ...

    @abstractmethod
    async def end(self, grace_s: float) -> bool:
        """End the workload. Return whether everything in progress ended in time."""

    def stop_waiting(self) -> None:  # noqa: B027 - most workloads do not wait
        """Stop waiting in `begin`: the component ends."""

    def count(self) -> None:  # noqa: B027 - items are counted as they end
        """Take over what the function itself counted."""


class ItemWorkload(Workload):
    """Process items or run a source. Its errors concern single items, so it is always healthy."""

    def __init__(
        self, component: Component[Any], bus: Bus, environment: ComponentEnvironment, config: Callable[[], Any]
    ) -> None:
        super().__init__(component, config)
        self._bus = bus
        self._environment = environment
        self._readers: list[asyncio.Task[None]] = []  # they hold no item, so they may be cancelled
        self._under_way: set[asyncio.Task[None]] = set()  # a source's loop, or a task per item
        self._consumers: list[Consumer] = []
        self._thread: CallThread | None = None
        self._unsent: tuple[Any, str] | None = None  # what a source made and the bus has not accepted yet

    async def begin(self) -> None:
        if self._readers or self._under_way:
            return
        self._ending.clear()
        if not self._declared.is_async:
            self._thread = CallThread()
        if self._declared.kind == "source":
            self._go(self._make())
            return
        try:
            for queue in self._environment.input_queues:
                self._consumers.append(await self._bus.consume(queue, prefetch=self._component.prefetch))
        except BaseException:  # all queues or none: half a workload would look like a whole one
            await self.end(0)
            raise
        self._readers = [asyncio.create_task(self._read(consumer)) for consumer in self._consumers]

    async def end(self, grace_s: float) -> bool:
        self._ending.set()
        readers, self._readers = self._readers, []
        consumers, self._consumers = self._consumers, []
        if self._thread is not None:
            self._thread.end()
            self._thread = None
        for task in readers:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        tasks = set(self._under_way)
        _, late = await asyncio.wait(tasks, timeout=grace_s) if tasks else (set(), set())
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for consumer in consumers:
            await consumer.close()  # what was not acknowledged goes back
        return not late

    def _go(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    # --- sources ---

    async def _make(self) -> None:
        due_s = time.monotonic()
        while not self._ending.is_set():
            due_s = self._due_s(due_s)
            if await wait(self._ending, max(0.0, due_s - time.monotonic())):
                return
            try:
                if self._unsent is None:
                    self._unsent = (await self._called(), str(uuid.uuid4()))
                await self._send(*self._unsent)
            except NotCalled:
                return
            except BusTrouble as error:  # sent again as the same messages before the source is called again
                self._failed(error)
                await asyncio.sleep(_PAUSE_S)
            except Exception as error:  # noqa: BLE001 - an error of the function is counted and does not end the source
                self._unsent = None
                self._failed(error)
            else:
                self._unsent = None
                self.counts.count(time.monotonic())

    def _due_s(self, before_s: float) -> float:
        """Return the time of the next call, on the monotonic clock."""
        if self._declared.cron is not None:
            now = datetime.now(UTC)
            moment = next(due(self._declared.cron, UTC, now), now)  # a cron line that is never due cannot be declared
            return time.monotonic() + (moment - now).total_seconds()
        pause_s = self._pause_s()
        return max(before_s + pause_s, time.monotonic() - pause_s)  # more than one missed call is not made up for

    def _pause_s(self) -> float:
        config = self._config()
        named = config.get("rate") if isinstance(config, dict) else getattr(config, "rate", None)
        rate = named if isinstance(named, int | float) and named > 0 else self._declared.rate
        return 1.0 / rate if rate is not None else float(self._declared.every_s or 1.0)

    # --- transforms and sinks ---

    async def _read(self, consumer: Consumer) -> None:
        """Start a task per item, at most `prefetch`: a consumer holds no more."""
        while True:
            try:
                async for delivery in consumer:
                    self._go(self._work(delivery))
            except Exception as error:  # noqa: BLE001 - such as a failing disk: counted and tried again
                self._failed(error)
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    async def _work(self, delivery: Delivery) -> None:
        for number in range(1, self._component.tries + 1):
            try:
                item = json.loads(delivery.message.body)
                results = await self._called(item)
                if self._declared.kind == "transform":
                    await self._send(results, delivery.message.message_id)
            except NotCalled:
                return  # it goes back when its consumer is closed
            except (Drop, ValueError) as error:
                self._failed(error)
                break
            except BusTrouble as error:
                self._failed(error)
                await delivery.reject(requeue=True)
                await asyncio.sleep(_PAUSE_S)
                return
            except Exception as error:  # noqa: BLE001 - an error of the function concerns this item only
                self._failed(error)
                if self._ending.is_set():
                    return  # another component makes the remaining tries
                if number < self._component.tries:
                    await asyncio.sleep(_PAUSE_S)
            else:
                await delivery.ack()
                self.counts.count(time.monotonic())
                return
        self.counts.dead += 1
        await delivery.reject(requeue=False)

    def _failed(self, error: BaseException) -> None:
        self.counts.failed += 1
        self.counts.last_error = f"{type(error).__name__}: {error}"[:500]

    async def _called(self, *items: Any) -> Any:
        arguments = (*items, self._config()) if self._declared.takes_config else items
        if self._declared.is_async:
            return await self._declared.function(*arguments)
        if self._thread is None:
            raise NotCalled
        return await self._thread.call(self._declared.function, arguments)

    async def _send(self, results: Any, origin: str) -> None:
        """Publish every result to every output. The ids follow from `origin`, so a repetition has the same ids."""
        items = results if isinstance(results, list) else [] if results is None else [results]
        sends: list[Coroutine[Any, Any, None]] = []
        for index, item in enumerate(items):
            body = json.dumps(item, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
            for suffix in self._environment.outputs:
                message_id = str(uuid.uuid5(_SPACE, f"{origin}/{self._environment.role}/{suffix}/{index}"))
                sends.append(
                    self._bus.publish(
                        self._environment.exchange, BusMessage(key=suffix, body=body, message_id=message_id)
                    )
                )
        if len(sends) == 1:
            await sends[0]
        elif sends:
            await asyncio.gather(*sends)


# --- calling the function ---

Job = tuple["asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class NotCalled(Exception):
    """The component is being stopped, and this call had not begun."""


class CallThread:
    """Call a plain function on its own thread, one call at a time, in order.

    The function may block while the event loop goes on. Waking the loop from another thread costs more than a small
    function, so answers that come while the loop is busy are delivered together. The thread ends with `end` or with the
    process: a function that never returns does not delay the exit.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: queues.SimpleQueue[Job | None] = queues.SimpleQueue()
        self._answers: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._woken = False  # the loop will deliver the answers
        self._ending = False
        threading.Thread(target=self._run, name="component", daemon=True).start()

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._jobs.put((future, function, arguments))
        return future

    def end(self) -> None:
        """End the thread. Calls that have not begun raise NotCalled."""
        self._ending = True
        self.end_after_calls()

    def end_after_calls(self) -> None:
        """End the thread when all calls have ended."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function, arguments = job
            answer: Any = None
            error: BaseException | None = None
            if self._ending:
                error = NotCalled()
            else:
                try:
                    answer = function(*arguments)
                except BaseException as raised:  # noqa: BLE001 - the caller gets it, whatever it is
                    error = raised
            self._answers.append((future, answer, error))
            if not self._woken:  # read after the answer was added: a delivery that is due will see it
                self._woken = True
                try:
                    self._loop.call_soon_threadsafe(self._deliver)
                except RuntimeError:
                    return  # the event loop is closed, and no task waits

    def _deliver(self) -> None:
        self._woken = False
        while self._answers:
            future, answer, error = self._answers.popleft()
            if future.done():
                continue  # its caller was cancelled
            if error is None:
                future.set_result(answer)
            elif isinstance(error, StopIteration):  # a future cannot hold it
                future.set_exception(RuntimeError("the function raised StopIteration"))
            else:
                future.set_exception(error)


# --- services ---

FIRST_PAUSE_S = 0.5  # before the run after a failed one; doubled after each further failure
LONGEST_PAUSE_S = 30.0
SETTLED_S = 1.0  # a run that lasted this long is healthy
READY_S = 20.0  # for a service with `says_ready`
STEADY_S = 60.0  # after this time earlier failures are forgotten


class ServiceWorkload(Workload):
    """Run one function while the component is enabled, and again when it fails. `changed` is called when its health
    changes.

    - A plain function runs on its own thread and ends when a threading.Event is set; an async one uses an
      asyncio.Event.
    - A function that ends early is run again: soon at first, later and later if it keeps ending. Until a new run has
      lasted a moment the component is not healthy. [test_a_failed_service_is_run_again_and_is_down_meanwhile]
    - A thread cannot be ended from outside: one that ignores its event is left until the process ends, and the service
      is not started a second time beside it. [test_a_service_that_ignores_its_event_is_reported]
    """

    def __init__(self, component: Component[Any], config: Callable[[], Any], changed: Callable[[], None]) -> None:
        super().__init__(component, config)
        self._changed = changed
        self._task: asyncio.Task[None] | None = None
        self._stop: threading.Event | asyncio.Event | None = None
        self._started_or_failed = asyncio.Event()  # it is ready, or failed, or ended
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(self._ready)

        component.on_ready(wake)

    def stop_waiting(self) -> None:
        self._started_or_failed.set()

    def _ready(self) -> None:
        self._started_or_failed.set()
        self._set_trouble(None)

    async def begin(self) -> None:
        if self._task is not None:
            if self._ending.is_set():
                raise InputError(f"{self._component.role} must end and has not ended yet")
            return
        self._ending.clear()
        self._started_or_failed.clear()
        self._task = asyncio.create_task(self._keep_running())
        if self._declared.says_ready:
            await wait(self._started_or_failed, READY_S)

    async def end(self, grace_s: float) -> bool:
        task = self._task
        if task is None:
            return True
        self._ending.set()
        if self._stop is not None:
            self._stop.set()
        await asyncio.wait({task}, timeout=grace_s)
        if not task.done() and self._declared.is_async:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._finish()
            return False
        return task.done()

    def count(self) -> None:
        new, now_s = self._component.counted - self.counts.done, time.monotonic()
        for _ in range(new):
            self.counts.count(now_s)

    def _finish(self) -> None:
        self._task, self._stop = None, None
        self._started_or_failed.set()
        self._set_trouble(None)

    async def _keep_running(self) -> None:
        pause_s = FIRST_PAUSE_S
        try:
            while not self._ending.is_set():
                began_s = time.monotonic()
                why = await self._run()
                if why is None:
                    return
                self.counts.failed += 1
                self.counts.last_error = why[:500]
                self._set_trouble(why)
                self._started_or_failed.set()
                _complain(f"{self._component.role}: {why}; running it again in {pause_s:g} s")
                if time.monotonic() - began_s > STEADY_S:
                    pause_s = FIRST_PAUSE_S
                await wait(self._ending, pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        finally:
            self._finish()

    async def _run(self) -> str | None:
        """Run the function once. Return why it ended early, or None if its end was requested."""
        arguments = (self._config(),) if self._declared.takes_config else ()
        running: asyncio.Future[Any]
        if self._declared.is_async:
            self._stop = asyncio.Event()
            running = asyncio.ensure_future(_kept_inside(self._declared.function, self._stop, *arguments))
        else:
            self._stop = threading.Event()
            running = _call_on_own_thread(self._declared.function, self._stop, *arguments)
        if self._ending.is_set():
            self._stop.set()
        try:
            await asyncio.wait({running}, timeout=SETTLED_S)
            if not running.done() and not self._declared.says_ready:
                self._set_trouble(None)
            await running
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            raise
        except _ExitRequested as requested:
            self.exit = requested.exit
            self._set_trouble("wants to end")
            return None
        except Exception as error:  # noqa: BLE001 - any error is reported, and the function is run again
            if self._ending.is_set():
                return None
            if not isinstance(error, FarroError):  # an error in the function itself
                _complain("".join(traceback.format_exception(error)))
            return f"{type(error).__name__}: {error}"
        return None if self._ending.is_set() else "ended though it was not told to"

    def _set_trouble(self, trouble: str | None) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            self._changed()


class _ExitRequested(Exception):
    """The function raised SystemExit, which itself would end the event loop."""

    def __init__(self, system_exit: SystemExit) -> None:
        super().__init__(str(system_exit.code))
        self.exit = system_exit


def _complain(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(text.rstrip(), file=sys.stderr, flush=True)  # noqa: T201 - into the component's log


async def _kept_inside(function: Callable[..., Any], *arguments: Any) -> None:
    try:
        await function(*arguments)
    except SystemExit as system_exit:
        raise _ExitRequested(system_exit) from system_exit


def _call_on_own_thread(function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
    """Call the function on a daemon thread: a process waits for pool threads at its end, and a service may not end."""

    def call() -> None:
        try:
            function(*arguments)
        except SystemExit as system_exit:
            raise _ExitRequested(system_exit) from system_exit

    thread = CallThread()
    called = thread.call(call, ())
    thread.end_after_calls()
    return called
