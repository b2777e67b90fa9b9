"""`farro requeue`, `kill`, `force-complete`, `retry`: decide about jobs by hand.

Of several jobs one that refuses does not stop the others.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from farro.cli.options import common, gate, open_job, open_root, operator_name
from farro.cli.submit_options import named_jobs
from farro.cli.terminal import answer, complain, say
from farro.cli.terminal import note as say_aside
from farro.errors import FarroError
from farro.host.clock import SystemClock
from farro.jobs.envelope import Lifecycle
from farro.jobs.ids import IdMint
from farro.jobs.states import Status
from farro.queue import find_job, jobs
from farro.queue import retry as retrying
from farro.queue.jobs import JobQuery
from farro.queue.retry import RetriedJob
from farro.store.port import Store

T = TypeVar("T")


def resolve_all(store: Store, jobs: Sequence[str], *, shortest: int = 1) -> list[str]:
    """Resolve all names first, each id once, so that a typing error changes nothing."""
    return list(dict.fromkeys(find_job.resolve(store, job, shortest=shortest) for job in jobs))


def act_on_each(
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


@click.command()
@click.argument("named", nargs=-1, required=True, metavar="JOB...")
@click.option("--note", metavar="TEXT", help="The reason; kept in the job's history.")
@common
def requeue(named: tuple[str, ...], note: str | None, root: str | None, as_json: bool) -> int:
    """Put a stale job, or a failed one that is not final, back into its queue; or several.

    With several jobs, an error of one is printed and the others go on; the exit code is the highest.
    """
    store, _ = open_root(root)
    return act_on_each(
        resolve_all(store, named),
        lambda job_id: jobs.requeue(store, job_id, by=operator_name(), note=note),
        tell=_tell,
        data=Lifecycle.to_data,
        as_json=as_json,
    )


_ENDABLE = (Status.QUEUED, Status.IN_PROGRESS, Status.STALE, Status.FAILED)


@click.command()
@click.argument("named", nargs=-1, metavar="[JOB...]")
@click.option("--note", metavar="TEXT", help="The reason; kept in the job's history.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([str(status) for status in _ENDABLE]),
    help="Instead of JOBs: all of this status; repeatable.",
)
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="Instead of JOBs: all of this role; repeatable.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before killing all of a status or role.")
@common
def kill(
    named: tuple[str, ...],
    note: str | None,
    statuses: tuple[str, ...],
    roles: tuple[str, ...],
    yes: bool,
    root: str | None,
    as_json: bool,
) -> int:
    """Kill a job, or several. Their processes end within two seconds. A finished job stays as it is, and its status is
    printed.

    JOB is an id, a name, or at least eight characters of the beginning of an id that no other job shares. `--status
    queued --role Runner` kills all that match now; it asks first.
    """
    if bool(named) == bool(statuses or roles):
        raise click.UsageError("name the jobs to kill, or choose them with --status and --role")
    store, _ = open_root(root)
    if named:
        job_ids = resolve_all(store, named, shortest=find_job.SHORTEST_TO_END)
    else:
        job_ids = _chosen(store, roles, [Status.parse(status) for status in statuses])
        if not job_ids or not _agreed(job_ids, statuses, roles, yes):
            if as_json:
                answer({"jobs": [], "refused": []})
            elif not job_ids:
                say("no jobs like that")
            return 1 if job_ids else 0
    return act_on_each(
        job_ids,
        lambda job_id: jobs.kill(store, job_id, by=operator_name(), note=note),
        tell=lambda life: _tell(life, "" if life.status is Status.KILLED else " already"),
        data=Lifecycle.to_data,
        as_json=as_json,
        code=lambda life: 0 if life.status is Status.KILLED else 3,
    )


def _chosen(store: Store, roles: tuple[str, ...], statuses: list[Status]) -> list[str]:
    found = jobs.ls(store, JobQuery(roles=roles, statuses=statuses or _ENDABLE))
    return [view.job_id for view in found if not view.lifecycle.terminal]


def _agreed(job_ids: list[str], statuses: tuple[str, ...], roles: tuple[str, ...], yes: bool) -> bool:
    if yes:
        return True
    which = " ".join([*(f"--status {status}" for status in statuses), *(f"--role {role}" for role in roles)])
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(
            f"{which} would kill {_count(job_ids)}, and there is no terminal to ask at; confirm with --yes"
        )
    if click.confirm(f"End {_count(job_ids)} ({which})?", err=True):
        return True
    say_aside("nothing was changed")
    return False


def _count(job_ids: list[str]) -> str:
    return f"{len(job_ids)} job{'s' if len(job_ids) != 1 else ''}"


@click.command(name="force-complete")
@click.argument("job")
@click.option("--note", metavar="TEXT", help="The reason; kept in the job's history.")
@common
def force_complete(job: str, note: str | None, root: str | None, as_json: bool) -> None:
    """Declare a job succeeded, whatever its attempts came to."""
    store, job_id = open_job(root, job)
    lifecycle = jobs.force_complete(store, job_id, by=operator_name(), note=note)
    answer(lifecycle.to_data()) if as_json else _tell(lifecycle)


def _tell(lifecycle: Lifecycle, word: str = "") -> None:
    say(f"{lifecycle.job_id} is {lifecycle.status}{word}")


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--from", "from_step", metavar="STEP", help="Run this step and the steps after it again.")
@click.option("--from-start", is_flag=True, help="Run every step again.")
@click.option("--after", multiple=True, metavar="JOB", help="Run after that job, instead of those it ran after before.")
@click.option("--no-after", is_flag=True, help="Do not wait again for the jobs that it ran after.")
@click.option("--with-dependents", is_flag=True, help="Also the jobs that were killed because it did not succeed.")
@click.option("--force", is_flag=True, help="Queue it beyond a cap, if the config permits it to you.")
@common
def retry(
    jobs: tuple[str, ...],
    from_step: str | None,
    from_start: bool,
    after: tuple[str, ...],
    no_after: bool,
    with_dependents: bool,
    force: bool,
    root: str | None,
    as_json: bool,
) -> int:
    """Run a finished job again, or several, and print the new jobs' ids. Steps that succeeded are not repeated.

    The finished job stays as it is; the new one names it. JOB is an id, or the beginning of one that no other job
    shares. A job that was killed because one that it ran after did not succeed needs another to run after, or none;
    with --with-dependents that other one brings it along.
    """
    if from_step is not None and from_start:
        raise click.UsageError("--from names a step, --from-start means the first; give one of them.")
    if after and no_after:
        raise click.UsageError("--after names a job, --no-after means none; give one of them.")
    if from_step is not None and len(jobs) > 1:
        raise click.UsageError("--from names a step of one job; retry the others apart.")
    if with_dependents and (after or no_after):
        raise click.UsageError(
            "with --with-dependents each job runs after the same jobs as before; leave out --after and --no-after"
        )
    store, settings = open_root(root)
    job_ids = resolve_all(store, jobs)
    how: dict[str, Any] = {
        "from_step": from_step,
        "from_start": from_start,
        "durable": settings.durability == "power",
        "gate": gate(settings, force),
    }
    waits = resolve_all(store, named_jobs("--after", after)) if after else [] if no_after else None

    def again(job_id: str) -> list[RetriedJob]:
        if with_dependents:
            return retrying.with_dependents(store, job_id, mint=_mint(), **how)
        return [retrying.retry(store, job_id, after=waits, **how)]

    return act_on_each(
        job_ids, again, tell=_tell_retried, data=lambda made: _data(made, with_dependents), as_json=as_json
    )


def _mint() -> Callable[[], str]:
    return IdMint(SystemClock().now, random.SystemRandom().getrandbits).mint


def _data(made: list[RetriedJob], with_dependents: bool) -> dict[str, Any]:
    first, *others = made
    told: dict[str, Any] = {"job_id": first.job_id, "retry_of": first.retry_of, "kept_steps": list(first.kept)}
    if with_dependents:
        told["dependents"] = [{"job_id": one.job_id, "retry_of": one.retry_of} for one in others]
    return told


def _tell_retried(made: list[RetriedJob]) -> None:
    say("\n".join(one.job_id for one in made))
    for one in made[1:]:
        say_aside(f"{one.job_id} is {one.retry_of} again, and runs after the new one of what it ran after")
    kept = made[0].kept
    if kept:
        steps = ", ".join(kept[:8]) + (f" and {len(kept) - 8} more" if len(kept) > 8 else "")
        say_aside(f"not run again: {steps} (--from-start runs all)")
