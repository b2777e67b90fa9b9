"""Provide seams for the crash suites: they intercept farro's filesystem calls to inject kills and errors.

The suites (and stage.py) define the scenarios and the checks. Use `with seams.placed(KillAt(3)): ...`.
A seam sees one call per mutating system call, in order: `perform(op, call, args)`; ops are "mkdir", "create", "write",
"symlink", "link", "unlink", "rmdir", "replace", "exchange", "move", "utime", "truncate", "fsync", "write_sync",
"write_begun" (whose end is a "write_sync"), "syncfs". Calls are counted from 1.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol, TypeVar

from farro.host import fs
from stage import Crash

MUTATING = frozenset(
    {
        "mkdir",
        "create",
        "write",
        "symlink",
        "link",
        "unlink",
        "rmdir",
        "replace",
        "exchange",
        "move",
        "utime",
        "truncate",
    }
    | {"fsync", "write_begun", "write_sync", "syncfs"}
)
TAKES_EFFECT = frozenset({"move", "replace", "exchange", "mkdir", "symlink", "link", "unlink", "rmdir", "create"})
"""The calls that may take effect and still report an error (a network filesystem's lost reply)."""

Call = Callable[..., Any]


class Seam(Protocol):
    def perform(self, op: str, call: Call, args: tuple[Any, ...]) -> Any: ...

    def look(self, op: str, path: str) -> None: ...


S = TypeVar("S", bound=Seam)


@contextlib.contextmanager
def placed(seam: S) -> Iterator[S]:
    """Install the seam for the block, and always remove it afterwards."""
    fs.set_seam(seam)
    try:
        yield seam
    finally:
        fs.set_seam(None)


class Open:
    """Let every call through. Other seams inherit from it."""

    def perform(self, op: str, call: Call, args: tuple[Any, ...]) -> Any:
        return call(*args)

    def look(self, op: str, path: str) -> None:
        pass


class Counting(Open):
    """Count the mutating calls (`count`) and keep their names in order (`ops`). Failed calls (EEXIST, ENOENT) count.

    `only`: count calls with these names only.
    """

    def __init__(self, only: frozenset[str] = MUTATING) -> None:
        self.only = only
        self.ops: list[str] = []

    @property
    def count(self) -> int:
        return len(self.ops)

    def perform(self, op: str, call: Call, args: tuple[Any, ...]) -> Any:
        if op in self.only:
            self.ops.append(op)
        return super().perform(op, call, args)


class Both:
    """Chain two seams: the outer one gets each call first and makes it through the inner one."""

    def __init__(self, outer: Seam, inner: Seam) -> None:
        self.outer = outer
        self.inner = inner

    def perform(self, op: str, call: Call, args: tuple[Any, ...]) -> Any:
        return self.outer.perform(op, lambda *given: self.inner.perform(op, call, given), args)

    def look(self, op: str, path: str) -> None:
        self.outer.look(op, path)
        self.inner.look(op, path)


class Before(Open):
    """Run `action` just before the n-th call named `op` ("any": any call), as a faster process would do."""

    def __init__(self, op: str, action: Callable[[], object], n: int = 1) -> None:
        self.op = op
        self.action = action
        self.n = n
        self.count = 0
        self.acting = False

    def perform(self, op: str, call: Call, args: tuple[Any, ...]) -> Any:
        if not self.acting and self.op in (op, "any"):
            self.count += 1
            if self.count == self.n:
                self.acting = True
                self.action()
                self.acting = False
        return super().perform(op, call, args)

    @property
    def happened(self) -> bool:
        return self.count >= self.n


class Recording(Open):
    """Record `calls`: (op, args) of every successful call; the bytes of a write are copied."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def perform(self, op: str, call: Call, args: tuple[Any, ...]) -> Any:
        result = super().perform(op, call, args)
        kept = tuple(bytes(arg) if isinstance(arg, memoryview) else arg for arg in args)
        self.calls.append((op, kept))
        return result


class KillAt(Open):
    """Kill the process at its n-th mutating call: raise `Crash` there and at every later call and read.

    `after`: the call takes effect first (it was the last thing the process did).
    `torn`: a "write", "write_begun" or "write_sync" first writes half of its bytes; other calls are not made.
    `only`: count calls with these names only. `dead` tells whether the kill happened. Later calls also crash because a
    dead process makes none: `finally` and `except` clauses of the code under test must not clean up.
    """

    def __init__(self, n: int, *, after: bool = False, torn: bool = False, only: frozenset[str] | None = None) -> None:
        self.n = n
        self.after = after
        self.torn = torn
        self.only = only
        self.count = 0
        self.op: str | None = None
        self.dead = False

    def perform(self, op: str, call: Call, args: tuple[Any, ...]) -> Any:
        if self.dead:
            raise Crash(f"a dead process called {op}")
        if self.only is not None and op not in self.only:
            return super().perform(op, call, args)
        self.count += 1
        if self.count != self.n:
            return super().perform(op, call, args)
        self.dead, self.op = True, op
        if self.after:
            super().perform(op, call, args)
        elif self.torn and op == "write":
            fd, data = args
            os.write(fd, data[: len(data) // 2])
        elif self.torn and op in ("write_begun", "write_sync"):
            _, path, data, offset = args
            with open(path, "r+b") as file:  # its own descriptor takes whole blocks only
                file.seek(offset)
                file.write(data[: len(data) // 2])
        raise Crash(f"killed at call {self.n}, {op}")

    def look(self, op: str, path: str) -> None:
        if self.dead:
            raise Crash(f"a dead process looked at {path}")

    def __repr__(self) -> str:
        how = "after" if self.after else "torn" if self.torn else "before"
        return f"killed {how} call {self.n}" + (f" ({self.op})" if self.op else "")


class Errno(Open):
    """Fail the n-th mutating call with OSError(code) instead of making it.

    `after`: it is made, and fails all the same: the ambiguous error. `persistent`: so does every later call.
    `only`: count and fail only calls with these names. `hit` is the op that failed, None when n was never reached.
    """

    def __init__(
        self, n: int, code: int, after: bool = False, *, persistent: bool = False, only: frozenset[str] | None = None
    ) -> None:
        self.n = n
        self.code = code
        self.after = after
        self.persistent = persistent
        self.only = only
        self.count = 0
        self.hit: str | None = None

    def perform(self, op: str, call: Call, args: tuple[Any, ...]) -> Any:
        if self.only is not None and op not in self.only:
            return super().perform(op, call, args)
        self.count += 1
        if self.count == self.n or (self.persistent and self.count > self.n):
            self.hit = self.hit or op
            if self.after:
                super().perform(op, call, args)
            named = next((arg for arg in reversed(args) if isinstance(arg, str)), None)
            raise OSError(self.code, os.strerror(self.code), named)
        return super().perform(op, call, args)

    def __repr__(self) -> str:
        how = f"{'after' if self.after else 'before'}{', persistent' if self.persistent else ''}"
        return f"Errno(call {self.n} {self.hit}: {errno.errorcode[self.code]} {how})"


class BadLook(Open):
    """Fail the n-th read of the disk: EMFILE where it opens something (read, list), else EIO. Mutating calls pass.

    `hit` is the read that failed, None when n was never reached.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.count = 0
        self.hit: str | None = None

    def look(self, op: str, path: str) -> None:
        self.count += 1
        if self.count == self.n:
            self.hit = f"{op} {path}"
            code = errno.EMFILE if op in ("read", "list") else errno.EIO
            raise OSError(code, os.strerror(code), path)

    def __repr__(self) -> str:
        return f"BadLook(look {self.n}: {self.hit})"


_actor: contextvars.ContextVar[Hashable] = contextvars.ContextVar("farro_test_actor", default=None)


def current_actor() -> Hashable:
    """Return the actor set by `acting`, else the running greenlet unless it is a thread's main one, else the thread."""
    actor = _actor.get()
    if actor is not None:
        return actor
    try:
        from greenlet import getcurrent
    except ImportError:
        return threading.get_ident()
    running = getcurrent()
    return running if running.parent is not None else threading.get_ident()


@contextlib.contextmanager
def acting(actor: Hashable) -> Iterator[None]:
    """Attribute the calls in this block to `actor`: a contextvar, so each thread and each greenlet has its own."""
    token = _actor.set(actor)
    try:
        yield
    finally:
        _actor.reset(token)


class Router:
    """Give each of several "processes" in one Python process its own seam: `Router({"w1": KillAt(3), "w2": Open()})`.

    The key is `current_actor()`. An actor without a seam goes through `otherwise`.
    """

    def __init__(self, seams: dict[Hashable, Seam] | None = None, otherwise: Seam | None = None) -> None:
        self.seams: dict[Hashable, Seam] = dict(seams or {})
        self.otherwise: Seam = otherwise or Open()

    def seam(self) -> Seam:
        return self.seams.get(current_actor(), self.otherwise)

    def perform(self, op: str, call: Call, args: tuple[Any, ...]) -> Any:
        return self.seam().perform(op, call, args)

    def look(self, op: str, path: str) -> None:
        self.seam().look(op, path)
