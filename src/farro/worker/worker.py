"""The worker: N slots in one process, started and ended together.

Signals (DESIGN §12): `stop` gives running steps five seconds to end by themselves, then their jobs are released, all
within ten.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from farro.execution.stop import Stop
from farro.host import signals, time_slices, waiting
from farro.host.clock import Clock
from farro.host.waiting import Flag
from farro.store.port import WorkerStore
from farro.worker.slot import Never, Slot, Until


class Worker:
    """All slots of one process."""

    def __init__(
        self,
        *,
        store: WorkerStore,
        role: str,
        slots: int,
        make_slot: Callable[[int, Stop], Slot],
        clock: Clock,
        until: Until | None = None,
    ) -> None:
        self._store = store
        self._role = role
        self._until = until or Never()
        self._stop = Stop(clock)
        self._slots = [make_slot(number, self._stop) for number in range(slots)]
        self._threads = [
            threading.Thread(target=self._run_slot, args=(slot,), name=f"slot-{number}")
            for number, slot in enumerate(self._slots)
        ]
        self._failure: BaseException | None = None
        self._ending = threading.Lock()  # guards _running
        self._running = slots
        self._ended = Flag()  # set when _running is 0

    def stop(self, grace_s: float = 5.0) -> None:
        """Start nothing more; running steps have `grace_s`. From any thread or signal handler; again: at once.

        Takes no lock: a second signal may interrupt the handler of the first, and would wait for its own thread. Slots
        that sleep are woken by `wait`.
        """
        self._stop.request(grace_s)

    def run(self) -> None:
        """Return when stopped or when `until` is over; raise the error that ended a slot."""
        self.start()
        self.wait()

    def start(self) -> None:
        """Start every slot. A wrong role, name or tag is raised here, and then nothing was started."""
        try:
            for slot in self._slots:
                slot.join()
        except BaseException:
            for slot in self._slots:
                slot.leave()
            raise
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Return when every slot has ended; raise the error that ended one."""
        poll = waiting.poller(self._ended.fd, self._stop.fd)
        told = False
        with signals.wakeup() as fd:
            if fd is not None:
                poll.register(fd, waiting.READABLE)
            while self._ended.fd not in (ready := [found for found, _ in poll.poll()]):
                if fd is not None and fd in ready:
                    signals.heard(fd)
                if self._stop.requested and not told:
                    poll.unregister(self._stop.fd)  # it stays readable
                    self._store.wake(self._role)
                    told = True
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _run_slot(self, slot: Slot) -> None:
        time_slices.take_long()
        try:
            slot.run(self._until)
        except BaseException as failure:  # noqa: BLE001 - handed to the thread that waits for the slots
            self._failure = self._failure or failure
            self.stop(0.0)
        finally:
            with self._ending:
                self._running -= 1
                if self._running == 0:
                    self._ended.set()
