"""Resolve what a user typed to a job: a whole id, a name, or a unique prefix of an id, in this order. Check roles."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from farro.errors import UnknownJob, UnknownRole
from farro.jobs import ids
from farro.store.port import JobView, Store

T = TypeVar("T")

SHORTEST_TO_END = 8  # shortest prefix for commands that end a job: `farro kill j` must not match the only job
_SHOWN = 6
_COMPARED = 5_000  # most ids compared for a near miss; more would make a typing error slow


def resolve(store: Store, text: str, *, shortest: int = 1, known: Callable[[], Collection[str]] | None = None) -> str:
    """Return the id of the job that `text` names.

    UnknownJob suggests what may have been meant, or lists the jobs that begin like that. `known` returns the ids of all
    jobs, if the caller has them; else the store is searched where necessary.
    """
    ids.check_job_id(text)
    if store.find(text) is not None:
        return text
    if (named := store.named(text)) is not None:
        return named
    if ids.is_minted(text):  # it is not a prefix of another id: a script that asks for a pruned job needs no search
        return match(text, (), store.root, shortest, store.names)
    return match(text, store.ids(text) if known is None else known(), store.root, shortest, store.names)


def find_view(store: Store, job_id: str) -> JobView:
    """Return the job of that id. UnknownJob: there is none."""
    view = store.find(job_id)
    if view is None:
        raise UnknownJob(f"no job {job_id} in {store.root}; `farro ls` lists what there is")
    return view


def read_folder(store: Store, job_id: str, read: Callable[[JobView, str], T]) -> T:
    """Call `read` with a job and its folder, and again where the folder was moved meanwhile, which raises
    FileNotFoundError. UnknownJob: there is no such job."""
    for _ in range(4):
        view = find_view(store, job_id)
        with contextlib.suppress(FileNotFoundError):
            return read(view, store.folder(view))
    raise UnknownJob(f"{job_id} moves faster than it can be read; try again")


def by_name(store: Store, text: str) -> str:
    """Resolve a name: it comes before an id that is spelled alike."""
    return store.named(ids.check_job_name(text)) or resolve(store, text)


def roles(store: Store, asked: Collection[str]) -> list[str]:
    """Return the roles asked for, or all, in the store's order. UnknownRole: one of them does not exist."""
    known = list(store.roles())
    for role in asked:
        if role not in known:
            raise UnknownRole(f"no role {role} here; known: {', '.join(sorted(known))}")
    return [role for role in known if not asked or role in asked]


def match(
    text: str,
    known: Iterable[str],
    root: str,
    shortest: int = 1,
    job_names: Callable[[], Iterable[str]] = tuple,
) -> str:
    """Return the one id of `known` that begins with `text`. `job_names` is only used to suggest a near miss."""
    names = set(known) - {
        text
    }  # the whole id was not found: its register entry may outlive a folder that was removed by hand
    found = sorted(name for name in names if name.startswith(text))
    if len(found) > 1:
        listed = "\n".join(f"  {name}" for name in found[:_SHOWN])
        more = f"\n  and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise UnknownJob(f"{len(found)} jobs begin with {text}; write more of the one you mean:\n{listed}{more}")
    if found and len(text) >= shortest:
        return found[0]
    if found:
        raise UnknownJob(
            f"no job {text} in {root}; {found[0]} begins like that, but this command needs its id, or at least "
            f"{shortest} characters of it"
        )
    import difflib  # here: only needed for a typing error

    near = difflib.get_close_matches(text, job_names(), n=1, cutoff=0.6)
    near = near or (difflib.get_close_matches(text, names, n=1, cutoff=0.75) if len(names) <= _COMPARED else [])
    hint = f"did you mean {near[0]}? " if near else ""
    raise UnknownJob(f"no job {text} in {root}; {hint}`farro ls` lists what there is")
