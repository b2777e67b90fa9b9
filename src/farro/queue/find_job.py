"""Which job a person means: a whole id, a name, or the beginning of an id that no other job shares; in this order.
And which roles.

What a job id may look like is told by kernel.ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from farro.errors import UnknownJob, UnknownRole
from farro.jobs import ids
from farro.queue import tree
from farro.store.port import Store

SHORTEST_TO_END = 8  # characters of a prefix that may end a job: `farro kill j` must not find the only one there is
_SHOWN = 6
_COMPARED = 5_000  # names that are compared for a near miss; more would make a typing mistake wait


def resolve(
    store: Store, root: str, text: str, *, shortest: int = 1, known: Callable[[], Collection[str]] | None = None
) -> str:
    """The id of the job that `text` names. UnknownJob says what it may have meant, or which jobs begin like that.
    `known`: the ids of all jobs, of somebody who has them at hand; else the store is gone through, where it has to be.
    """
    ids.check_job_id(text)
    if store.find(text) is not None:
        return text
    if (named := store.named(text)) is not None:
        return named
    if ids.is_minted(text):  # nothing begins with it: a script that asks for a pruned job waits for no look at all
        return match(text, (), root, shortest, store.names)
    return match(text, _candidates(store, text) if known is None else known(), root, shortest, store.names)


def _candidates(store: Store, text: str) -> Iterable[str]:
    """The ids among which the meant one may be: of those that farro did not mint there is a list, however long the
    history is."""
    if tree.in_folders(store) and not ids.may_begin_minted(text):
        return tree.chosen(store)
    return (entry.job_id for entry in tree.entries(store, quarantined=True))


def by_name(store: Store, root: str, text: str) -> str:
    """The same where a name is asked for: a name comes first, before an id that is spelled alike."""
    return store.named(ids.check_job_name(text)) or resolve(store, root, text)


def roles(store: Store, asked: Collection[str]) -> list[str]:
    """Those that are asked for, or all, in the store's own order. UnknownRole: one of them is not here."""
    known = list(store.roles())
    for role in asked:
        if role not in known:
            raise UnknownRole(f"no role {role} here; there is {', '.join(sorted(known))}")
    return [role for role in known if not asked or role in asked]


def match(
    text: str,
    known: Iterable[str],
    root: str,
    shortest: int = 1,
    job_names: Callable[[], Iterable[str]] = tuple,
) -> str:
    """The one of `known` that begins with `text`. `job_names` are looked at for a near miss alone."""
    names = set(known) - {text}  # whole, it was not found: an id may outlive a folder that somebody removed
    found = sorted(name for name in names if name.startswith(text))
    if len(found) > 1:
        listed = "\n".join(f"  {name}" for name in found[:_SHOWN])
        more = f"\n  and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise UnknownJob(f"{len(found)} jobs begin with {text}; write more of the one you mean:\n{listed}{more}")
    if found and len(text) >= shortest:
        return found[0]
    if found:
        raise UnknownJob(
            f"no job {text} in {root}; {found[0]} begins like that, but this wants its id, or at least {shortest} "
            "characters of it"
        )
    import difflib  # here: only a mistake pays for it

    near = difflib.get_close_matches(text, job_names(), n=1, cutoff=0.6)
    near = near or (difflib.get_close_matches(text, names, n=1, cutoff=0.75) if len(names) <= _COMPARED else [])
    hint = f"did you mean {near[0]}? " if near else ""
    raise UnknownJob(f"no job {text} in {root}; {hint}`farro ls` lists what there is")
