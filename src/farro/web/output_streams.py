"""What a job's steps say, as they say it: Server-Sent Events of one job's output, to its end; and all of it, to be
saved.

Finding and reading the files is operations.logs; changes of all jobs are `events`.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from farro.errors import FarroError
from farro.jobs.envelope import Lifecycle
from farro.queue import logs
from farro.queue.logs import LogFollower
from farro.web import errors, job_queries, output, query_parameters
from farro.web.events import BEAT, Hub, Stream, event
from farro.web.output import FollowQuery, SaidQuery
from farro.web.request_handling import Pool
from farro.web.state import House

LOOK_S = 0.25  # output that grows tells nobody
QUIET_S = 2.0  # … and of a job that says nothing so often
MOST = 200  # followers at once
TURN_BYTES = 1 << 20  # of one look


class Followers:
    """How many follow, and what they follow with."""

    def __init__(self, house: House, pool: Pool, hub: Hub) -> None:
        self._house = house
        self._pool = pool
        self._hub = hub
        self._count = 0

    async def follow(self, request: Request) -> Response:
        try:
            query: FollowQuery = query_parameters.read(FollowQuery, request.query_params)
            self._check_count()
            follower, begin = await self._pool.run(lambda: self._open(request.path_params["job"], query))
        except FarroError as error:
            return errors.response(error)
        self._count += 1
        return Stream(self._said(follower, begin), done=self._left)

    async def whole(self, request: Request) -> Response:
        """All that was said so far, as bytes to be saved: however much, it is in nobody's memory."""
        try:
            query: SaidQuery = query_parameters.read(SaidQuery, request.query_params)
            self._check_count()
            view = await self._pool.run(lambda: job_queries.found(self._house, request.path_params["job"]))
            house = self._house
            blocks = await self._pool.run(lambda: logs.whole(house.store, house.root, view.job_id, query.chosen))
        except FarroError as error:
            return errors.response(error)
        self._count += 1
        plain = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in view.job_id)
        headers = {"Content-Disposition": f'attachment; filename="{plain}.log"', "Content-Security-Policy": "sandbox"}
        return Stream(self._blocks(blocks), done=self._left, kind="application/octet-stream", headers=headers)

    async def _blocks(self, blocks: Iterator[bytes]) -> AsyncIterator[bytes]:
        while not self._hub.closed and (block := await self._pool.run(lambda: next(blocks, b""))):
            yield block

    def _check_count(self) -> None:
        if self._count >= MOST:
            raise errors.Wrong(503, "busy", f"{MOST} logs are followed already")

    def _left(self) -> None:
        self._count -= 1

    def _open(self, job: str, query: FollowQuery) -> tuple[LogFollower, dict[str, Any]]:
        """Who follows, and what is told first: the attempt, and what lies before the lines that come."""
        view = job_queries.found(self._house, job)
        told = logs.output(self._house.store, self._house.root, view.job_id, query.chosen)
        follower = LogFollower(self._house.store, self._house.root, view.job_id, query.chosen)
        earlier = None
        if query.tail is not None:
            begin = logs.last_lines(told.sources, query.tail, output.LOG_BYTES)
            follower.skip_to(begin)
            earlier = output.earlier_data(begin)
        return follower, {"attempt": told.attempt, "earlier": earlier}

    async def _said(self, follower: LogFollower, begin: dict[str, Any]) -> AsyncIterator[bytes]:
        state: dict[str, Any] | None = None
        halves: dict[tuple[int, str | None, str], codecs.IncrementalDecoder] = {}
        yield b"retry: 1000\n\n" + event("begin", begin)
        quiet_s = 0.0
        pause_s = LOOK_S
        while not self._hub.closed:
            try:
                life, pieces, more = await self._pool.run(lambda: _look(follower))
            except (FarroError, OSError) as error:
                away = errors.Wrong(503, "storage_trouble", str(error)) if isinstance(error, OSError) else error
                yield event("trouble", {"error": errors.told(away)})
                return
            now = _state(life)
            if now != state:
                state = now
                yield event("state", state)
            for piece in pieces:
                yield _told(piece, halves)
            if life.terminal and not more:
                yield event("end", state)
                return
            if more:
                continue
            if pieces:  # a step that talks without a pause is listened to at intervals: each look costs the same
                quiet_s, pause_s = 0.0, LOOK_S
            quiet_s += pause_s
            if quiet_s > QUIET_S:
                pause_s = min(2 * pause_s, 1.0)
                quiet_s = 0.0
                yield BEAT
            await asyncio.sleep(pause_s)


def _look(follower: LogFollower) -> tuple[Lifecycle, list[logs.Piece], bool]:
    """What came since the last look, at most so much: a reader of gigabytes is given them bit by bit."""
    life, pieces = follower.run_once()
    found: list[logs.Piece] = []
    size = 0
    for piece in pieces:
        found.append(piece)
        size += len(piece.data)
        if size >= TURN_BYTES:
            return life, found, True
    return life, found, False


def _state(life: Lifecycle) -> dict[str, Any]:
    return {"job_id": life.job_id, "status": life.status, "attempt": life.attempt, "terminal": life.terminal}


def _told(piece: logs.Piece, halves: dict[tuple[int, str | None, str], codecs.IncrementalDecoder]) -> bytes:
    """Text; a character that is not whole yet waits for its rest, and bytes that are none are told in base64."""
    source = piece.source
    who = (source.attempt, source.step, source.stream)
    decoder = halves.setdefault(who, codecs.getincrementaldecoder("utf-8")())
    head = {"attempt": source.attempt, "step": source.step, "stream": source.stream}
    kept = decoder.getstate()[0]
    try:
        return event("output", {**head, "text": decoder.decode(piece.data)})
    except UnicodeDecodeError:
        decoder.reset()
        return event("output", {**head, **output.text_or_base64(kept + piece.data)})
