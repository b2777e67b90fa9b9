"""`farro top` over a real store: every view, live changes, confirmed actions, hostile text, failures."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from farro.errors import StorageTrouble
from farro.jobs.states import Status
from farro.store.port import Store
from farro.swarm.files import DesiredState, SwarmFiles
from farro.swarm.lifecycle import SwarmState
from farro.tui import texts
from farro.tui.queries import Filter
from flows.program import Program, endless, shell, steps
from servers import RedisServer
from support import eventually
from top_rig import Screen, Top


def queue(farro: Program, plan: dict[str, Any]) -> str:
    """Enqueue from another thread than the screen's, in a separate process."""
    return farro.run("enqueue", "-", stdin=json.dumps(plan), code=0).out.strip()


HOSTILE = "[red]stop[/red] \x1b[2Jgone \u202etfel \x07<b>"


def test_empty_root_shows_the_next_command(top: Top) -> None:
    async def look(screen: Screen) -> None:
        await screen.until("farro enqueue -- make test")
        await screen.press("3")
        await screen.until("no workers: farro worker")
        await screen.press("4")
        await screen.until("no swarms")
        await screen.press("5")
        await screen.until("nothing wants you")
        await screen.press("2")
        await screen.until("no jobs like that")

    top.look(look)


def test_queue_counts_update_without_a_key_press(farro: Program, top: Top) -> None:
    farro.enqueue(shell("true"))

    async def look(screen: Screen) -> None:
        await screen.until(lambda text: re.search(r"Runner +0 +1 +0 +0 +0 +0", text))
        await asyncio.to_thread(queue, farro, shell("exit 1"))
        await screen.until(lambda text: re.search(r"Runner +0 +2 +0 +0 +0 +0", text))
        await asyncio.to_thread(farro.worked)
        text = await screen.until(lambda text: re.search(r"Runner +0 +0 +0 +1 +1 +0", text))
        assert "LAST ENDED" in text
        await screen.until("sh -c true")

    top.look(look)


def test_empty_paused_queue_is_shown(farro: Program, top: Top) -> None:
    async def look(screen: Screen) -> None:
        await screen.until("no jobs, no workers")
        await asyncio.to_thread(farro.run, "pause", "Runner", code=0)
        await screen.until("Runner (paused)")
        await screen.until("1 paused: farro resume")
        await asyncio.to_thread(farro.run, "resume", "Runner", code=0)
        await screen.until("no jobs, no workers")

    top.look(look)


def test_recently_ended_jobs_are_shown_beside_a_long_queue(farro: Program, top: Top) -> None:
    farro.enqueue(shell("true", name="long done"))
    farro.worked()
    plans = "\n".join(json.dumps(shell("true", name=f"queued {number}")) for number in range(40))
    farro.call("enqueue", "--many", "-", stdin=plans, code=0)

    async def look(screen: Screen) -> None:
        await screen.until("long done")

    top.look(look)


def test_jobs_are_listed_filtered_and_ordered(farro: Program, top: Top) -> None:
    good, bad = farro.enqueue(shell("true", name="bake bread")), farro.enqueue(shell("exit 7", name="burn toast"))
    farro.worked()
    queued = farro.enqueue(shell("true", name="knead dough"))

    async def look(screen: Screen) -> None:
        await screen.press("2")
        await screen.until(lambda text: all(words in text for words in ("bake bread", "exit code 7", "knead dough")))
        assert screen.app.job() == queued
        await screen.press("slash", *"failed", "enter")
        await screen.until(lambda text: "exit code 7" in text and "bake bread" not in text)
        assert screen.app.job() == bad
        await screen.press("escape")
        await screen.until("bake bread")
        await screen.press("slash", *"bread", "enter")
        await screen.until(lambda text: "bake bread" in text and "knead dough" not in text)
        assert screen.app.job() == good
        await screen.press("escape", "f")
        await screen.until(lambda text: "filter: running" in text and "bake" not in text)
        await screen.press("f")
        await screen.until(lambda text: "filter: queued" in text and "knead dough" in text)
        await screen.press("escape", "o")
        await screen.until("STATUS▾")
        text = await screen.until(lambda text: "bake bread" in text)
        assert text.index("failed") < text.index("bake bread") < text.index("knead dough")

    top.look(look)


def test_old_job_outside_of_the_list_is_found_by_name(farro: Program, top: Top) -> None:
    farro.enqueue(shell("true"), "--id", "the-old-one")

    async def look(screen: Screen) -> None:
        await screen.press("2", "slash", *"failed the-old", "enter")
        await screen.press("slash", "enter")
        await screen.press("escape")
        await screen.press("slash", *"the-old-one")
        await screen.until("the-old-one")
        await screen.press("enter", "enter")
        await screen.until("Steps 0 of 1")

    top.look(look)


def test_job_screen_shows_history_logs_result_and_prompt(farro: Program, top: Top) -> None:
    plan = steps(("echo", "first words"), ("sh", "-c", "echo last words >&2; exit 4"), name="tell a story")
    job = farro.enqueue(plan)
    farro.worked()

    async def look(screen: Screen) -> None:
        await screen.press("2")
        await screen.until("exit code 4")
        await screen.press("enter")
        text = await screen.until("Steps 1 of 2")
        assert job in text
        assert "tell a story" in text
        assert re.search(r"✓ 1 +echo first words", text)
        assert re.search(r"✗ 2 +sh -c", text)
        assert "exit 4" in text
        await screen.press("tab")
        text = await screen.until("last words")
        assert text.index("first words") < text.index("step 2  stderr") < text.index("last words")
        await screen.press("tab")
        await screen.until("exit code 4")
        await screen.press("tab")
        await screen.until('"name": "tell a story"')
        await screen.press("escape")
        await screen.until("2 Jobs")

    top.look(look, (100, 40))


def test_logs_stream_while_the_job_runs(farro: Program, top: Top) -> None:
    go = farro.path / "go"
    script = f"echo before; while [ ! -e {go} ]; do sleep 0.05; done; echo after"
    job = farro.enqueue(shell(script))
    farro.start("worker").started()
    eventually(lambda: farro.status(job) == "in_progress", "no worker took the job")

    async def look(screen: Screen) -> None:
        await screen.press("2")
        await screen.until("running")
        await screen.press("l")
        await screen.until("before")
        assert "after" not in screen.text.replace(script, "")
        go.touch()
        await screen.until("after")
        await screen.until(" ok ")

    top.look(look)


def test_workers_are_shown_with_lease_and_job(farro: Program, top: Top) -> None:
    job = farro.enqueue(endless())
    worker = farro.start("worker", "--workers", "1").started()
    eventually(lambda: (farro.path / "started").exists(), "it did not start")

    async def look(screen: Screen) -> None:
        await screen.until(lambda text: re.search(r"Runner +1 +0 +1 ", text))
        await screen.press("3")
        text = await screen.until("held")
        assert texts.short_id(job, 20)[:8] in text or job[:8] in text
        assert screen.app.job() == job
        await asyncio.to_thread(worker.kill)
        await screen.until("dead")
        await screen.press("1")
        await screen.until("dead agents")
        await screen.press("5")
        await screen.until("farro watchdog recovers")

    top.look(look, (120, 30))


def test_job_is_killed_only_after_confirmation(farro: Program, top: Top) -> None:
    job = farro.enqueue(shell("true", name="doomed"))

    async def look(screen: Screen) -> None:
        await screen.press("2")
        await screen.until("doomed")
        await screen.press("K")
        await screen.until(f"Kill {job}?")
        await screen.press("n")
        await screen.until("2 Jobs")
        assert farro.status(job) == "queued"
        await screen.press("K", "enter")  # the focused button is No
        await screen.press("K")
        await screen.until(f"Kill {job}?")
        await screen.press("y")
        await screen.until(lambda text: re.search(r"killed +", text) and "is killed" in text)

    top.look(look)
    assert farro.status(job) == "killed"
    assert farro.job(job)["hops"][-1]["by"].startswith("top-tester")


def test_failed_job_is_retried_from_the_list(farro: Program, top: Top) -> None:
    job = farro.enqueue(steps(("true",), ("false",)))
    farro.worked()

    async def look(screen: Screen) -> None:
        await screen.press("2")
        await screen.until("failed")
        await screen.press("t", "y")
        await screen.until("repeats")
        await screen.until("2 jobs")
        await screen.press("r", "y")
        await screen.until("2 jobs")

    top.look(look)
    again = [view for view in farro.call("ls", "--json").json["jobs"] if view["job_id"] != job]
    assert [view["retry_of"] for view in again] == [job]


def test_refused_action_is_reported_and_changes_nothing(farro: Program, top: Top) -> None:
    job = farro.enqueue(shell("true"))

    async def look(screen: Screen) -> None:
        await screen.press("2")
        await screen.until("queued")
        await screen.press("C", "tab", *"because", "enter")
        await screen.until(lambda text: "queued" in text and "succeeded" in text)

    top.look(look, (100, 30))
    assert farro.status(job) == "queued"


def test_a_job_is_explained(farro: Program, top: Top) -> None:
    farro.enqueue(shell("true"))

    async def look(screen: Screen) -> None:
        await screen.press("2")
        await screen.until("queued")
        await screen.press("e")
        await screen.until("no worker of role Runner runs")

    top.look(look)


def test_hostile_job_is_shown_as_plain_text(farro: Program, top: Top) -> None:
    script = r"printf '\033[31m[red]red\033[0m \342\200\256 [/nothing] \a\n'; exit 3"
    farro.enqueue(shell(script, name=HOSTILE))
    farro.worked()
    farro.enqueue(shell("true", name=HOSTILE))

    async def look(screen: Screen) -> None:
        for keys in ("1", "2"):
            await screen.press(keys)
            await screen.until("[red]stop[/red]")
        await screen.press("down", "l")
        text = await screen.until("[red]red")
        assert "[/nothing]" in text
        for part in range(4):
            await screen.press("tab")
            await screen.until(lambda text: "attempt 1" in text)
            for mark in ("\x1b", "\u202e", "\x07"):
                assert mark not in screen.text, part
        await screen.press("K", "n")

    top.look(look, (120, 40))


def test_every_view_fits_80_by_24(farro: Program, top: Top) -> None:
    for number in range(30):
        farro.enqueue(shell("true", name=f"job number {number} with a name that is much longer than a line has room"))

    async def look(screen: Screen) -> None:
        for key, says in (("1", "RUNNING"), ("2", "JOB"), ("3", "WORKER"), ("4", "SWARM"), ("5", "WHAT")):
            await screen.press(key)
            text = await screen.until(says)
            lines = text.split("\n")
            assert len(lines) == 24
            assert max(map(len, lines)) <= 80
        await screen.press("question_mark")
        await screen.until("kill; force-complete")
        await screen.press("escape", "2", "G")
        await screen.until("30 jobs")
        first = screen.app.job()
        await screen.press("g")
        assert screen.app.job() != first

    top.look(look)


def test_theme_and_pause_keys_work(farro: Program, top: Top) -> None:
    async def look(screen: Screen) -> None:
        await screen.until("no jobs, no workers")
        await screen.press("d")
        assert screen.app.theme == "textual-light"
        await screen.press("p")
        await screen.until("PAUSED")
        await asyncio.to_thread(queue, farro, shell("true"))
        await screen.pilot.pause(0.5)
        assert "no jobs, no workers" in screen.text
        await screen.press("p")
        await screen.until("Runner")

    top.look(look)


class Failing:
    """A store that can be made to fail, like an unreachable server."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.away = threading.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if name not in ("agents", "find", "list", "count", "changes"):
            return found

        def called(*args: Any, **named: Any) -> Any:
            if self.away.is_set():
                raise StorageTrouble("the server went for a walk")
            return found(*args, **named)

        return called


def test_failing_store_is_reported_and_tried_again(farro: Program, top: Top) -> None:
    farro.enqueue(shell("true"))
    made: list[Failing] = []

    def failing(store: Store) -> Store:
        made.append(Failing(store))
        return made[0]  # type: ignore[return-value]

    async def run() -> None:
        async with top.screen((120, 24), store=failing) as screen:
            await screen.until(lambda text: re.search(r"Runner +0 +1", text))
            made[0].away.set()
            text = await screen.until("the server went for a walk")
            assert re.search(r"Runner +0 +1", text)  # the last known state stays
            made[0].away.clear()
            await screen.until(lambda text: "walk" not in text and "ended" in text)

    asyncio.run(run())


def test_person_approves_a_waiting_job(farro: Program, top: Top) -> None:
    job = ask_a_person(farro)

    async def look(screen: Screen) -> None:
        await screen.until("Attention (1)")
        await screen.press("5")
        await screen.until("question")
        assert screen.app.job() == job
        await screen.press("a")
        await screen.until(f"Let {job} go on?")
        await screen.press("y")
        await screen.until("is approved")

    top.look(look, (120, 30))


def ask_a_person(farro: Program) -> str:
    """Make a job that waits for the answer of a person."""
    path = farro.path / "agents-config.json"
    config = json.loads(path.read_text())
    config["providers"] = {"script": {"kind": "scripted", "file": "answers.json"}}
    path.write_text(json.dumps(config))
    answers = [{"role": "SeniorEngineer", "answer": {"summary": "It says please now."}}]
    (farro.path / "answers.json").write_text(json.dumps({"answers": answers}))
    (farro.path / "src").mkdir(exist_ok=True)
    prompt = {"role": "SeniorEngineer", "rubric": "Make it polite.", "allowed_paths": ["src/"], "success": "It is."}
    hops = [{"role": "SeniorEngineer", "rubric": "Make it so."}, {"role": "human", "rubric": "Polite enough?"}]
    task = {"id": "greet", "title": "A greeting", "allowed_paths": ["src/"], "success": "It is.", "workflow": hops}
    (farro.path / "tasks/greet.json").write_text(json.dumps(task))
    (farro.path / "prompt.json").write_text(json.dumps({**prompt, "routing": {"mode": "manager"}}))
    farro.call("enqueue", "--prompt-json", "prompt.json", "--task", "greet", "--id", "greeting", code=0)
    farro.call("manager", "--once", code=0)
    farro.run("worker", "--role", "SeniorEngineer", "--drain", code=0)
    farro.call("manager", "--once", code=0)
    return "greeting"


def test_swarms_are_shown_and_stopped_after_confirmation(farro: Program, top: Top) -> None:
    place = SwarmFiles(str(farro.path / "swarms"))
    place.make()
    place.make_swarm("mill")
    place.write_plan("mill", {"id": "mill", "bees": [{"role": "grinder", "command": ["true"], "instances": 2}]})
    now = "2026-11-16T09:00:00.000Z"
    place.write_desired(
        DesiredState(
            swarm="mill", state=SwarmState.RUNNING, controller="mill-c", created_at=now, changed_at=now, enabled=True
        )
    )

    async def look(screen: Screen) -> None:
        await screen.press("4")
        text = await screen.until("mill-grinder-2")
        assert re.search(r"mill +Running +Unknown", text)
        text = await screen.until("S Stop")  # the footer has the keys of this view, and no others
        assert ("s Start" in text, "Kill" in text, "Logs" in text) == (True, False, False)
        await screen.press("down", "S")  # on a component: the key applies to its swarm
        text = await screen.until("Stop the swarm mill?")
        assert "job's history" not in text  # a swarm has none
        await screen.press("y")
        await screen.until("swarm-stop of mill is asked for")

    top.look(look, (100, 24))
    (wish,) = [told for _, told in place.pending_requests() if told is not None]
    assert (wish.signal, wish.swarm_id, wish.origin) == ("swarm-stop", "mill", "top-tester")


def test_long_names_are_shown_whole_or_keep_their_ends(farro: Program, top: Top) -> None:
    place = SwarmFiles(str(farro.path / "swarms"))
    place.make()
    place.make_swarm("quality-department")
    bees = [{"role": "moderator-of-comments", "command": ["true"], "instances": 2}]
    place.write_plan("quality-department", {"id": "quality-department", "bees": bees})
    now, whole = "2026-11-16T09:00:00.000Z", "quality-department-moderator-of-comments-2"
    told = {"controller": "c", "created_at": now, "changed_at": now, "enabled": True}
    place.write_desired(DesiredState(swarm="quality-department", state=SwarmState.RUNNING, **told))  # type: ignore[arg-type]
    job = farro.enqueue(shell("true"))

    async def narrow(screen: Screen) -> None:
        await screen.press("4")
        await screen.until(lambda text: "comments-1" in text and "comments-2" in text)
        await screen.press("2")
        await screen.until(f"{job[8:19]}…{job[-8:]}")

    async def wide(screen: Screen) -> None:
        await screen.press("4")
        await screen.until(whole)
        await screen.press("2")
        await screen.until(job)

    top.look(narrow)
    top.look(wide, (200, 24))


def test_only_applicable_actions_are_offered(farro: Program, top: Top) -> None:
    done = farro.enqueue(shell("true", name="all done"))
    farro.worked()
    queued = farro.enqueue(shell("true", name="to come"))

    async def look(screen: Screen) -> None:
        text = await screen.until("all done")
        assert ("Kill" in text, "Logs" in text) == (False, False)  # the cursor is on a queue
        await screen.press("2")
        await screen.until(lambda text: "CHANGED▾" in text and "to come" in text)
        assert screen.app.job() == queued
        text = await screen.until("K Kill")
        assert ("t Retry" in text, "r Requeue" in text, "s Start" in text) == (False, False, False)
        await screen.press("down")
        assert screen.app.job() == done
        text = await screen.until("t Retry")
        assert "Kill" not in text
        await screen.press("K")
        assert "Kill" not in screen.text  # the key opens no question
        await screen.press("enter")
        text = await screen.until("Steps 1 of 1")
        assert "Kill" not in text
        await screen.press("escape", "slash", *"done", "enter")
        text = await screen.until(lambda text: " 1 job " in text)
        assert "1 jobs" not in text

    top.look(look, (100, 30))


def test_jobs_of_a_redis_store_are_shown_and_controlled(farro: Program, top: Top, redis_server: RedisServer) -> None:
    config = farro.path / "agents-config.json"
    settings = json.loads(config.read_text()) if config.exists() else {}
    config.write_text(json.dumps({**settings, "store": redis_server.url, "redis": {"name": "top-screen"}}))
    farro.enqueue(shell("exit 9"))

    async def look(screen: Screen) -> None:
        await screen.until(lambda text: re.search(r"Runner +0 +1", text))
        await asyncio.to_thread(farro.worked)
        await screen.until(lambda text: re.search(r"Runner +0 +0 +0 +0 +1", text))
        queued = await asyncio.to_thread(queue, farro, shell("true"))
        await screen.press("2")
        await screen.until("queued")
        assert screen.app.job() == queued
        await screen.press("K", "y")
        await screen.until("is killed")

    top.look(look)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", Filter()),
        ("failed", Filter("", (), (Status.FAILED,))),
        ("ok killed", Filter("", (), (Status.SUCCEEDED, Status.KILLED))),
        ("runner make test", Filter("make test", ("Runner",), ())),
        ("role:Runner status:stale", Filter("", ("Runner",), (Status.STALE,))),
    ],
)
def test_filter_consists_of_words_statuses_and_roles(text: str, wanted: Filter) -> None:
    assert Filter.parse(text, ["Runner", "Manager"]) == wanted


def test_top_outside_of_a_terminal_names_other_commands(farro: Program) -> None:
    farro.enqueue(shell("true"))
    assert "farro watch" in farro.call("top", code=2).err
    told = farro.call("top", "--json", code=0).json
    assert told["queues"]["Runner"]["queued"] == 1
    assert told["workers"] == []


def test_a_missing_library_names_what_to_install(farro: Program, tmp_path_factory: pytest.TempPathFactory) -> None:
    shadow = tmp_path_factory.mktemp("shadow")
    Path(shadow, "textual.py").write_text("raise ModuleNotFoundError('no textual', name='textual')\n")
    assert "pip install 'farro[tui]'" in farro.run("top", env={"PYTHONPATH": str(shadow)}, code=2).err
