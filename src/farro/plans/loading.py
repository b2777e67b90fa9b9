"""Loading: a document in any of the forms → a `Plan`, or all of its problems at once.

No parsing of text (`farro.documents`) and no files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from farro.documents import Document, pydantic_problems, refusal
from farro.errors import BadDocument, Problem
from farro.plans import graph
from farro.plans.forms import shape
from farro.plans.model import Plan, fields_at


def load(document: Document) -> Plan:
    """The plan in a document; raises `BadDocument` with every problem and its place, in text order."""
    shaped = shape(document.data)
    if shaped.data is None and shaped.faults:  # not a plan at all: its fields say nothing
        raise refusal(document.source, [document.problem(path, message) for path, message in shaped.faults])
    faults = [*shaped.faults, *graph.faults(shaped)]
    named = {path for path, _ in faults}
    problems = [document.problem(shaped.original(path), message, key=path[-1] == "tasks") for path, message in faults]
    plan: Plan | None = None
    try:
        plan = Plan.model_validate(shaped.data)
    except ValidationError as error:
        found = pydantic_problems(document, error, known=fields_at, original=shaped.original, skip=named)
        problems.extend(found)
    if plan is None or problems:
        raise refusal(document.source, problems)
    return plan


def load_data(data: Any, source: str) -> Plan:
    """The plan in data that was parsed before, as from a job's prompt; problems have paths but no lines."""
    return load(Document(data, source))


def load_many(documents: Iterable[Document], source: str) -> list[Plan]:
    """A plan for each document (the lines of an NDJSON file), or the problems of all of them at once."""
    plans: list[Plan] = []
    problems: list[Problem] = []
    for document in documents:
        try:
            plans.append(load(document))
        except BadDocument as bad:
            problems += bad.problems
    if problems:
        raise refusal(source, problems)
    return plans
