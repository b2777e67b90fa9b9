"""`farro enqueue`: reads plans from files or standard input. Checking and queueing live in operations.submit."""

from __future__ import annotations

import sys

import click

from farro import documents
from farro.cli.options import common, gate, open_root
from farro.cli.terminal import answer, say
from farro.documents import Document
from farro.errors import InputError
from farro.operations import submit
from farro.system import fs

MANY_LIMIT = 256 << 20


@click.command()
@click.option("--plan", "plan_file", metavar="FILE", help="A plan in JSON or YAML; - reads standard input (JSON).")
@click.option("--many", metavar="FILE.ndjson", help="A JSON plan a line; - reads standard input.")
@click.option(
    "--id", "job_id", metavar="ID", help="The job's id, chosen by you. The same id and plan again: the same job."
)
@click.option("--role", metavar="ROLE", help="The queue; else the plan's `role`, else Runner.")
@click.option("--force", is_flag=True, help="Queue it though a cap is reached, if the config permits it to you.")
@click.argument("source", required=False)
@common
def enqueue(
    plan_file: str | None,
    many: str | None,
    job_id: str | None,
    role: str | None,
    force: bool,
    source: str | None,
    root: str | None,
    as_json: bool,
) -> None:
    """Queue plans and print their ids, one a line. Everything is checked before anything is queued.

    SOURCE is a plan file, or - for standard input; the same as --plan.
    """
    given = [name for name in (plan_file, many, source) if name is not None]
    if len(given) != 1:
        raise click.UsageError("name one thing to queue: --plan FILE, --many FILE.ndjson, or - for standard input")
    store, settings = open_root(root)
    found = _read_many(many) if many is not None else [_read_plan(given[0])]
    ids = submit.enqueue(store, found, role=role, job_id=job_id, source=_name(given[0]), gate=gate(settings, force))
    if as_json:
        answer({"jobs": ids})
    else:
        say("\n".join(ids))


def _read_plan(path: str) -> Document:
    return documents.parse(_bytes(path, documents.DEFAULT.size), _name(path))


def _read_many(path: str) -> list[Document]:
    found = documents.parse_ndjson(_bytes(path, MANY_LIMIT), _name(path))
    if not found:
        raise InputError(f"{_name(path)}: no plan in it; --many wants one JSON plan a line")
    return found


def _name(path: str) -> str:
    return "<stdin>" if path == "-" else path


def _bytes(path: str, limit: int) -> bytes:
    """The whole of a file or of standard input, which is never read much beyond the limit."""
    try:
        data = _stdin(limit) if path == "-" else fs.read_regular(path, limit)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{_name(path)}: cannot be read: {why}") from error
    if len(data) > limit:
        raise InputError(f"{_name(path)}: is larger than {limit} bytes, and no more than that is read")
    return data


def _stdin(limit: int) -> bytes:
    if sys.stdin is None:
        raise InputError("<stdin>: is closed; name a file, or pipe a plan in")
    return sys.stdin.buffer.read(limit + 1)
