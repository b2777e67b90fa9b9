"""`farro provider`: which providers there are, which of their accounts are paused, and resuming one."""

from __future__ import annotations

import click

from farro.cli.main import Hinting
from farro.cli.options import common, open_root, operator_name
from farro.cli.terminal import answer, say, show_table
from farro.host.clock import SystemClock
from farro.queue import accounts
from farro.queue.accounts import PausedAccount


@click.group(cls=Hinting)
def provider() -> None:
    """Show the providers, and resume a paused account.

    An account that reaches a limit is paused until the limit resets, and one that its service refuses (a wrong key, no
    credit) until a person resumes it. Its jobs wait in their queues meanwhile.
    """


@provider.command("list", short_help="List the providers, and which accounts are paused.")
@common
def list_providers(root: str | None, as_json: bool) -> None:
    """List the providers of the config: kind, model and account; whether it is paused, why and until when."""
    store, settings = open_root(root)
    paused = {one.pause.account: one for one in accounts.paused_accounts(store)}
    lines = [
        {
            "name": name,
            "kind": own.kind or name,
            "model": own.model,
            "account": settings.account_of(name),
            "paused": None if (one := paused.get(settings.account_of(name))) is None else one.to_json(),
        }
        for name, own in settings.providers.items()
    ]
    if as_json:
        answer({"providers": lines})
        return
    if not lines:
        say("no providers; `farro init --agents claude` (or codex, or gemini) adds one")
    else:
        rows = [("PROVIDER", "KIND", "MODEL", "ACCOUNT", "STATE")]
        rows += [
            (
                str(line["name"]),
                str(line["kind"]),
                str(line["model"] or "-"),
                str(line["account"]),
                _state(paused.get(str(line["account"]))),
            )
            for line in lines
        ]
        show_table(rows)
    for one in paused.values():
        say(f"{one.line} (`{one.resume_command}`)")


def _state(paused: PausedAccount | None) -> str:
    return "ready" if paused is None else str(paused.pause.kind)


@provider.command("resume", short_help="Call a paused account again, and start its jobs.")
@click.argument("name")
@common
def resume(name: str, root: str | None, as_json: bool) -> None:
    """Call a paused account again, and start the jobs that wait for it. NAME is a provider, or an account.

    If the account is still limited or refused, the first job that calls it finds that out, and it is paused again.
    """
    store, settings = open_root(root)
    account = accounts.named_account(store, settings, name)
    done = accounts.resume(store, account, by=operator_name(), clock=SystemClock())
    if as_json:
        answer({"account": done.account, "was_paused": done.was_paused, "jobs": list(done.jobs)})
        return
    was = "goes on" if done.was_paused else "was not paused"
    started = "" if not done.jobs else f"; {len(done.jobs)} {'job starts' if len(done.jobs) == 1 else 'jobs start'} now"
    say(f"account {account} {was}{started}")
