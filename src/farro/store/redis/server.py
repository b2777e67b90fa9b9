"""Talking to the server: one request a round trip, over connections that are kept, and the only place that tries again.

One connection lives in link; what is sent in the parts of the store; what an error means in words in trouble.

A call whose answer was lost is sent again, with the last argument of its script set to 1: each script says what it
makes of that, and none does its work twice. [test_a_lost_answer_is_asked_for_again]
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from farro.errors import FarroError
from farro.host.clock_port import Clock
from farro.store.redis import errors
from farro.store.redis.connection import Address, Arg, Link, ReplyError, pack, readable
from farro.store.redis.scripts import Script

__all__ = ["Address", "Arg", "Link", "Server", "pack"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


class Both(NamedTuple):
    """What two scripts answered. The first was run: whatever became of the second, and of the replicas, it stands."""

    first: Any
    second: Any  # a FarroError: it was refused
    short: FarroError | None  # fewer replicas have them than the settings ask for


class Server:
    """Safe from many threads: each request takes a connection that nobody uses, or makes one."""

    def __init__(self, address: Address, prefix: str, clock: Clock) -> None:
        self.address = address
        self._prefix = prefix
        self._clock = clock
        self._idle: deque[Link] = deque()
        self._pid = os.getpid()
        self._seen = False  # a server of a version that will do was met
        self._closed = False
        self.requests = 0  # round trips so far: what the tests count

    # --- asking ---

    def run(
        self,
        script: Script,
        *args: Arg,
        waits: bool = False,
        patience_s: float | None = None,
        again: bool = False,
    ) -> Any:
        """One round trip. `waits`: it is acknowledged by as many replicas as the settings ask for. `patience_s`: how
        long it is tried again, instead of what the settings say. `again`: it may have been run already, by `ring`."""
        command = self._command(script, args, again=again)
        return self._ask([command], [script], waits=waits, patience_s=patience_s)[0]

    def run_both(self, first: tuple[Script, Sequence[Arg]], second: tuple[Script, Sequence[Arg]]) -> Both:
        """Two scripts, one after the other in one round trip; not one transaction."""
        commands = [self._command(script, args) for script, args in (first, second)]
        wait = self.address.wait_replicas > 0
        answers = self._answers(commands, [first[0], second[0]], wait=wait)
        refusals = [
            errors.refused(self.address.url, str(answer)) if isinstance(answer, ReplyError) else None
            for answer in answers
        ]
        if refusals[0] is not None:
            raise refusals[0]
        return Both(answers[0], refusals[1] or answers[1], self._shortfall(answers[-1]) if wait else None)

    def ring(self, bell: Sequence[Arg], script: Script, *args: Arg, wait_s: float, ear: socket.socket) -> Any:
        """A command that waits in the server, up to `wait_s`, and a script that the server runs right after it, before
        it does anything else: its answer, by one round trip. None: nobody knows whether it was run, because the server
        is away, or because `ear` was called, which is as if. Then `run` it again."""
        try:
            link = self._take()
        except OSError:
            return None
        self.requests += 1
        try:
            link.send(pack(bell) + pack(self._command(script, args)))
            ready = readable([link.socket, ear], wait_s + self.address.timeout_s)
            answers = [link.receive(), link.receive()] if link.socket in ready else []
        except OSError:
            link.close()
            return None
        except BaseException:
            link.close()  # somebody else would read our answer
            raise
        if not answers:
            # Only now: whoever was called while an answer came hears it at the next wait, else it would be forgotten.
            with contextlib.suppress(OSError):
                ear.recv(4096)
            link.close()  # the server forgets what waits there
            return None
        self._give_back(link)
        for answer in answers:
            if isinstance(answer, ReplyError):
                if not str(answer).startswith((*errors.PASSING, "NOSCRIPT", "UNBLOCKED")):
                    raise errors.refused(self.address.url, str(answer))
                return None
        return answers[1]

    def _command(self, script: Script, args: Sequence[Arg], *, again: bool = False) -> tuple[Arg, ...]:
        return ("EVALSHA", script.sha, 1, self._prefix, *args, int(again))

    def call(self, *command: Arg) -> Any:
        return self._ask([command])[0]

    def calls(self, commands: Sequence[Sequence[Arg]]) -> list[Any]:
        """Several commands in one round trip; not one transaction."""
        return self._ask(commands)

    def _ask(
        self,
        commands: Sequence[Sequence[Arg]],
        scripts: Sequence[Script] = (),
        *,
        waits: bool = False,
        patience_s: float | None = None,
    ) -> list[Any]:
        wait = waits and self.address.wait_replicas > 0
        answers = self._answers(commands, scripts, wait=wait, patience_s=patience_s)
        for answer in answers[: len(commands)]:
            if isinstance(answer, ReplyError):
                raise errors.refused(self.address.url, str(answer))
        if wait and (short := self._shortfall(answers[-1])) is not None:
            raise short
        return answers

    def _answers(
        self,
        commands: Sequence[Sequence[Arg]],
        scripts: Sequence[Script],
        *,
        wait: bool,
        patience_s: float | None = None,
    ) -> list[Any]:
        """What the server says at last: what may pass is asked again, until the time for that is over."""
        patience_s = self.address.retry_s if patience_s is None else min(patience_s, self.address.retry_s)
        began_s: float | None = None
        # At once, the first time: a connection that nobody used for long may have been closed by the server.
        pause_s = 0.0
        sent = False  # it may have been carried out
        while True:
            why: Exception
            link: Link | None = None
            try:
                link = self._take()
                answers = self._exchange(link, commands, wait)
            except OSError as error:
                why, sent = error, sent or link is not None
            else:
                refusals = [str(answer) for answer in answers if isinstance(answer, ReplyError)]
                if scripts and any(text.startswith("NOSCRIPT") for text in refusals):
                    # It was started anew, or never saw this script. Of several the others may have been run.
                    commands = _repeated(commands) if len(commands) > 1 else commands
                    commands = [("EVAL", each.text, *sha[2:]) for each, sha in zip(scripts, commands, strict=True)]
                    continue
                passing = [text for text in refusals if text.startswith(errors.PASSING)]
                if not passing:
                    return answers
                why, sent = ReplyError(passing[0]), sent or len(commands) > 1
            now_s = self._clock.monotonic_s()
            began_s = now_s if began_s is None else began_s
            if now_s - began_s >= patience_s or self._closed:
                text = str(why)
                if isinstance(why, ReplyError):
                    raise errors.refused(self.address.url, text) from why
                raise errors.unreachable(self.address.url, _words(why), now_s - began_s, sent=sent) from why
            self._clock.sleep(min(pause_s, patience_s - (now_s - began_s)))
            pause_s = min(2 * pause_s or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            # The other connections are as old as the one that broke; and the address of a master that is none any
            # more may mean another by now.
            self.drop()
            if sent and scripts:
                commands = _repeated(commands)

    def _exchange(self, link: Link, commands: Sequence[Sequence[Arg]], wait: bool) -> list[Any]:
        self.requests += 1
        packed = pack(commands[0]) if len(commands) == 1 else b"".join(pack(each) for each in commands)
        if wait:
            packed += pack(("WAIT", self.address.wait_replicas, int(self.address.wait_s * 1000)))
        try:
            link.send(packed)
            answers = [link.receive() for _ in range(len(commands) + wait)]
        except BaseException:
            link.close()  # somebody else would read our answer
            raise
        self._give_back(link)
        return answers

    def _shortfall(self, got: Any) -> FarroError | None:
        """Of what WAIT answered."""
        if isinstance(got, ReplyError):
            return errors.refused(self.address.url, str(got))
        if got < self.address.wait_replicas:
            return errors.too_few_replicas(self.address.url, self.address.wait_replicas, got, self.address.wait_s)
        return None

    # --- connections ---

    def connect(self, timeout_s: float | None = None) -> Link:
        """A connection of the caller's own. An error of the user's (a wrong password, a server that is too old) is a
        FarroError; what may pass is an OSError."""
        waits_s = self.address.wait_s if self.address.wait_replicas else 0.0
        link = Link(self.address, timeout_s or self.address.timeout_s + waits_s)
        if not self._seen:
            try:
                self._check_version(link)
            except BaseException:
                link.close()
                raise
        return link

    def _check_version(self, link: Link) -> None:
        link.send(pack(("INFO", "server")))
        answer = link.receive()
        if isinstance(answer, ReplyError):
            text = str(answer)
            if text.startswith(errors.PASSING):
                raise ConnectionError(text)
            raise errors.refused(self.address.url, text)
        found = re.search(rb"^redis_version:(\S+)", answer, re.MULTILINE)
        version = found[1].decode("ascii", "replace") if found else "?"
        major = version.split(".")[0]
        if not major.isdigit() or int(major) < 7:
            raise errors.too_old(self.address.url, version)
        self._seen = True

    def _take(self) -> Link:
        if self._pid != os.getpid():  # a forked child: its parent's connections are not its own
            self._idle = deque()
            self._pid = os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self.connect()

    def _give_back(self, link: Link) -> None:
        if self._closed:
            link.close()
        else:
            self._idle.append(link)

    def drop(self) -> None:
        """Every connection that nobody uses."""
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def close(self) -> None:
        self._closed = True
        self.drop()


def _repeated(commands: Sequence[Sequence[Arg]]) -> list[Sequence[Arg]]:
    return [(*command[:-1], 1) for command in commands]


def _words(error: Exception) -> str:
    if isinstance(error, BlockingIOError | TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200] or type(error).__name__
