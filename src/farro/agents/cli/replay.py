"""`farro replay`: run an agent job again with its recorded answers."""

from __future__ import annotations

import click

from farro.agents.replay import replay_job
from farro.cli.options import common, open_root
from farro.cli.terminal import answer, say
from farro.config import reader
from farro.host.clock import SystemClock
from farro.queue import find_job


@click.command()
@click.argument("job")
@common
def replay(job: str, root: str | None, as_json: bool) -> int:
    """Run an agent job again from its snapshots, with the answers that were recorded: no tokens, nothing is written.

    The same prompt, policies and answers give the same result (exit 0), or it is said where they differ (exit 1).
    JOB is an id, a name, or the beginning of an id that no other job shares.
    """
    store, _ = open_root(root)
    job_id = find_job.resolve(store, store.root, job)
    done = replay_job(store, store.root, job_id, settings_of=reader.load, clock=SystemClock())
    same = all(one.same for one in done)
    if as_json:
        attempts = [{name: getattr(one, name) for name in one.__slots__} for one in done]
        answer({"job_id": job_id, "same": same, "attempts": attempts})
        return 0 if same else 1
    for one in done:
        calls = "1 recorded answer" if one.calls == 1 else f"{one.calls} recorded answers"
        say(f"attempt {one.attempt}  {one.role}  {calls}: {'the same result' if one.same else 'it differs'}")
        if one.difference:
            say("\n".join(f"  {line}" for line in one.difference.splitlines()))
    return 0 if same else 1
