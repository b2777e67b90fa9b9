"""`farro doctor`: report what is wrong with a root and its machine, with the commands that repair it."""

from __future__ import annotations

import os
import sys

import click

from farro.cli.options import application, asked_store, common
from farro.cli.tables import table
from farro.cli.terminal import answer, draws, say
from farro.config import reader
from farro.doctor import report as operations
from farro.doctor.checks import counted
from farro.doctor.report import CheckResult, Examination
from farro.errors import NotARoot

_LABELS = {"ok": "ok", "warning": "warning", "failed": "failed"}
_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}
FINISHED = 20_000


@click.command()
@click.option("--strict", is_flag=True, help="Fail on warnings too.")
@click.option(
    "--conformance",
    is_flag=True,
    help="Also compare with policy.lock.json and SPEC-1's profile, and print its checklist.",
)
@click.option("--all", "whole", is_flag=True, help=f"Open every finished job, not only {FINISHED:,} of them.")
@common
def doctor(strict: bool, conformance: bool, whole: bool, root: str | None, as_json: bool) -> int:
    """Check the root, its config, filesystem, log, jobs, and what agents need; print the commands that repair it.

    Changes nothing. Exit code 0: all is well, warnings aside; 1: something failed (with --strict: or warned).
    """
    path = reader.find_root(root, own=True)
    opened = None if whole else FINISHED
    checks = application().checks(path, finished=opened, conformance=conformance, store=asked_store())
    told = operations.examine(checks, strict=strict, root=path, named=not _found_by_itself(path))
    items = operations.checklist(told) if conformance else None
    if as_json:
        document = {
            "root": path,
            "strict": strict,
            "passed": told.passed,
            "checks": [result.to_json() for result in told.results],
        }
        answer(document if items is None else {**document, "checklist": items})
        return 0 if told.passed else 1
    _show(told)
    if items is not None:
        say("\nConformance checklist (STRICT-MVP v1.0)")
        for item in items:
            open_ones = f"  (see {', '.join(item['open'][:6])})" if item["open"] else ""
            say(f"[{'x' if item['done'] else ' '}] {item['item']}{open_ones}")
    say(f"\n{_summary(told, path)}")
    return 0 if told.passed else 1


def _found_by_itself(path: str) -> bool:
    """Tell whether commands typed here find this root without --root."""
    try:
        return reader.find_root(None, own=True) == path
    except NotARoot:
        return False


def _show(told: Examination) -> None:
    rows = [(_LABELS[result.finding.verdict], result.id, result.finding.found) for result in told.results]
    for line, row in zip(table(rows).splitlines(), rows, strict=True):
        _say(line, row[0])
    for result in told.troubles():
        _explain(result)


def _explain(result: CheckResult) -> None:
    found = result.finding
    say()
    _say(f"{found.verdict}: {result.id}: {found.found}", found.verdict)
    for line in found.details:
        say(f"  {line}")
    say(f"  why:    {found.cause}")
    for number, line in enumerate(found.repair):
        say(f"  {'repair:' if number == 0 else '       '} {line}")


def _say(line: str, verdict: str) -> None:
    """Print the first word in colour, where the terminal has colours."""
    word, rest = line[: len(verdict)], line[len(verdict) :]
    if draws(sys.stdout) and not os.environ.get("NO_COLOR"):
        click.echo(click.style(word, fg=_COLOURS[verdict]), nl=False)
        say(rest)
    else:
        say(line)


def _summary(told: Examination, path: str) -> str:
    counts = f"{told.count('ok')} ok, {counted(told.count('warning'), 'warning')}, {told.count('failed')} failed"
    verdict = "is well" if told.passed else "needs care"
    how = " by strict rules" if told.strict else ""
    return f"{path} {verdict}{how}: {counts}"
