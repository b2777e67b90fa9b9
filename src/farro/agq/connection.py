"""One client: its commands in order, its answers in the same order, and what it may leave lying.

What commands do lives in commands; who listens lives in server.

Commands that need no store are answered at once, in the call that brought their bytes. Others are answered later, or
run in a task, and while one does nothing else of this client is read from what it sent: its answers stay in order, and
a pipeline is bounded by what the socket holds. A task is never cancelled: a call of the store cannot be, and a job that
it claims for a client that is gone must be handed back.
"""

from __future__ import annotations

import asyncio
import socket
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from farro.agq import replies, wire
from farro.agq.deferred_reply import Later
from farro.agq.replies import CommandError
from farro.agq.wire import Malformed, Parser
from farro.errors import CapacityReached, FarroError, Lost, Refused, TryAgain

if TYPE_CHECKING:
    from farro.agq.blocking_pops import Waiter
    from farro.agq.roster import Held, Worker
    from farro.agq.server import Server

AHEAD = 1 << 20  # bytes of a pipeline that are kept while a command runs
UNREAD = 1 << 20  # bytes of answers that a client may leave lying before it is not served any more
UNREAD_NEWS = 8 << 20  # … of messages that it subscribed to, before it is let go
ANSWERS = 32 << 20  # bytes of all answers of one EXEC
PIPELINE_TURN = 512  # commands answered before other clients have a turn

_PING = b"*1\r\n$4\r\nPING\r\n"
_PONG = b"+PONG\r\n"
_WHILE_SUBSCRIBED = frozenset(
    {b"SUBSCRIBE", b"UNSUBSCRIBE", b"PSUBSCRIBE", b"PUNSUBSCRIBE", b"PING", b"QUIT", b"RESET", b"HELLO"}
)
_UNQUEUED = frozenset({b"EXEC", b"DISCARD", b"MULTI", b"QUIT", b"RESET"})
_BEFORE_AUTH = frozenset({b"AUTH", b"HELLO", b"QUIT", b"RESET"})


class Connection(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self.server = server
        self.id = 0
        self.proto = 2
        self.name = ""
        self.known = server.key is None  # said the key, or none is asked for
        self.closed = False
        self.worker: Worker | None = None
        self.waiter: Waiter | None = None
        self.channels: set[bytes] = set()
        self.patterns: set[bytes] = set()
        self.queued: list[list[bytes]] | None = None  # between MULTI and EXEC
        self.spoilt = False  # … and one of them was no command
        self._kept = 0  # bytes of them
        self.executing = False
        self.untold: list[Held] = []  # jobs that the answer under way tells of
        self.info: dict[str, str] = {}
        self.peer = ""
        self.wrong_keys = 0
        self.since_s = 0.0
        self.began_s: float | None = None  # when the command began that has not come whole
        self.stuck_s: float | None = None  # since when it does not read its answers
        self._transport: asyncio.Transport | None = None
        self._busy = False
        self._quiet = False  # its answers lie unread
        self._paused = False
        self._parser = Parser(wire.KNOWN if self.known else wire.STRANGER, server.reserve)

    # --- asyncio's calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            # A machine that lost its power says nothing: without this its jobs were held for ever.
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

    def data_received(self, data: bytes) -> None:
        if data == _PING and self._idle():  # what most clients say most of the time
            assert self._transport is not None
            self._transport.write(_PONG)
            return
        if self.closed:
            return
        self._parser.feed(data)
        if not self.known and self._parser.waiting > wire.STRANGER.command:
            self._refuse(f"ERR more than {wire.STRANGER.command} bytes before AUTH")
            return
        self._serve()

    def _idle(self) -> bool:
        """Whether a command can be answered as if it were the first."""
        waits = self._busy or self._quiet or self.closed or self._parser.partial
        return self.known and not (waits or self.queued is not None or self.channels or self.patterns)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.server.return_budget(self._parser)
        self.unqueue()
        if self.waiter is not None:
            self.waiter.leave()
        self.server.forget(self)

    def pause_writing(self) -> None:
        self._quiet = True
        self.stuck_s = self.server.now_s()
        self._flow()

    def resume_writing(self) -> None:
        self._quiet = False
        self.stuck_s = self.stuck_s if self.closed else None
        self._serve()

    # --- serving ---

    def _serve(self) -> None:
        """Answer what can be answered now."""
        out: list[bytes] = []
        turns = size = 0
        while not (self._busy or self._quiet or self.closed or self.server.stopping):
            if turns >= PIPELINE_TURN:
                self._busy = True
                asyncio.get_running_loop().call_soon(self._go_on)
                break
            turns += 1
            try:
                args = self._parser.next()
            except Malformed as error:
                self._say(out)
                self._refuse(f"ERR Protocol error: {error}")
                return
            if args is None:
                break
            self.began_s = None
            if not args:
                continue
            answer = self.answer(args)
            if type(answer) is CoroutineType:
                self._busy = True
                self.server.spawn(self._finish(answer))
            elif type(answer) is Later and not answer.answered:
                self._busy = True
                self._say(out)
                out, size = [], 0
                answer.then(self._answered)
            else:
                if type(answer) is Later:  # in this loop, not in a call: a pipeline may be full of such answers
                    answer, self.untold = self._in_words(answer.value), []
                out.append(replies.encode(answer, self.proto))
                size += len(out[-1])
                self.server.return_budget(self._parser)
                if size > UNREAD:  # said now: whoever does not read is noticed before the next one
                    self._say(out)
                    out, size = [], 0
        if not self.closed:
            partial = self._parser.partial and not self._busy
            self.began_s = (self.began_s or self.server.now_s()) if partial else None
        self._say(out)
        self._flow()

    @property
    def busy(self) -> bool:
        return self._busy

    @property
    def unheard(self) -> bool:
        """Whether what it sends is not read just now."""
        return self._paused

    def _go_on(self) -> None:
        self._busy = False
        self._serve()

    async def _finish(self, running: Any) -> None:
        self._ended(await self._outcome(running))

    def _answered(self, answer: Any) -> None:
        self._ended(self._in_words(answer))

    def _in_words(self, answer: Any) -> Any:
        return self.told(answer) if isinstance(answer, Exception) else answer

    def _ended(self, answer: Any) -> None:
        self.server.return_budget(self._parser)
        self._busy = False
        untold, self.untold = self.untold, []
        if not self.closed:
            self.say(answer)
            self._serve()
            return
        workers = self.server.workers
        for held in untold:  # of several: the client went away before the last one was there
            self.server.spawn(workers.give_back(held, "its client went away before it was told"))

    def answer(self, args: list[bytes]) -> Any:
        """What a command answers, or the coroutine that will."""
        name = args[0].upper()
        if not self.known and name not in _BEFORE_AUTH:
            return CommandError("Authentication required.", "NOAUTH")
        if self.proto == 2 and (self.channels or self.patterns) and name not in _WHILE_SUBSCRIBED:
            shown = name.decode("ascii", "replace").lower()[:40]
            allowed = "(P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET"
            return CommandError(f"Can't execute '{shown}': only {allowed} are allowed in this context")
        command = self.server.commands.get(name)
        problem = command.fault(args) if command is not None else unknown(args)
        if problem is not None:
            self.spoilt = self.spoilt or self.queued is not None
            return problem
        assert command is not None
        if self.queued is not None and name not in _UNQUEUED:
            size = sum(map(len, args)) + 64 * len(args)
            fits = size <= AHEAD and self._kept + size <= wire.KNOWN.command
            if len(self.queued) >= wire.KNOWN.args or not fits or not self.server.reserve(size):
                self.spoilt = True
                return CommandError(
                    f"at most {wire.KNOWN.args} commands of at most {AHEAD} bytes, and {wire.KNOWN.command} bytes "
                    "together, between MULTI and EXEC"
                )
            self._kept += size
            self.queued.append(args)
            return replies.QUEUED
        try:
            return command.run(self, args)
        except Exception as error:  # noqa: BLE001 - the edge of a service loop: a bug here fails one command
            return self.told(error)

    async def _outcome(self, running: Any) -> Any:
        try:
            return await (running.wait() if type(running) is Later else running)
        except Exception as error:  # noqa: BLE001 - the edge of a service loop: a bug here fails one command
            return self.told(error)

    def told(self, error: Exception) -> CommandError:
        """What its client is told of that."""
        if isinstance(error, CommandError | FarroError):
            return as_error(error)
        self.server.log("error", "a command broke", {"error": f"{type(error).__name__}: {error}"})
        return CommandError(f"internal error: {type(error).__name__}; the log of farro agq has more")

    async def execute(self, queued: list[list[bytes]]) -> list[Any]:
        """EXEC: one after the other. Nobody else is kept out meanwhile, and what was done stays done."""
        self.executing = True
        try:
            answers: list[Any] = []
            size = 0
            for args in queued:
                if size > ANSWERS:
                    answers.append(CommandError(f"not done: the answers before it have more than {ANSWERS} bytes"))
                    continue
                answer = self.answer(args)
                answer = await self._outcome(answer) if type(answer) in (CoroutineType, Later) else answer
                answers.append(replies.Encoded(replies.encode(answer, self.proto)))
                size += len(answers[-1].data)
            return answers
        finally:
            self.executing = False
            self.unqueue()

    def unqueue(self) -> None:
        """Nothing stands between MULTI and EXEC any more."""
        self.queued, self.spoilt = None, False
        self.server.release(self._kept)
        self._kept = 0

    # --- saying ---

    def say(self, value: Any) -> None:
        self._say([replies.encode(value, self.proto)])

    def tell(self, message: replies.Push) -> None:
        """A message that it subscribed to. Who does not read them is let go: they would pile up for ever."""
        if self.closed or self._transport is None:
            return
        if self._transport.get_write_buffer_size() > UNREAD_NEWS:
            self.server.log("warning", "a subscriber does not read; let go", {"peer": self.peer})
            self.drop()
            return
        self.say(message)

    def _say(self, out: list[bytes]) -> None:
        if out and not self.closed and self._transport is not None:
            self._transport.write(b"".join(out))

    def trust(self) -> None:
        """It has said the key."""
        self.known = True
        self._parser.limits = wire.KNOWN

    def distrust(self) -> None:
        """RESET: it has to say the key again, where there is one."""
        if self.server.key is not None:
            self.known, self.since_s = False, self.server.now_s()
            self._parser.limits = wire.STRANGER

    def bye(self) -> None:
        """Close when everything is written."""
        self.closed = True
        self.stuck_s = self.server.now_s() if self.stuck_s is None else self.stuck_s  # who never reads it is dropped
        if self._transport is not None:
            self._transport.close()

    def drop(self) -> None:
        """Close at once, whatever was not written."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, why: str) -> None:
        if self._transport is not None:
            self._transport.write(f"-{why}\r\n".encode())
        self.bye()

    def _flow(self) -> None:
        """Read on, or not: what is not read stays in the client's hands."""
        if self.closed or self._transport is None:
            return
        pause = (self._busy and self._parser.waiting > AHEAD) or self._quiet
        if pause and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        elif not pause and self._paused:
            self._paused = False
            self._transport.resume_reading()


def unknown(args: list[bytes]) -> CommandError:
    shown = args[0][:64].decode("utf-8", "replace")
    printable = "".join(char if char.isprintable() else "?" for char in shown)
    return CommandError(f"unknown command '{printable}'")


def as_error(error: Exception) -> CommandError:
    """What a client is told of a refusal."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, CapacityReached):
        return CommandError(f"BUSY {error}")
    if isinstance(error, Lost):
        return CommandError(f"claim lost: {error}")
    if isinstance(error, Refused):
        return CommandError(f"refused: {error}")
    if isinstance(error, TryAgain):
        return CommandError(f"try again: {error}")
    return CommandError(str(error))
