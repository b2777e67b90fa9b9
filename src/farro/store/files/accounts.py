"""The pauses of accounts in one file, `jobs/.accounts/paused.json`: account → its record.

It is replaced as a whole under a lock, so a crash leaves the old file or the new one. An unreadable file counts as no
pause: the next call finds the limit again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

from farro.host import fs, leases
from farro.host.clock import Clock
from farro.jobs.retry import Uniform
from farro.store.accounts import StoredAccounts, this_boot

FOLDER = "jobs/.accounts"
_LIMIT = 1 << 20


class FilesAccounts(StoredAccounts):
    """The Accounts port over a root."""

    def __init__(
        self, root: str, clock: Clock, *, uniform: Uniform, durable: bool = True, boot_id: str | None = None
    ) -> None:
        self.clock = clock
        self.uniform = uniform
        self.boot_id = this_boot() if boot_id is None else boot_id
        self._folder = f"{root}/{FOLDER}"
        self._file = f"{self._folder}/paused.json"
        self._durable = durable

    def load(self) -> Mapping[str, str]:
        try:
            data = json.loads(fs.read_bytes(self._file, _LIMIT))
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        return data if isinstance(data, dict) and all(isinstance(text, str) for text in data.values()) else {}

    def swap(self, account: str, before: str | None, after: str | None) -> bool:
        with contextlib.suppress(FileExistsError):
            fs.mkdir(self._folder)
        with leases.exclusively(f"{self._folder}/.lock"):
            records = dict(self.load())
            if records.pop(account, None) != before:
                return False
            if after is not None:
                records[account] = after
            for name in fs.listdir(self._folder):
                if name.startswith(fs.TEMPORARY):  # of a process that died
                    fs.unlink(f"{self._folder}/{name}")
            text = json.dumps(records, ensure_ascii=False, indent=1)
            fs.write_atomic(self._file, text.encode("utf-8", "surrogatepass"), sync=self._durable)
            if self._durable:
                fs.sync_all([self._folder])
        return True
