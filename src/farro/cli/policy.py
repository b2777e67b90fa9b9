"""`farro policy lock`: write policy.lock.json, or compare it."""

from __future__ import annotations

import click

from farro.cli.groups import Hinting
from farro.cli.options import application, common, read_root
from farro.cli.terminal import answer, say
from farro.doctor import policy_lock
from farro.errors import InputError


@click.group(cls=Hinting)
def policy() -> None:
    """Pin the policies of jobs in one file."""


@policy.command(short_help="Write policy.lock.json, or check it.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when the file is out of date.")
@common
def lock(check: bool, root: str | None, as_json: bool) -> int:
    """Write policy.lock.json: the pinned parameters, the version and hash of every policy, the hashes of the schemas.

    Deterministic: keep it in git, and a change of policy shows up in review.
    """
    path, settings = read_root(root)
    now = application().policy_lock(path, settings)
    try:
        written = policy_lock.read(path)
    except InputError:
        if check:
            raise
        written = None  # it is replaced
    found = None if written is None else policy_lock.compare(written, now)
    if check:
        if as_json:
            differences = [{"path": item.path, "locked": item.wanted, "found": item.found} for item in found or ()]
            answer({"file": policy_lock.FILE, "locked": written is not None, "differences": differences})
        elif found is None:
            say(f"there is no {policy_lock.FILE}; write it with: farro policy lock")
        elif found:
            say("\n".join(map(str, found)))
        else:
            say(f"{policy_lock.FILE} is up to date")
        return 0 if found == [] else 1
    changed = policy_lock.write(path, now)
    if as_json:
        answer({"file": policy_lock.FILE, "changed": changed, "lock": now})
    else:
        say(f"{policy_lock.FILE} {'written' if changed else 'is up to date'}")
        for item in found or ():
            say(f"  {item}")
    return 0
