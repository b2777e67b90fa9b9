"""Which job a person means: a whole id, or the beginning of one that no other job shares.

What a job id may look like is told by kernel.ids.
"""

from __future__ import annotations

from collections.abc import Iterable

from farro.errors import UnknownJob
from farro.kernel import ids
from farro.operations import tree
from farro.ports.store import Store

SHORTEST_TO_END = 8  # characters of a prefix that may end a job: `farro kill j` must not find the only one there is
_SHOWN = 6
_COMPARED = 5_000  # names that are compared for a near miss; more would make a typing mistake wait


def resolve(store: Store, root: str, text: str, *, shortest: int = 1) -> str:
    """The id of the job that `text` names. UnknownJob says what it may have meant, or which jobs begin like that."""
    ids.check_job_id(text)
    if store.find(text) is not None:
        return text
    return match(text, (entry.job_id for entry in tree.entries(root, store.roles(), quarantined=True)), root, shortest)


def match(text: str, known: Iterable[str], root: str, shortest: int = 1) -> str:
    """The one of `known` that begins with `text`."""
    names = set(known)
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

    near = difflib.get_close_matches(text, names, n=1, cutoff=0.75) if len(names) <= _COMPARED else []
    hint = f"did you mean {near[0]}? " if near else ""
    raise UnknownJob(f"no job {text} in {root}; {hint}`farro ls` lists what there is")
