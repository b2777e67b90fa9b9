"""Check the documents: links lead somewhere, decision records are complete, commands that are named exist.

The tests in tests/flows run the examples inside the documents.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from house import named_tests
from support import ROOT

HEADS = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
HEAD = [path for name in HEADS if (path := Path(ROOT, name)).is_file()]
DOCUMENTS = [*HEAD, *sorted(Path(ROOT, "docs").rglob("*.md"))]
INDEX = Path(ROOT, "docs", "decisions", "README.md")
RECORDS = sorted(path for path in INDEX.parent.glob("*.md") if path != INDEX)

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
    """Return the anchors of a page's headings: lower case, without punctuation, dashes for spaces."""
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
def test_every_decision_has_its_sections_in_order(record: Path) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+\.md", record.name), "a record is named for what it decides, in words"
    headings = HEADING.findall(record.read_text(encoding="utf-8"))
    assert headings[1:] == ["Context", "Decision", "Rejected", "Consequence", "Tests"]


@pytest.mark.parametrize("record", RECORDS, ids=named)
def test_every_decision_names_tests_that_run(record: Path) -> None:
    shown = record.read_text(encoding="utf-8").rpartition("## Tests")[2]
    names = named_tests.NAME.findall(shown)
    assert names or "`make lint`" in shown, "names neither a test nor a check of `make lint`"
    assert not (wrong := named_tests.problems(names)), wrong


def test_the_index_lists_every_decision_once() -> None:
    listed = LINK.findall(INDEX.read_text(encoding="utf-8"))
    assert sorted(link for link in listed if "/" not in link) == sorted(record.name for record in RECORDS)


def cited(pattern: str) -> dict[str, str]:
    """Return each citation that the code makes, and one file that makes it. `pattern` has one group."""
    folders = [Path(ROOT, name) for name in ("src", "tests", "scripts", "examples")]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    found = {text: named(path) for path in files for text in re.findall(pattern, path.read_text(encoding="utf-8"))}
    assert found, f"the code cites nothing like {pattern}: is it wrong?"
    return found


def test_decisions_that_the_code_names_exist() -> None:
    there = {record.name for record in RECORDS}
    assert {
        name: path for name, path in cited(r"docs/decisions/([a-z0-9][\w.-]*\w)").items() if name not in there
    } == {}


def test_sections_of_the_design_that_the_code_cites_exist() -> None:
    text = Path(ROOT, "docs", "design.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^#{2,3} (\d+(?:\.\d+)?)\b", text, re.MULTILINE))
    assert {
        section: path for section, path in cited(r"DESIGN §(\d+(?:\.\d+)?)").items() if section not in sections
    } == {}
    assert set(re.findall(r"^- \*\*(R\d) ", text, re.MULTILINE)) == {f"R{number}" for number in range(1, 8)}


def test_the_design_names_every_library_that_users_install() -> None:
    project = tomllib.loads(Path(ROOT, "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: wanted for name, wanted in project["optional-dependencies"].items() if name not in ("all", "dev")}
    libraries = Path(ROOT, "docs", "design.md").read_text(encoding="utf-8").partition("## 14. Libraries")[2]
    for extra, wanted in {"base": project["dependencies"], **extras}.items():
        row = re.search(rf"^\| `?{extra}`? \|.*$", libraries, re.MULTILINE)
        assert row, f"docs/design.md §14 has no row for {extra}"
        names = [re.split(r"[\[<>=~; ]", requirement)[0] for requirement in wanted]
        assert [name for name in names if name not in row[0]] == [], f"docs/design.md §14: {extra}"


def test_rows_of_reliability_that_the_code_cites_exist() -> None:
    text = Path(ROOT, "docs", "reliability.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| (\d+) \|", text, re.MULTILINE))
    found = cited(r"RELIABILITY (\d[\d, and-]*)")
    missing = {text: path for text, path in found.items() if not rows.issuperset(re.findall(r"\d+", text))}
    assert missing == {}


def test_the_glossary_defines_each_word_once_in_order() -> None:
    text = Path(ROOT, "docs", "glossary.md").read_text(encoding="utf-8")
    words = [word.removesuffix(" (planned)") for word in re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE)][1:]
    assert len(words) > 50
    assert words == sorted(set(words), key=str.casefold)
