"""The documents: links lead somewhere, decision records are whole, commands that are named exist.

Examples inside the documents are run by tests/flows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import ROOT

HEAD = [path for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md") if (path := Path(ROOT, name)).is_file()]
DOCUMENTS = [*HEAD, *sorted(Path(ROOT, "docs").rglob("*.md"))]
RECORDS = sorted(Path(ROOT, "docs", "decisions").glob("*.md"))

FENCE = re.compile(r"^(```+|~~~+)[^\n]*\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
REFERENCE = re.compile(r"^\[[^\]]+\]:\s*<?(\S+?)>?\s*$", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
MAKE = re.compile(r"(?<![\w-])make ([a-z][a-z-]*)")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def links(path: Path) -> Iterator[str]:
    prose = SPAN.sub("", FENCE.sub("", path.read_text(encoding="utf-8")))
    yield from LINK.findall(prose)
    yield from REFERENCE.findall(prose)


def anchors(path: Path) -> set[str]:
    """The ids that a rendered page gives its headings: lower case, punctuation dropped, spaces to dashes."""
    headings = HEADING.findall(FENCE.sub("", path.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", Path(ROOT, "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links_lead_to_files_that_exist(document: Path) -> None:
    dead = []
    for link in links(document):
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (document.parent / file).resolve() if file else document
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(link)
    assert not dead, f"{named(document)}: dead links"


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_make_targets_that_are_named_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    code = [re.sub(r"#.*", "", block) for _, block in FENCE.findall(text)] + SPAN.findall(FENCE.sub("", text))
    unknown = {target for piece in code for target in MAKE.findall(piece)} - targets()
    assert not unknown, f"{named(document)} names make targets that do not exist"


@pytest.mark.parametrize("record", RECORDS, ids=named)
def test_every_decision_has_context_decision_rejected_and_consequence(record: Path) -> None:
    assert re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", record.name), "a record is called NNNN-short-name.md"
    first_words = [heading.split()[0].rstrip("s") for heading in HEADING.findall(record.read_text(encoding="utf-8"))]
    assert [word for word in ("Context", "Decision", "Rejected", "Consequence") if word not in first_words] == []


def test_decision_numbers_are_not_used_twice() -> None:
    numbers = [record.name[:4] for record in RECORDS]
    assert sorted(set(numbers)) == sorted(numbers)
