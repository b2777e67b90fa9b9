"""Keep the library of plans and actions in Redis, where every machine of the fleet sees it.

lib:plan, lib:action    hash  name → the document, canonical JSON
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from farro import documents
from farro.errors import Damaged, IdConflict
from farro.jobs import ids
from farro.store.library import Kind, kept_already
from farro.store.redis.client import RedisClient
from farro.store.redis.scripts import RedisKeys

# KEYS[1]: lib:<kind>. ARGV: name, document, 1 to replace another one. Returns 0 if another document has that name.
# Repeated after a lost answer it finds its own document and returns 1.
_PUT = """
local there = redis.call('HGET', KEYS[1], ARGV[1])
if there and there ~= ARGV[2] and ARGV[3] ~= '1' then return 0 end
if there ~= ARGV[2] then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
return 1
"""


class RedisLibrary:
    """Implement the Library port. It is used rarely, so no connection is kept between calls."""

    def __init__(self, server: RedisClient, name: str) -> None:
        self._server = server
        self._keys = RedisKeys(name)

    def put(self, kind: Kind, name: str, document: Mapping[str, Any], *, replace: bool = False) -> None:
        text = documents.canonical(document)
        if self._ask("EVAL", _PUT, 1, self._key(kind), ids.check_job_id(name), text, int(replace)) != 1:
            raise IdConflict(kept_already(kind, name))

    def get(self, kind: Kind, name: str) -> Mapping[str, Any] | None:
        text = self._ask("HGET", self._key(kind), ids.check_job_id(name))
        if text is None:
            return None
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Damaged(f"{self._key(kind)} {name} cannot be read as a {kind}: {error}") from error
        if not isinstance(data, dict):
            raise Damaged(f"{self._key(kind)} {name} is no {kind}: it must be a JSON object")
        return data

    def ids(self, kind: Kind) -> list[str]:
        found = (name.decode("utf-8", "replace") for name in self._ask("HKEYS", self._key(kind)))
        return sorted(filter(ids.is_job_id, found))

    def remove(self, kind: Kind, name: str) -> bool:
        return bool(self._ask("HDEL", self._key(kind), ids.check_job_id(name)) == 1)

    def _key(self, kind: Kind) -> str:
        return f"{self._keys.prefix}lib:{kind}"

    def _ask(self, *command: str | bytes | int) -> Any:
        try:
            return self._server.call(*command)
        finally:
            self._server.drop()
