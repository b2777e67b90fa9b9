"""Handle one client: run its commands in order, reply in the same order, and bound its unread data.

Commands that need no store are answered at once, in the call that brought their bytes. Others are coroutines and run in
a task. Meanwhile no further command of this client is parsed: its replies stay in order, and a pipeline is bounded by
the socket's buffers. A task is never cancelled: a call of the store cannot be, and a job claimed for a client that is
gone must be handed back.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from farro.agq import resp
from farro.agq.resp import CommandError, Malformed, Parser
from farro.errors import CapacityReached, FarroError, Lost, Refused, TryAgain
from farro.sandbox import callers

if TYPE_CHECKING:
    from farro.agq.blocking_pops import Waiter
    from farro.agq.changes import Subscription
    from farro.agq.server import AgqServer
    from farro.agq.workers import HeldJob, RemoteWorker

AHEAD = 1 << 20  # bytes of a pipeline that are kept while a command runs
UNREAD = 1 << 20  # bytes of unread replies at which a client is no longer served
UNREAD_MESSAGES = 8 << 20  # … and of unread messages of its subscriptions at which it is disconnected
ANSWERS = 32 << 20  # bytes of all replies of one EXEC
PIPELINE_TURN = 512  # commands answered before other clients get a turn

_PING = b"*1\r\n$4\r\nPING\r\n"
_PONG = b"+PONG\r\n"
_WHILE_SUBSCRIBED = frozenset(
    {b"SUBSCRIBE", b"UNSUBSCRIBE", b"PSUBSCRIBE", b"PUNSUBSCRIBE", b"PING", b"QUIT", b"RESET", b"HELLO"}
)
_UNQUEUED = frozenset({b"EXEC", b"DISCARD", b"MULTI", b"QUIT", b"RESET"})
_PREFIXES = ((CapacityReached, "BUSY "), (Lost, "claim lost: "), (Refused, "refused: "), (TryAgain, "try again: "))
_BEFORE_AUTH = frozenset({b"AUTH", b"HELLO", b"QUIT", b"RESET"})


class Connection(asyncio.Protocol):
    def __init__(self, server: AgqServer) -> None:
        self.server = server
        self.id = 0
        self.proto = 2
        self.name = ""
        self.authenticated = server.key is None  # sent the key, or none is required
        self.closed = False
        self.worker: RemoteWorker | None = None
        self.waiter: Waiter | None = None
        self.subscriptions: set[Subscription] = set()
        self.queued: list[list[bytes]] | None = None  # between MULTI and EXEC
        self.multi_failed = False  # … and one of them was invalid
        self._queued_bytes = 0  # their bytes
        self.executing = False
        self.undelivered: list[HeldJob] = []  # jobs in the reply that is being made
        self.info: dict[str, str] = {}
        self.peer = ""
        self.wrong_keys = 0
        self.since_s = 0.0
        self.partial_since_s: float | None = None  # since when an incomplete command is pending
        self.unread_since_s: float | None = None  # since when its replies are unread
        self._transport: asyncio.Transport | None = None
        self.busy = False  # a command runs
        self._write_paused = False  # too many replies are unread
        self.read_paused = False
        self._parser = Parser(resp.AUTHENTICATED if self.authenticated else resp.UNAUTHENTICATED, server.reserve)

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            # A machine that lost power sends nothing: without this, its jobs would be held for ever.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
                if hasattr(socket, option):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self.since_s = self.server.now_s()
        transport.set_write_buffer_limits(high=UNREAD)
        if not self.server.admit(self):
            self._refuse("ERR max number of clients reached")
        elif self.server.key is None and isinstance(peer, tuple):
            self.busy = True  # until it is known who that is
            self.server.spawn(self._judge(peer[:2], transport.get_extra_info("sockname")[:2]))

    def data_received(self, data: bytes) -> None:
        if data == _PING and self._idle():  # what most clients send most of the time
            assert self._transport is not None
            self._transport.write(_PONG)
            return
        if self.closed:
            return
        self._parser.feed(data)
        if not self.authenticated and self._parser.waiting > resp.UNAUTHENTICATED.command:
            self._refuse(f"ERR more than {resp.UNAUTHENTICATED.command} bytes before AUTH")
            return
        self._serve()

    def _idle(self) -> bool:
        """Return whether the next command can be answered directly."""
        waits = self.busy or self._write_paused or self.closed or self._parser.partial
        return self.authenticated and not (waits or self.queued is not None or self.subscriptions)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.server.return_budget(self._parser)
        self.unqueue()
        if self.waiter is not None:
            self.waiter.leave()
        self.server.forget(self)

    def pause_writing(self) -> None:
        self._write_paused = True
        self.unread_since_s = self.server.now_s()
        self._update_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.unread_since_s = self.unread_since_s if self.closed else None
        self._serve()

    async def _judge(self, peer: tuple[str, int], local: tuple[str, int]) -> None:
        """Refuse a caller who may not use a server without a key."""
        why = await self.server.judgements.call(callers.refusals, (peer, local))
        self.busy = False
        if why is not None and not self.closed:
            self.server.log("warning", "a client was refused", {"client": self.peer, "why": why})
            self._refuse(f"NOPERM this server has no key (agq.key) and serves its own user only: {why}")
        self._serve()

    # --- commands ---

    def _serve(self) -> None:
        """Run the commands that can run now."""
        out: list[bytes] = []
        turns = size = 0
        while not (self.busy or self._write_paused or self.closed or self.server.stopping):
            if turns >= PIPELINE_TURN:
                self.busy = True
                asyncio.get_running_loop().call_soon(self._resume)
                break
            turns += 1
            try:
                args = self._parser.next()
            except Malformed as error:
                self._write(out)
                self._refuse(f"ERR Protocol error: {error}")
                return
            if args is None:
                break
            self.partial_since_s = None
            if not args:
                continue
            answer = self.answer(args)
            if type(answer) is CoroutineType:
                self.busy = True
                self.server.spawn(self._finish(answer))
            else:
                out.append(resp.encode(answer, self.proto))
                size += len(out[-1])
                self.server.return_budget(self._parser)
                if size > UNREAD:  # written now, so that a client that does not read is noticed before the next command
                    self._write(out)
                    out, size = [], 0
        if not self.closed:
            partial = self._parser.partial and not self.busy
            self.partial_since_s = (self.partial_since_s or self.server.now_s()) if partial else None
        self._write(out)
        self._update_reading()

    def _resume(self) -> None:
        self.busy = False
        self._serve()

    async def _finish(self, running: Coroutine[Any, Any, Any]) -> None:
        answer = await self._outcome(running)
        self.server.return_budget(self._parser)
        self.busy = False
        undelivered, self.undelivered = self.undelivered, []
        if not self.closed:
            self.send(answer)
            self._serve()
            return
        workers = self.server.workers
        for held in undelivered:  # of several jobs: the client went away before the last one was claimed
            self.server.spawn(workers.hand_back(held, "its client went away before it got the job"))

    def answer(self, args: list[bytes]) -> Any:
        """Return the reply of a command, or the coroutine that produces it."""
        name = args[0].upper()
        if not self.authenticated and name not in _BEFORE_AUTH:
            return CommandError("Authentication required.", "NOAUTH")
        if self.proto == 2 and self.subscriptions and name not in _WHILE_SUBSCRIBED:
            shown = name.decode("ascii", "replace").lower()[:40]
            allowed = "(P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET"
            return CommandError(f"Can't execute '{shown}': only {allowed} are allowed in this context")
        command = self.server.commands.get(name)
        problem = command.fault(args) if command is not None else unknown(args)
        if problem is not None:
            self.multi_failed = self.multi_failed or self.queued is not None
            return problem
        assert command is not None
        if self.queued is not None and name not in _UNQUEUED:
            size = sum(map(len, args)) + 64 * len(args)
            fits = size <= AHEAD and self._queued_bytes + size <= resp.AUTHENTICATED.command
            if len(self.queued) >= resp.AUTHENTICATED.args or not fits or not self.server.reserve(size):
                self.multi_failed = True
                return CommandError(
                    f"at most {resp.AUTHENTICATED.args} commands of at most {AHEAD} bytes, and "
                    f"{resp.AUTHENTICATED.command} bytes together, between MULTI and EXEC"
                )
            self._queued_bytes += size
            self.queued.append(args)
            return resp.QUEUED
        try:
            return command.run(self, args)
        except Exception as error:  # noqa: BLE001 - the edge of a service loop: a bug here fails one command
            return self.error_reply(error)

    async def _outcome(self, running: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await running
        except Exception as error:  # noqa: BLE001 - the edge of a service loop: a bug here fails one command
            return self.error_reply(error)

    def error_reply(self, error: Exception) -> CommandError:
        """Return the reply for an exception; log it if it is a bug."""
        if isinstance(error, CommandError):
            return error
        if isinstance(error, FarroError):
            prefix = next((words for kind, words in _PREFIXES if isinstance(error, kind)), "")
            return CommandError(f"{prefix}{error}")
        self.server.log("error", "a command broke", {"error": f"{type(error).__name__}: {error}"})
        return CommandError(f"internal error: {type(error).__name__}; the log of farro agq has more")

    async def execute(self, queued: list[list[bytes]]) -> list[Any]:
        """Run the commands of EXEC one after the other. Other clients may run commands in between, and completed
        commands stand if a later one fails."""
        self.executing = True
        try:
            answers: list[Any] = []
            size = 0
            for args in queued:
                if size > ANSWERS:
                    answers.append(CommandError(f"not done: the answers before it have more than {ANSWERS} bytes"))
                    continue
                answer = self.answer(args)
                answer = await self._outcome(answer) if type(answer) is CoroutineType else answer
                answers.append(resp.EncodedReply(resp.encode(answer, self.proto)))
                size += len(answers[-1].data)
            return answers
        finally:
            self.executing = False
            self.unqueue()

    def unqueue(self) -> None:
        """Leave the MULTI state, and drop its commands."""
        self.queued, self.multi_failed = None, False
        self.server.release(self._queued_bytes)
        self._queued_bytes = 0

    # --- output ---

    def send(self, value: Any) -> None:
        self._write([resp.encode(value, self.proto)])

    def push(self, message: resp.PushMessage) -> None:
        """Send a message of a subscription. Disconnect a client that does not read: its messages would pile up."""
        if self.closed or self._transport is None:
            return
        if self._transport.get_write_buffer_size() > UNREAD_MESSAGES:
            self.server.log("warning", "a subscriber does not read; let go", {"peer": self.peer})
            self.abort()
            return
        self.send(message)

    def _write(self, out: list[bytes]) -> None:
        if out and not self.closed and self._transport is not None:
            self._transport.write(b"".join(out))

    def authenticate(self) -> None:
        """Accept the client: it sent the right key."""
        self.authenticated = True
        self._parser.limits = resp.AUTHENTICATED

    def deauthenticate(self) -> None:
        """After RESET, require the key again if there is one."""
        if self.server.key is not None:
            self.authenticated, self.since_s = False, self.server.now_s()
            self._parser.limits = resp.UNAUTHENTICATED

    def close_after_writes(self) -> None:
        """Close the connection after everything is written."""
        self.closed = True
        self.unread_since_s = (
            self.server.now_s() if self.unread_since_s is None else self.unread_since_s
        )  # dropped if it never reads this
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once and discard unwritten data."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, why: str) -> None:
        if self._transport is not None:
            self._transport.write(f"-{why}\r\n".encode())
        self.close_after_writes()

    def _update_reading(self) -> None:
        """Pause or resume reading. Unread input stays in the client's and the socket's buffers."""
        if self.closed or self._transport is None:
            return
        pause = (self.busy and self._parser.waiting > AHEAD) or self._write_paused
        if pause and not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()
        elif not pause and self.read_paused:
            self.read_paused = False
            self._transport.resume_reading()


def unknown(args: list[bytes]) -> CommandError:
    shown = args[0][:64].decode("utf-8", "replace")
    printable = "".join(char if char.isprintable() else "?" for char in shown)
    return CommandError(f"unknown command '{printable}'")
