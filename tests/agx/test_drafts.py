"""The draft between two commands: private, never half written, never overwritten by an outdated copy."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from farro.agx import drafting
from farro.agx.drafting import Draft, Drafts
from farro.errors import Damaged, InputError, Refused


@pytest.fixture
def drafts(tmp_path: Path) -> Drafts:
    return Drafts(f"{tmp_path}/state/agx", "somewhere")


def test_draft_is_stored_readable_by_its_owner_only(drafts: Drafts, tmp_path: Path) -> None:
    drafting.add(drafts, ["sort"])
    assert [step["command"] for step in drafts.read().steps] == ["sort"]
    (file,) = (tmp_path / "state" / "agx").glob("draft-*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_each_store_has_its_own_draft(drafts: Drafts, tmp_path: Path) -> None:
    drafting.add(drafts, ["sort"])
    assert Drafts(f"{tmp_path}/state/agx", "elsewhere").read() == Draft()


def test_outdated_draft_does_not_overwrite_a_newer_one(drafts: Drafts) -> None:
    read = drafts.read()
    drafting.add(drafts, ["sort"])
    with pytest.raises(Refused, match="changed elsewhere"):
        drafts.replace(read, {"steps": []})
    assert len(drafts.read().steps) == 1


def test_concurrent_threads_all_add_their_steps(drafts: Drafts) -> None:
    def many(name: str) -> None:
        for number in range(10):
            drafting.add(drafts, [name, str(number)])

    threads = [threading.Thread(target=many, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    steps = drafts.read().steps
    assert [step["step_number"] for step in steps] == list(range(1, 31))
    assert sorted(step["command"] for step in steps) == ["a"] * 10 + ["b"] * 10 + ["c"] * 10


def test_concurrent_processes_all_add_their_steps(drafts: Drafts, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom farro.agx import drafting\n"
        "from farro.agx.drafting import Drafts\n"
        "for n in range(5): drafting.add(Drafts(sys.argv[1], 'somewhere'), [sys.argv[2], str(n)])"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", script, f"{tmp_path}/state/agx", name]) for name in ("a", "b", "c")
    ]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert len(drafts.read().steps) == 15


def test_changes_are_undone_one_by_one(drafts: Drafts) -> None:
    for name in ("a", "b", "c"):
        drafting.add(drafts, [name])
    drafting.begin(drafts, "next")
    assert drafts.read().steps == []
    assert [len(drafts.undo().steps) for _ in range(4)] == [3, 2, 1, 0]
    with pytest.raises(InputError, match="nothing to undo"):
        drafts.undo()


def test_undoing_the_first_step_of_a_draft_leaves_that_draft(drafts: Drafts) -> None:
    drafting.begin(drafts, "earlier")
    drafting.add(drafts, ["a"])
    drafting.begin(drafts, "z")
    drafting.add(drafts, ["b"])
    assert (drafts.undo().name, drafts.read().steps) == ("z", [])
    assert drafts.undo().name == "earlier"


def test_redo_works_until_the_next_change(drafts: Drafts) -> None:
    for name in ("a", "b", "c"):
        drafting.add(drafts, [name])
    for _ in range(3):
        drafts.undo()
    assert [len(drafts.redo().steps) for _ in range(2)] == [1, 2]
    drafting.add(drafts, ["other"])
    with pytest.raises(InputError, match="nothing to redo"):
        drafts.redo()
    assert [step["command"] for step in drafts.undo().steps] == ["a", "b"]


def test_a_draft_of_an_earlier_version_is_read(drafts: Drafts, tmp_path: Path) -> None:
    drafting.add(drafts, ["a"])
    (file,) = (tmp_path / "state" / "agx").glob("draft-*.json")
    data = json.loads(file.read_text())
    del data["undone"]
    file.write_text(json.dumps(data))
    assert [step["command"] for step in drafts.read().steps] == ["a"]


def test_a_refused_change_changes_nothing(drafts: Drafts) -> None:
    drafting.add(drafts, ["a"])
    before = drafts.read()
    for typed in (["b", "&&", "c"], ["b |"], ["a\0"], ["\udcff"]):
        with pytest.raises(InputError):
            drafting.add(drafts, typed)
    with pytest.raises(InputError):
        drafting.remove(drafts, ["7"])
    assert drafts.read() == before


def test_a_plan_has_at_most_a_hundred_steps(drafts: Drafts) -> None:
    drafting.add(drafts, [" | ".join(["cat"] * 100)])
    with pytest.raises(InputError, match="at most 100"):
        drafting.add(drafts, ["cat"])


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"plan": 1}', b'{"plan": {}, "version": "x", "before": []}', b"[" * 9999]
)
def test_damaged_draft_is_reported_and_replaced(drafts: Drafts, tmp_path: Path, text: bytes) -> None:
    drafting.add(drafts, ["a"])
    (file,) = (tmp_path / "state" / "agx").glob("draft-*.json")
    file.write_bytes(text)
    with pytest.raises(Damaged, match="agx new"):
        drafts.read()
    assert drafting.begin(drafts, None).steps == []
    assert drafts.read().steps == []


def test_remove_takes_several_shown_numbers(drafts: Drafts) -> None:
    drafting.add(drafts, ["a | b | c | d"])
    assert [step["command"] for step in drafting.remove(drafts, ["1", "3"]).steps] == ["b", "d"]


def test_submitted_plan_has_a_plan_id() -> None:
    plan = {"steps": [{"step_number": 1, "command": "a"}]}
    assert drafting.finished(plan)["plan_id"] == drafting.finished(plan)["plan_id"]
    assert drafting.finished({**plan, "plan_id": "mine"})["plan_id"] == "mine"
