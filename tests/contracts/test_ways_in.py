"""The contract of submitting over every way in: the command line, the Python API, HTTP, MCP and AGQ.

The same input gives the same id, finds the same existing job, and is refused with the same content.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.ways_in import WAYS, Asked, House, Told, opened
from farro.execution.progress import read_prompt
from farro.queue import jobs
from farro.store.port import Submission

STEP = {"step_number": 1, "tool": "unix", "command": "true", "args": []}
PROMPT: dict[str, Any] = {
    "role": "SeniorEngineer",
    "rubric": "Make the change.",
    "allowed_paths": ["src/"],
    "success": "It is made.",
    "routing": {"mode": "manager"},
}
YEAR_S = 365 * 86_400

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with opened(tmp_path_factory.mktemp("ways") / "root") as made:
        yield made


def new_id() -> str:
    return f"chosen-{next(_numbers)}"


def plan(**more: Any) -> dict[str, Any]:
    return {"id": new_id(), "plan_id": "p", "steps": [STEP], **more}


def prompt_of(house: House, job_id: str) -> dict[str, Any]:
    view = house.store.find(job_id)
    assert view is not None
    return dict(read_prompt(house.store.folder(view)))


def ways(asked: Asked, *, but: tuple[str, ...] = ()) -> list[str]:
    """Return the ways that can express an input."""
    return [name for name, way in WAYS.items() if asked.needs <= way.expresses and name not in but]


def same(text: str) -> str:
    """Remove from a refusal what a way adds to it: its own names, its prefixes, its line breaks."""
    text = re.sub(r"--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), text)
    text = re.sub(r"\b(delay|timeout)_s\b", r"\1", text)
    return " ".join(text.replace("tags:", "tag:").split())


# --- refusals ----------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Asked, str]] = {
    "a bad id": (Asked(plan=plan(id="../x")), "id: is not an id; it must match"),
    "a chosen bad id": (Asked(command=["true"], options={"id": "a b"}), "id: 'a b' is not a job id"),
    "an unknown role": (Asked(command=["true"], options={"role": "Nobody"}), "role: no role Nobody here; known: "),
    "commands for the manager": (
        Asked(plan=plan(), options={"role": "Manager"}),
        "decides where agents' jobs go next, and runs no commands",
    ),
    "a role told twice": (
        Asked(plan=plan(role="Architect"), options={"role": "Runner"}),
        "role: is Architect, but {role} says Runner; keep one of them",
    ),
    "an id told twice": (
        Asked(plan=plan(id="one"), options={"id": "two"}),
        "id: is one, but id says two; keep one of them",
    ),
    "a bad tag": (Asked(command=["true"], options={"tags": ["a b"]}), "tag: 'a b' is not a tag"),
    "a priority of the plan": (
        Asked(plan=plan(metadata={"priority": "P9"})),
        'metadata.priority: "P9" is not a priority; choose one of P0, P1, P2, P3',
    ),
    "a priority told twice": (
        Asked(plan=plan(metadata={"priority": "P0"}), options={"priority": "P1"}),
        "metadata.priority: is P0, but priority says P1; keep one of them",
    ),
    "a negative delay": (Asked(command=["true"], options={"delay": -1}), "negative"),
    "a delay of more than ten years": (
        Asked(command=["true"], options={"delay": 10 * YEAR_S + 1}),
        "must not be negative, and at most ten years",
    ),
    "a delay and a time": (
        Asked(command=["true"], options={"delay": 1, "at": "tomorrow"}),
        "delay and at both set the start time; keep one of them",
    ),
    "a time in the past": (
        Asked(command=["true"], options={"at": "2020-01-01T00:00Z"}),
        "at: '2020-01-01T00:00Z' is in the past; name a later time",
    ),
    "a time of more than ten years": (
        Asked(command=["true"], options={"at": "2099-01-01T00:00Z"}),
        "at: 2099-01-01T00:00Z is more than ten years ahead; name an earlier time",
    ),
    "a timeout of nothing": (
        Asked(command=["true"], options={"timeout": 0}),
        "timeout: 0 must be positive and at most a year",
    ),
    "a timeout of more than a year": (
        Asked(command=["true"], options={"timeout": YEAR_S + 1}),
        "must be positive and at most a year",
    ),
    "a folder that is none": (Asked(command=["true"], options={"cwd": "/no/such"}), "cwd: /no/such is not a folder"),
    "a bad variable": (
        Asked(command=["true"], options={"env": {"1x": "y"}}),
        "env: '1x' is not the name of a variable",
    ),
    "an empty command": (Asked(command=[" "]), "command: its first word is the program, and must not be empty"),
    "an unknown job to run after": (Asked(plan=plan(), options={"after": ["nowhere"]}), "no job nowhere"),
    "an unknown job in the plan": (
        Asked(plan=plan(metadata={"after_any": ["nowhere"]})),
        "metadata.after_any[0]: no job nowhere",
    ),
    "itself to run after": (
        Asked(plan=plan(id="me"), options={"after": ["me"]}),
        "me cannot run after itself",
    ),
    "no job id to run after": (
        Asked(plan=plan(metadata={"after": ["../x"]})),
        'metadata.after[0]: "../x" is not a job id',
    ),
    "an unknown field": (Asked(plan=plan(nmae="x")), "nmae: is not a known field; did you mean name?"),
    "a step of an unknown agent": (
        Asked(plan=plan(steps=[{**STEP, "tool": "agent", "command": "Nobody", "args": ["do it"]}])),
        "steps[0].command: ",
    ),
    "paths outside": (Asked(plan=plan(allowed_paths=["../x"])), 'allowed_paths[0]: "../x" leads out'),
    "input that does not come along": (
        Asked(plan=plan(input="data")),
        "input: names a file that comes with the job, but none can be attached this way",
    ),
    "more than a mebibyte": (Asked(plan=plan(metadata={"x": "y" * (1 << 20)})), "1048576"),
    "two plans of one id": (
        Asked(plans=[plan(id="twice"), plan(id="twice", name="other")]),
        "has another plan of this id; choose another",
    ),
    "one id for several plans": (
        Asked(plans=[{"steps": [STEP]}, {"steps": [STEP]}], options={"id": "several"}),
        "id names one job, and there are several plans; give each plan its own `id`",
    ),
    "a bad plan among good ones": (
        Asked(plans=[plan(), plan(nmae="x")]),
        "nmae: is not a known field; did you mean name?",
    ),
    "a prompt without its rules": (Asked(prompt={**PROMPT, "rubric": ""}), "rubric: "),
    "a prompt for an unknown role": (Asked(prompt={**PROMPT, "role": "Nobody"}), "Nobody"),
    "a task that is not there": (Asked(prompt=PROMPT, options={"task": "none"}), "task: there is no "),
    "a bad task": (Asked(prompt=PROMPT, options={"task": "../../etc"}), "task: ../../etc: is not in "),
    "an attachment without a prompt": (
        Asked(command=["true"], options={"task": "t"}),
        "task belongs to an agent prompt",
    ),
    "a file beside a prompt without a folder": (
        Asked(prompt={**PROMPT, "context_md": "prompt.md"}),
        "context_md: names a file, but files cannot be attached this way",
    ),
}
# What a way cannot be asked, though it has the form: an AGQ client has no options beside the document, and names the
# role by the queue; an MCP client writes no prompt of its own, and its tool for commands has no tasks.
NOT_ASKED: dict[str, tuple[str, ...]] = {
    "an id told twice": ("agq",),
    "one id for several plans": ("python", "agq"),
    "a priority told twice": ("agq",),
    "a prompt for an unknown role": ("agq",),
    "a file beside a prompt without a folder": ("mcp",),
    "an attachment without a prompt": ("mcp",),
}
CASES = [(case, way) for case, (asked, _) in REFUSED.items() for way in ways(asked, but=NOT_ASKED.get(case, ()))]


@pytest.mark.parametrize(("case", "way"), CASES)
def test_every_way_refuses_with_the_same_content(house: House, case: str, way: str) -> None:
    asked, said = REFUSED[case]
    told = house.ways[way].submit(asked)
    assert told.refusal is not None, told
    assert said.format(role="the queue" if way == "agq" else "role") in same(told.refusal)


def test_every_refusal_is_asked_of_more_than_one_way() -> None:
    alone = {case for case in REFUSED if sum(one == case for one, _ in CASES) < 2}
    assert not alone
    assert {way for _, way in CASES} == set(WAYS)


@pytest.mark.parametrize("way", ["cli", "python", "http", "mcp"])
def test_every_way_names_the_priorities_that_there_are(house: House, way: str) -> None:
    refusal = house.ways[way].submit(Asked(command=["true"], options={"priority": "P9"})).refusal
    assert refusal is not None
    assert all(name in refusal for name in ("priority", "P0", "P1", "P2", "P3"))


# --- accepted ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_chosen_id_is_one_job_however_often_it_is_submitted(house: House, way: str) -> None:
    asked = Asked(plan=plan())
    first, second = house.ways[way].submit(asked), house.ways[way].submit(asked)
    assert asked.plan is not None
    assert first == Told(ids=(asked.plan["id"],), new=1)
    assert second.ids == first.ids
    assert second.existed
    other = house.ways[way].submit(Asked(plan={**asked.plan, "name": "other"}))
    assert other.refusal is not None
    assert f"{asked.plan['id']} was submitted before with other content" in other.refusal


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(WAYS, 2)))
def test_a_job_of_one_way_exists_for_every_other(house: House, first: str, second: str) -> None:
    earlier = house.ways["python"].submit(Asked(plan=plan())).ids[0]
    options = {"id": new_id(), "tags": ["gpu", "big"], "priority": "P1", "after": [earlier]}
    asked = Asked(plan=plan(id=options["id"]), options=options)
    made, found = house.ways[first].submit(asked), house.ways[second].submit(asked)
    assert made == Told(ids=(options["id"],), new=1)
    assert found.ids == made.ids, found
    assert found.existed
    metadata = {"tags": ["gpu", "big"], "priority": "P1", "after": [earlier]}
    assert prompt_of(house, made.ids[0])["metadata"] == metadata


@pytest.mark.parametrize("way", ["cli", "python", "http", "mcp"])
def test_a_command_with_its_options_is_the_same_job_everywhere(house: House, way: str) -> None:
    (house.root / "sub").mkdir(exist_ok=True)
    options = {"id": "same-command", "timeout": 60, "cwd": str(house.root / "sub"), "env": {"A": "b"}, "tags": ["t"]}
    told = house.ways[way].submit(Asked(command=["make", "test"], options=options))
    assert told.ids == ("same-command",), told
    step = prompt_of(house, "same-command")["steps"][0]
    assert (step["timeout"], step["cwd"], step["env"]) == (60, str(house.root / "sub"), {"A": "b"})


@pytest.mark.parametrize("way", ["cli", "python", "http", "mcp"])
@pytest.mark.parametrize(("delay", "waits"), [(0, False), (3600, True), (10 * YEAR_S, True)])
def test_a_delay_of_nothing_means_now(house: House, way: str, delay: int, waits: bool) -> None:
    told = house.ways[way].submit(Asked(command=["true"], options={"delay": delay}))
    view = house.store.find(told.ids[0])
    assert view is not None
    assert (view.lifecycle.not_before is not None) == waits


@pytest.mark.parametrize("way", WAYS)
def test_a_resubmission_finds_its_job_after_its_dependency_was_pruned(house: House, way: str, tmp_path: Path) -> None:
    earlier = house.ways["python"].submit(Asked(plan=plan())).ids[0]
    asked = Asked(plan=plan(), options={"after_any": [earlier]})
    assert asked.plan is not None
    asked = Asked(plan=asked.plan, options={"id": asked.plan["id"], **asked.options})
    made = house.ways[way].submit(asked)
    assert made.new == 1, made
    jobs.kill(house.store, earlier, by="tester", note=None)
    prune(house)
    assert house.store.find(earlier) is None
    again = house.ways[way].submit(asked)
    assert again.ids == made.ids, again
    assert again.existed


def prune(house: House) -> None:
    done = house.ways["cli"]._program.call("prune", "--status", "killed", "--keep", "0")  # type: ignore[attr-defined]
    assert done.code == 0, done.err


@pytest.mark.parametrize("way", ["cli", "python", "http", "mcp"])
@pytest.mark.parametrize("kind", ["name", "beginning"])
def test_a_job_to_run_after_may_be_named_or_abbreviated(house: House, way: str, kind: str) -> None:
    number = next(_numbers)
    name, submission = (
        f"nightly-{number}",
        Submission(role="Runner", prompt={"steps": [STEP]}, job_id=f"u{number}-long"),
    )
    whole = house.store.enqueue_named(name, submission)
    text = name if kind == "name" else f"u{number}-l"
    told = house.ways[way].submit(Asked(command=["true"], options={"after": [text]}))
    assert prompt_of(house, told.ids[0])["metadata"]["after"] == [whole]


@pytest.mark.parametrize("way", WAYS)
def test_a_full_queue_refuses_new_jobs_and_finds_existing_ones(house: House, way: str) -> None:
    first = Asked(plan=plan(id="fills-the-queue"), options={"role": "DocWriter"})
    assert house.ways[way].submit(first).ids == ("fills-the-queue",)
    told = house.ways[way].submit(Asked(plan=plan(), options={"role": "DocWriter"}))
    assert told.refusal is not None
    assert "no room for 1 more job: DocWriter has 1 of at most 1 jobs queued or in progress" in told.refusal
    assert "raise `capacity.roles.DocWriter` in the config" in told.refusal
    assert house.ways[way].submit(first).existed


@pytest.mark.parametrize("way", ["cli", "python", "http", "agq"])
def test_several_plans_are_queued_in_their_order(house: House, way: str) -> None:
    first, second = plan(), plan()
    second["metadata"] = {"after": [first["id"]]}
    told = house.ways[way].submit(Asked(plans=[first, second]))
    assert told == Told(ids=(first["id"], second["id"]), new=2)


@pytest.mark.parametrize("way", WAYS)
def test_an_agent_prompt_is_the_same_job_everywhere(house: House, way: str) -> None:
    options: dict[str, Any] = {"tags": ["t"]}
    if way != "agq":  # a prompt has no id in it
        options["id"] = "same-prompt"
    told = house.ways[way].submit(Asked(prompt=PROMPT, options=options))
    assert told.ids == ("same-prompt",) or (way == "agq" and told.new == 1), told
    assert prompt_of(house, told.ids[0]) == {**PROMPT, "metadata": {"tags": ["t"]}}


@pytest.mark.parametrize("way", ["cli", "http", "mcp"])
def test_a_task_of_a_prompt_is_attached_and_marked_as_started(house: House, way: str) -> None:
    task = {
        "id": f"T-{way}",
        "title": "A task",
        "success": "It is done.",
        "workflow": [{"role": "SeniorEngineer", "rubric": "Do it."}],
        "allowed_paths": ["src/"],
    }
    (house.root / "tasks" / f"T-{way}.json").write_text(json.dumps(task))
    told = house.ways[way].submit(Asked(prompt=PROMPT, options={"task": f"T-{way}"}))
    assert told.new == 1, told
    assert prompt_of(house, told.ids[0])["inputs"] == {"task_id": f"T-{way}"}
    assert (house.root / "jobs" / ".tasks" / f"T-{way}").is_symlink()


@pytest.mark.parametrize("way", ["cli", "http"])
def test_a_narrative_of_a_prompt_becomes_its_prompt_md(house: House, way: str) -> None:
    (house.root / "story.md").write_text("Once upon a time")
    given = {"context_md": str(house.root / "story.md")} if way == "cli" else {"narrative": "Once upon a time"}
    told = house.ways[way].submit(Asked(prompt=PROMPT, options={"id": "with-narrative", **given}))
    assert told.ids == ("with-narrative",), told
    view = house.store.find("with-narrative")
    assert view is not None
    assert Path(house.store.folder(view), "prompt.md").read_text() == "Once upon a time"
