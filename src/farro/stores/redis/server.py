"""Talking to the server: one request a round trip, over connections that are kept, and the only place that tries again.

One connection lives in link; what is sent in the parts of the store; what an error means in words in trouble.

A call whose answer was lost is sent again, with the last argument of its script set to 1: each script says what it
makes of that, and none does its work twice. [test_a_lost_answer_is_asked_for_again]
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any

from farro.ports.clock import Clock
from farro.stores.redis import trouble
from farro.stores.redis.link import Address, Arg, Link, ReplyError, pack
from farro.stores.redis.scripts import Script

__all__ = ["Address", "Arg", "Link", "Server", "pack"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


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

    def run_both(self, first: tuple[Script, Sequence[Arg]], second: tuple[Script, Sequence[Arg]]) -> list[Any]:
        """Two scripts, one after the other in one round trip; not one transaction. Acknowledged by replicas."""
        commands = [self._command(script, args) for script, args in (first, second)]
        return self._ask(commands, [first[0], second[0]], waits=True)

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
            ready, _, _ = select.select([link.socket, ear], [], [], wait_s + self.address.timeout_s)
            answers = [link.receive(), link.receive()] if link.socket in ready else []
        except OSError:
            link.close()
            return None
        except BaseException:
            link.close()  # somebody else would read our answer
            raise
        if ear in ready:
            with contextlib.suppress(OSError):
                ear.recv(4096)
        if not answers:
            link.close()  # the server forgets what waits there
            return None
        self._give_back(link)
        return None if any(isinstance(answer, ReplyError) for answer in answers) else answers[1]

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
        try:
            link = self._take()
        except OSError as error:
            answers, commands = self._ask_again(commands, scripts, wait, error, sent=False, patience_s=patience_s)
        else:
            try:
                answers = self._exchange(link, commands, wait)
            except OSError as error:
                answers, commands = self._ask_again(commands, scripts, wait, error, sent=True, patience_s=patience_s)
        return self._judged(answers, commands, scripts, wait)

    def _judged(
        self, answers: list[Any], commands: Sequence[Sequence[Arg]], scripts: Sequence[Script], wait: bool
    ) -> list[Any]:
        for answer in answers[: len(commands)]:
            if isinstance(answer, ReplyError):
                return self._told(answer, commands, scripts, wait)
        if wait:
            self._check_replicas(answers[-1])
        return answers

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

    def _told(
        self, error: Exception, commands: Sequence[Sequence[Arg]], scripts: Sequence[Script], wait: bool
    ) -> list[Any]:
        """The server answered an error. Of several scripts the others may have been run."""
        text = str(error)
        if len(scripts) > 1:
            commands = _repeated(commands)
        if text.startswith("NOSCRIPT") and scripts:  # it was started anew, or never saw this script
            whole = [("EVAL", script.text, *each[2:]) for script, each in zip(scripts, commands, strict=True)]
            return self._ask(whole, scripts, waits=wait)
        if text.startswith(trouble.PASSING):
            if text.startswith("READONLY"):
                self.drop()  # this master is none any more: the address may mean another by now
            answers, commands = self._ask_again(commands, scripts, wait, error, sent=False)
            return self._judged(answers, commands, scripts, wait)
        raise trouble.refused(self.address.url, text)

    def _ask_again(
        self,
        commands: Sequence[Sequence[Arg]],
        scripts: Sequence[Script],
        wait: bool,
        why: Exception,
        *,
        sent: bool,
        patience_s: float | None = None,
    ) -> tuple[list[Any], Sequence[Sequence[Arg]]]:
        """Until the server answers, or the time for it is over. The answers, and what was asked at last."""
        # At once, the first time: a connection that nobody used for long may have been closed by the server.
        began, pause = self._clock.monotonic_s(), 0.0
        patience_s = self.address.retry_s if patience_s is None else min(patience_s, self.address.retry_s)
        while True:
            tried_s = self._clock.monotonic_s() - began
            if tried_s >= patience_s or self._closed:
                text = str(why)
                if text.startswith(trouble.PASSING):
                    raise trouble.refused(self.address.url, text) from why
                raise trouble.unreachable(self.address.url, _words(why), tried_s, sent=sent) from why
            self._clock.sleep(min(pause, patience_s - tried_s))
            pause = min(2 * pause or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            self.drop()  # the other connections are as old as the one that broke
            if sent and scripts:
                commands = _repeated(commands)
            try:
                link = self._take()
            except OSError as error:
                why = error
                continue
            try:
                answers = self._exchange(link, commands, wait)
            except OSError as error:
                why, sent = error, True
                continue
            passing = [each for each in answers if isinstance(each, ReplyError) and _passes(each)]
            if passing:
                why, sent = passing[0], sent or len(commands) > 1
                continue
            return answers, commands

    def _check_replicas(self, got: Any) -> None:
        if isinstance(got, ReplyError):
            raise trouble.refused(self.address.url, str(got))
        if got < self.address.wait_replicas:
            raise trouble.too_few_replicas(self.address.url, self.address.wait_replicas, got, self.address.wait_s)

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
            if text.startswith(trouble.PASSING):
                raise ConnectionError(text)
            raise trouble.refused(self.address.url, text)
        found = re.search(rb"^redis_version:(\S+)", answer, re.MULTILINE)
        version = found[1].decode("ascii", "replace") if found else "?"
        major = version.split(".")[0]
        if not major.isdigit() or int(major) < 7:
            raise trouble.too_old(self.address.url, version)
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


def _passes(error: Exception) -> bool:
    return str(error).startswith(trouble.PASSING)


def _repeated(commands: Sequence[Sequence[Arg]]) -> list[Sequence[Arg]]:
    return [(*command[:-1], 1) for command in commands]


def _words(error: Exception) -> str:
    if isinstance(error, BlockingIOError | TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200] or type(error).__name__
