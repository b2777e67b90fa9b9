"""The library in files: `library/plans/<id>.json` and `library/actions/<id>.json`, each as it was submitted.

People may read and lint these files and keep them under version control.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from farro import documents
from farro.errors import Damaged, IdConflict
from farro.host import fs, leases
from farro.jobs import ids
from farro.store.library import Kind, kept_already

FOLDER = "library"
_PLACES = {"plan": f"{FOLDER}/plans", "action": f"{FOLDER}/actions"}
_LOCK = f"{FOLDER}/.lock"
_LIMIT = 16 << 20
_ENDING = ".json"


class FilesLibrary:
    """The Library port over a root."""

    def __init__(self, root: str, *, durable: bool) -> None:
        self._root = root
        self._durable = durable

    def put(self, kind: Kind, name: str, document: Mapping[str, Any], *, replace: bool = False) -> None:
        path = self._path(kind, name)
        with self._locked(kind):
            there = self.get(kind, name)
            if there is not None and documents.canonical(there) == documents.canonical(document):
                return
            if there is not None and not replace:
                raise IdConflict(kept_already(kind, name))
            text = json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False)
            fs.write_atomic(path, text.encode("utf-8", "surrogatepass") + b"\n", sync=self._durable)
            if self._durable:
                fs.sync_all([f"{self._root}/{_PLACES[kind]}"])

    def get(self, kind: Kind, name: str) -> Mapping[str, Any] | None:
        path = self._path(kind, name)
        try:
            data = json.loads(fs.read_bytes(path, _LIMIT))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise Damaged(f"{path} cannot be read as a {kind}: {error}") from error
        if not isinstance(data, dict):
            raise Damaged(f"{path} is not a {kind}: it must be a JSON object")
        return data

    def ids(self, kind: Kind) -> list[str]:
        try:
            names = fs.listdir(f"{self._root}/{_PLACES[kind]}")
        except FileNotFoundError:
            return []
        found = (name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING))
        return sorted(filter(ids.is_job_id, found))

    def remove(self, kind: Kind, name: str) -> bool:
        with self._locked(kind):
            try:
                fs.unlink(self._path(kind, name))
            except FileNotFoundError:
                return False
            return True

    def _path(self, kind: Kind, name: str) -> str:
        return f"{self._root}/{_PLACES[kind]}/{ids.check_job_id(name)}{_ENDING}"

    @contextlib.contextmanager
    def _locked(self, kind: Kind) -> Iterator[None]:
        """Hold the lock for changes: of two callers that want one name for different plans, one gets it."""
        for folder in (FOLDER, _PLACES[kind]):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(f"{self._root}/{folder}")
        with leases.exclusively(f"{self._root}/{_LOCK}"):
            yield
