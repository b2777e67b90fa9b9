"""Apply a command to several jobs, as in `farro kill a b c`: a job that refuses does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from farro.cli.terminal import answer, complain
from farro.errors import FarroError
from farro.queue import find_job
from farro.store.port import Store

T = TypeVar("T")


def meant(store: Store, jobs: Sequence[str], *, shortest: int = 1) -> list[str]:
    """Resolve all names first, each id once, so that a typing error changes nothing."""
    return list(dict.fromkeys(find_job.resolve(store, job, shortest=shortest) for job in jobs))


def each(
    job_ids: Sequence[str],
    act: Callable[[str], T],
    *,
    tell: Callable[[T], None],
    data: Callable[[T], dict[str, Any]],
    as_json: bool,
    code: Callable[[T], int] = lambda told: 0,
) -> int:
    """Return the highest exit code. With JSON the answer for one job is its object, for several a list."""
    if len(job_ids) == 1:
        told = act(job_ids[0])
        answer(data(told)) if as_json else tell(told)
        return code(told)
    done: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    worst = 0
    for job_id in job_ids:
        try:
            told = act(job_id)
        except FarroError as error:
            complain(str(error))
            refused.append({"job_id": job_id, "message": str(error)})
            worst = max(worst, error.exit_code)
            continue
        done.append(data(told))
        if not as_json:
            tell(told)
        worst = max(worst, code(told))
    if as_json:
        answer({"jobs": done, "refused": refused})
    return worst
