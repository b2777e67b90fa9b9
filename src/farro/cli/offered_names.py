"""Find the names of jobs that Tab offers. No job is opened, and nothing slow is imported."""

from __future__ import annotations

import os
from itertools import chain, islice

TYPE_CHECKING = False  # not imported from typing, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Iterator

OFFERED = 200  # names; a person reads no more
LOOKED_AT = 20_000  # names: Tab must not read a queue of a million
_LONGEST = 64


def job_names(root: str) -> Iterator[str]:
    """Yield the names of jobs, and the ids of unfinished jobs before the others."""
    known = chain(names(f"{root}/jobs/.names"), _folders(root))
    return (name for name in islice(known, LOOKED_AT) if _may_be_an_id(name))


def names(folder: str) -> Iterator[str]:
    """Yield what a folder holds, without hidden names; nothing where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    yield entry.name
    except OSError:
        return


def _folders(root: str) -> Iterator[str]:
    roles = [f"{root}/agents/{name}" for name in names(f"{root}/agents")]
    for role in roles:
        for agent in names(f"{role}/in-progress"):
            yield from names(f"{role}/in-progress/{agent}")
    yield from names(f"{root}/jobs/stale")
    for role in roles:
        yield from names(f"{role}/incoming")
    yield from names(f"{root}/agents/Manager/waiting")
    for role in roles:
        for ending in ("failed", "killed", "succeeded"):
            yield from names(f"{role}/completed/{ending}")


def _may_be_an_id(name: str) -> bool:
    """Return what `ids.is_job_id` does but for reserved words, without the import of `re`."""
    return (
        len(name) <= _LONGEST
        and name.isascii()
        and name[0].isalnum()
        and name.replace("-", "").replace("_", "").isalnum()
    )
