"""Load a plan from a parsed document in any input form, or report all of its problems at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from farro.documents import Document, refusal, shapes
from farro.documents.shapes import Fault
from farro.errors import BadDocument, Problem
from farro.plans import graph
from farro.plans.forms import Shaped, shape
from farro.plans.model import Plan


def load(document: Document) -> Plan:
    """Load the plan in a document. Raise `BadDocument` with every problem and its place, in text order."""
    return read(document)[0]


def read(document: Document) -> tuple[Plan, Shaped]:
    """Load the plan, with the mapping from its paths to those of the text."""
    shaped = shape(document.data)
    if shaped.data is None and shaped.faults:  # not a plan at all; its fields do not matter
        raise refusal(document.source, [document.problem(path, message) for path, message in shaped.faults])
    checked = shapes.check(Plan, shaped.data)
    faults = [*shaped.faults, *graph.faults(shaped)]
    if checked.value is not None and not checked.faults and not faults:
        return checked.value, shaped
    said = {path for path, _ in faults}  # reported already, in better words
    problems = [document.problem(shaped.original(path), message, key=path[-1] == "tasks") for path, message in faults]
    problems += [
        document.problem(shaped.original(fault.path), _advised(fault, shaped), key=fault.key)
        for fault in checked.faults
        if fault.path not in said
    ]
    raise refusal(document.source, problems)


def _advised(fault: Fault, shaped: Shaped) -> str:
    from farro.plans.advice import advised  # imported late: most plans are valid

    return advised(fault, shaped)


def load_data(data: Any, source: str) -> Plan:
    """Load the plan in parsed data, such as a job's prompt; problems have paths but no lines."""
    return load(Document(data, source))


def load_many(documents: Iterable[Document], source: str) -> list[Plan]:
    """Load a plan from each document (the lines of an NDJSON file), or raise the problems of all of them."""
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
