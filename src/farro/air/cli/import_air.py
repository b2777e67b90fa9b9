"""`farro import-air`: take over the jobs of an Air-Executor. What it does lives in operations.air_import."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from farro.cli.options import common, gate, open_root
from farro.cli.tables import show_table
from farro.cli.terminal import answer, say
from farro.config.reader import ConfigError
from farro.errors import BadDocument

_WORDS = {"nothing": "nothing to do", "already": "nothing to do"}


@click.command("import-air")
@click.argument("folder", metavar="DIR")
@click.option("--dry-run", is_flag=True, help="Only say what would be imported.")
@click.option("--failed", is_flag=True, help="Queue failed jobs too, from their failed tasks on.")
@common
def import_air(folder: str, dry_run: bool, failed: bool, root: str | None, as_json: bool) -> int:
    """Take over the jobs of an Air-Executor: DIR is its .air-executor folder, or the folder that this is in.

    Tasks that are completed are not run again; what is left of each job is queued under its name. DIR is not changed,
    and importing it again imports nothing twice. A job that cannot be read is told, and the others are imported: exit
    code 1 then.
    """
    from farro.air import import_jobs
    from farro.host.process_identity import started_at_s

    store, settings = open_root(root)
    try:
        told = import_jobs.import_air(
            store,
            store.root,
            folder,
            runners=settings.runners,
            started_at_s=started_at_s,
            failed=failed,
            dry_run=dry_run,
            gate=gate(settings, False),
        )
    except BadDocument as error:
        raise ConfigError(error.source, error.problems) from error
    code = 0 if told.whole else 1
    if as_json:
        jobs = [asdict(job) for job in told.jobs]
        answer({"folder": told.folder, "dry_run": dry_run, "jobs": jobs, "config": told.config})
        return code
    if not told.jobs:
        say(f"no jobs in {told.folder}")
        return code
    would = "would be imported" if dry_run else "imported"
    rows = [("JOB", "RESULT", "")]
    rows += [
        (
            job.name,
            would if job.action == "imported" else _WORDS.get(job.action, job.action),
            job.message.replace("\n", "; "),
        )
        for job in told.jobs
    ]
    show_table(rows)
    if told.config:
        say("its config.yaml says otherwise than this root; to keep it, put this under `runners` in the config:")
        say(f"  {json.dumps(told.config)}")
    return code
