"""Define the answer of each role: one JSON object of the role's own shape.

Also reads the answer from the text of a provider, renders it as the Markdown of result.md, and words the instructions
that tell a provider which form is expected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, assert_never

from farro.documents import Limits, parse_json, shapes
from farro.documents.constraints import AnyCase, Bounds, Prose, Size
from farro.errors import BadDocument, Problem
from farro.lazy_dataclass import dataclass, field
from farro.roles import paths
from farro.roles.names import Role
from farro.roles.paths import AllowedPath
from farro.roles.prompt import MAX_RUBRIC, MAX_SUCCESS, AllowedPaths, PromptRouting

MAX_BYTES = 4 << 20
_LIMITS = Limits(size=MAX_BYTES, nodes=20_000)
_MAX_STARTS = 64  # braces in prose that are tried as the start of the answer; each costs a pass over the rest

LongText = Annotated[str, Prose(200_000)]
Verdict = Annotated[Literal["approve", "changes_requested"], AnyCase()]
Severity = Annotated[Literal["blocker", "major", "minor", "note"], AnyCase()]


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptDraft:
    """A prompt that an Architect proposes. It becomes a job when a person or auto-plan accepts it."""

    role: Role
    rubric: Annotated[str, Prose(MAX_RUBRIC)]
    allowed_paths: AllowedPaths
    success: Annotated[str, Prose(MAX_SUCCESS)]
    routing: PromptRouting = field(default_factory=lambda: PromptRouting(mode="manager"))
    inputs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """The answer of an Architect."""

    analysis: LongText
    prompts: Annotated[tuple[PromptDraft, ...], Size(at_most=50)] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeChange:
    """The answer of an engineer."""

    summary: LongText
    patch: str | None = None  # a unified diff, unless the agent changed the files itself
    tests: str | None = None  # which tests were run, and their result


@dataclass(frozen=True, kw_only=True, slots=True)
class ReviewFinding:
    """One finding of a review."""

    message: LongText
    path: AllowedPath | None = None
    line: Annotated[int, Bounds(at_least=1)] | None = None
    severity: Severity | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Review:
    """The answer of a CodeReviewer."""

    verdict: Verdict
    findings: Annotated[tuple[ReviewFinding, ...], Size(at_most=1000)] = ()
    summary: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenDocument:
    """A document of a DocWriter."""

    path: AllowedPath
    text: str | None = None  # None: the agent wrote the file itself


@dataclass(frozen=True, kw_only=True, slots=True)
class Documents:
    """The answer of a DocWriter."""

    summary: LongText
    documents: Annotated[tuple[WrittenDocument, ...], Size(at_most=200)] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FreeText:
    """The answer of every other role: its text, unchanged."""

    text: str


RoleAnswer = Analysis | CodeChange | Review | Documents | FreeText

_SHAPES: Mapping[str, type[Analysis | CodeChange | Review | Documents]] = {
    "Architect": Analysis,
    "SeniorEngineer": CodeChange,
    "JuniorEngineer": CodeChange,
    "CodeReviewer": Review,
    "DocWriter": Documents,
}


def shape_of(role: str) -> type[Analysis | CodeChange | Review | Documents] | None:
    """Return the dataclass of a role's answer; None means free text."""
    return _SHAPES.get(role)


# The texts of problems are part of a repair request. `farro replay` compares requests, so a new wording makes recorded
# jobs differ.
def read(role: str, text: str) -> RoleAnswer | list[Problem]:
    """Read the answer from a provider's text, or return the problems, worded for the agent that has to repair it.

    The whole text is the object, or the last ```json block is, or an object in the prose: the last that fits, and only
    if nothing after it may be meant as the answer. A reviewer quotes what it reviews: a quoted approval must not
    replace a verdict that was cut off or has an unknown field.
    """
    shape = shape_of(role)
    # For every role: a longer text would be cut when it is read again, and the half would pass for the whole.
    if (size := len(text.encode("utf-8", "surrogatepass"))) > MAX_BYTES:
        return [Problem(path="", message=f"the answer has {size} bytes; at most {MAX_BYTES} are read")]
    if shape is None:
        return FreeText(text=text) if text.strip() else [Problem(path="", message="the answer is empty")]
    first: list[Problem] | None = None
    meant: list[Problem] | None = None  # problems of the object that begins last
    begun = _last_begun(shape, text)
    for start, end in objects(text):
        problems, answer = _fitting(shape, text[start:end])
        if answer is not None:
            return answer if begun < end else meant or [Problem(path="", message=_SEVERAL)]
        first = first or problems
        meant = meant or (problems if start <= begun < end else None)
    return (
        meant or first or [Problem(path="", message="there is no JSON object in the answer; answer with exactly one")]
    )


def _fitting(shape: type[Any], text: str) -> tuple[list[Problem], RoleAnswer | None]:
    """Check one text against the shape; return its problems, or the answer."""
    try:
        document = parse_json(text.encode("utf-8", "surrogatepass"), source="answer", limits=_LIMITS)
    except BadDocument as bad:
        return bad.problems, None
    checked = shapes.check(shape, document.data)
    problems = [document.problem(fault.path, fault.message, key=fault.key) for fault in checked.faults]
    if checked.value is not None and not problems:
        problems = [document.problem(path, message) for path, message in _faults(checked.value)]
    return problems, checked.value if not problems else None


def _faults(answer: RoleAnswer) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Check what the shapes cannot express."""
    if isinstance(answer, Review) and answer.verdict == "changes_requested" and not answer.findings:
        yield ("findings",), "must have at least one where changes are requested: say which"
    if isinstance(answer, Documents):
        for index, document in enumerate(answer.documents):
            if message := paths.fault(document.path, allow_absolute=True):
                yield ("documents", index, "path"), message
    if isinstance(answer, Analysis):
        for index, draft in enumerate(answer.prompts):
            at = ("prompts", index)
            for place, path in enumerate(draft.allowed_paths):
                if message := paths.fault(path, allow_absolute=True):
                    yield (*at, "allowed_paths", place), message
            if (draft.routing.mode == "role") != (draft.routing.next is not None):
                yield (*at, "routing", "next"), "is there exactly when the mode is role"


def objects(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each text that may be the JSON object, the likeliest first."""
    bare = text.strip()
    if bare.startswith("{"):
        yield 0, len(text)
    fences = [fence for fence in _fences(text) if text[fence[1] : fence[2]].lstrip().startswith("{")]
    yield from ((start, end) for word, start, end in reversed(fences) if word == "json")
    yield from ((start, end) for word, start, end in reversed(fences) if word != "json")
    yield from reversed(list(_in_prose(text)))


def _last_begun(shape: type[Any], text: str) -> int:
    """Return where the last object begins that may be meant as the answer, readable or not; -1 if there is none.

    Such an object is recognised by the first field of the shape, which is required.
    """
    name = next(iter(shape.__dataclass_fields__))
    return max((found.start() for found in re.finditer(rf"[\"']{name}[\"']\s*:", text)), default=-1)


_SEVERAL = "there is more than one object that may be meant; answer with exactly one"


def _fences(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the contents of fenced blocks, each with the word after its opening fence.

    Works line by line: a regular expression over the whole text would be quadratic in unclosed fences.
    """
    fence, word = "", ""
    at = start = 0
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        if not fence:
            if opening := _OPENING.match(bare):
                fence, word, start = opening[1], opening[2].lower(), at + len(line)
        elif bare.startswith(fence) and not bare.strip(fence[0]):
            yield word, start, at
            fence = ""
        at += len(line)


_OPENING = re.compile(r"(`{3,}|~{3,})\s*([A-Za-z0-9_-]*)")


def _in_prose(text: str) -> Iterator[tuple[int, int]]:
    """Yield the JSON objects that stand in prose."""
    decoder = json.JSONDecoder()
    start = text.find("{")
    for _ in range(_MAX_STARTS):
        if start < 0:
            return
        try:
            _, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            yield start, end
        start = text.find("{", end)


_FORMS = {
    Analysis: """{"analysis": "what the task needs, and why so (Markdown)",
 "prompts": [{"role": "SeniorEngineer", "rubric": "what to do and how it is judged", "allowed_paths": ["src/"],
   "success": "when it is done", "routing": {"mode": "role", "next": "CodeReviewer"}}]}
`prompts` holds one item for each piece of work that another role shall do, in order; it may be empty. `routing` may be
left out: then the manager decides.""",
    CodeChange: """{"summary": "what was changed, and why so (Markdown)",
 "patch": "a unified diff, paths relative to the root of the repository", "tests": "what was run, and what came of it"}
`patch` is left out when you changed the files yourself; `tests` when nothing was run.""",
    Review: """{"verdict": "approve" or "changes_requested", "summary": "the judgement in a sentence or two",
 "findings": [{"message": "what is wrong and what would be right", "path": "src/a.py", "line": 12,
   "severity": "blocker", "major", "minor" or "note"}]}
Of a finding only `message` is required. `changes_requested` needs at least one finding.""",
    Documents: """{"summary": "what was written, and for whom",
 "documents": [{"path": "docs/a.md", "text": "the whole of the document"}]}
`text` is left out for a file that you wrote yourself.""",
}


def instructions(role: str) -> str:
    """Describe the form of the answer for a provider."""
    shape = shape_of(role)
    if shape is None:
        return "Answer in Markdown."
    return f"Answer with exactly one JSON object, and no other field than these:\n\n{_FORMS[shape]}\n"


def markdown(role: str, answer: RoleAnswer) -> str:
    """Render the answer of a role as Markdown with a headline."""
    match answer:
        case Analysis():
            parts = [f"# {role}: analysis", answer.analysis]
            for number, draft in enumerate(answer.prompts, start=1):
                onward = draft.routing.next or "Manager"
                parts += [
                    f"## {number}. {draft.role}",
                    draft.rubric,
                    f"- Done when: {_line(draft.success)}\n- May write: {', '.join(map(_code, draft.allowed_paths))}\n"
                    f"- Then: {onward}",
                ]
        case CodeChange():
            parts = [f"# {role}: change", answer.summary]
            if answer.tests:
                parts += ["## Tests", answer.tests]
            if answer.patch:
                parts += ["## Patch", _fenced(answer.patch, "diff")]
        case Review():
            verdict = "approved" if answer.verdict == "approve" else "changes requested"
            parts = [f"# {role}: {verdict}", *([answer.summary] if answer.summary else [])]
            if answer.findings:
                parts += ["## Findings", "\n".join(map(_finding, answer.findings))]
        case Documents():
            parts = [f"# {role}: documents", answer.summary]
            for document in answer.documents:
                parts.append(f"## {_code(document.path)}")
                parts.append("Written in place." if document.text is None else _fenced(document.text, "markdown"))
        case FreeText():
            parts = [answer.text]
        case _:
            assert_never(answer)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _finding(finding: ReviewFinding) -> str:
    place = "" if finding.path is None else finding.path if finding.line is None else f"{finding.path}:{finding.line}"
    head = " ".join(
        part for part in (f"**{finding.severity}**" if finding.severity else "", place and _code(place)) if part
    )
    message = finding.message.strip().replace("\n", "\n  ")
    return f"- {head}: {message}" if head else f"- {message}"


def _line(text: str) -> str:
    return " ".join(text.split())


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"


def _fenced(text: str, word: str) -> str:
    """Fence a text with more backticks than any fence in it has."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{word}\n{text.rstrip(chr(10))}\n{fence}"
