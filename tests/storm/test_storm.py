"""Run a storm over three workers' machines, kill the server and cut links; then check the history.

The checker is tested too, with forged histories.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crash.history import Committed, Effect, History, Hop, Job, Refusal, Tree, check
from storm import network
from storm.weather import Storm, refusals
from support import torture

HISTORIES = 1000 * torture() or 6
ALONE_S = 3.0  # long enough that on a busy machine only the tested fault makes a worker lose its lease
BLOWS = 9  # one more than there are kinds of faults

pytestmark = pytest.mark.linux


@pytest.fixture(scope="module")
def machines() -> None:
    network.needed()


@pytest.fixture
def storm(tmp_path: Path, machines: None) -> Iterator[Storm]:
    with Storm(tmp_path / "storm", seed=1, lease_s=ALONE_S, retry_s=60.0) as made:
        yield made


@pytest.mark.parametrize("number", range(HISTORIES))
@pytest.mark.usefixtures("machines")
def test_a_storm_over_many_machines_loses_nothing(number: int, tmp_path: Path, figure: Callable[..., None]) -> None:
    seed = int(os.environ.get("FARRO_STORM_SEED") or (time.time_ns() if torture() else number))
    with Storm(tmp_path / "storm", seed=seed) as storm:
        try:
            until(storm, lambda: len(storm.history().committed) >= 2)  # starting is slow on a busy machine
            storm.blow(BLOWS)
            storm.calm(180)
            storm.end()
        except BaseException as error:
            error.add_note(f"FARRO_STORM_SEED={seed}")
            raise
        history, tree = storm.history(), storm.tree()
        verdict = check(history, tree, late_effects=True)
        assert verdict.clean, f"{verdict}\nFARRO_STORM_SEED={seed}\n{storm.last_words()}"
        assert storm.tracebacks() == []
        assert len(storm.blows) == 8, storm.blows
    # A storm in which nothing happened would prove nothing.
    assert len(history.enqueued) > 3
    figure(f"storm over machines {number}, jobs", len(tree.jobs))
    figure(f"storm over machines {number}, blows, of them at a worker with a job", f"{BLOWS}, {storm.hits}")


# --- one fault at a time ----------------------------------------------------------------------------------------------


def one_long_job(storm: Storm) -> str:
    """Start w0 alone and let it claim a job that takes longer than a lease; return the job's id."""
    from farro.store.port import Submission

    effects = str(storm.folder / "effects")
    script = f'echo "$FARRO_CLAIM" >> "$0"; sleep {1.5 * ALONE_S}'
    prompt = {"plan_id": "long", "steps": [{"step_number": 1, "command": "sh", "args": ["-c", script, effects]}]}
    store = storm.store()
    store.enqueue(Submission(role="Runner", prompt=prompt, job_id="long"))
    store.close()
    storm.members = [storm.member("w0")]
    until(storm, lambda: storm.hands(storm.members[0]) == {"long"})
    return "long"


def until(storm: Storm, condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, storm.last_words()
        storm.pass_time(0.05)


def others_take_over(storm: Storm, others: list[object]) -> None:
    storm.members += others
    until(storm, lambda: not storm.unfinished())


def first_is_refused(storm: Storm) -> None:
    """Check that w0 learns that it lost its claim, and that the other worker's result is committed once."""
    until(
        storm, lambda: bool(list(refusals(storm.said("w0"))) or any("agent_lost" in line for line in storm.said("w0")))
    )
    storm.end()
    history, tree = storm.history(), storm.tree()
    history.tried.add("long")
    history.enqueued.append(("long", "long"))
    assert (verdict := check(history, tree, late_effects=True)).clean, f"{verdict}\n{storm.last_words()}"
    (job,) = tree.jobs
    assert job.status == "succeeded"
    assert [hop.by.partition(".")[0] for hop in job.hops if hop.reason == "committed"] == ["w1"]
    assert [said.agent.partition(".")[0] for said in history.committed] == ["w1"]


def test_a_worker_that_was_stopped_past_its_lease_commits_nothing(storm: Storm) -> None:
    others = [storm.member("w1"), storm.member("keeper")]
    one_long_job(storm)
    stopped = storm.member("w0")
    stopped.send(signal.SIGSTOP)
    others_take_over(storm, others)
    stopped.send(signal.SIGCONT)
    first_is_refused(storm)


@pytest.mark.parametrize("how", ["cut", "mute", "deafen"])
def test_a_worker_that_was_cut_off_past_its_lease_commits_nothing(how: str, storm: Storm) -> None:
    others = [storm.member("w1"), storm.member("keeper")]
    one_long_job(storm)
    getattr(storm.network, how)("w0")
    others_take_over(storm, others)
    storm.network.mend("w0")
    first_is_refused(storm)


def test_a_killed_server_keeps_what_it_acknowledged(storm: Storm) -> None:
    from farro.store.port import Submission

    store = storm.store()
    prompt = {"plan_id": "p", "steps": [{"step_number": 1, "command": "true"}]}
    told = [store.enqueue(Submission(role="Runner", prompt=prompt)) for _ in range(20)]
    storm.server.kill()
    storm.server.start()
    assert {view.job_id for view in store.list()} == set(told)
    store.close()


# --- the network itself ----------------------------------------------------------------------------------------------

ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 7))
print("listening", flush=True)
while True:
    connection, _ = server.accept()
    print("heard", flush=True)
    connection.sendall(b"echo")
    connection.close()
"""
ASK = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], 7), timeout=float(sys.argv[2])) as connection:
        print(connection.recv(4).decode())
except OSError:
    print("nothing")
"""


@pytest.mark.usefixtures("machines")
def test_links_are_cut_in_one_direction_or_both() -> None:
    with network.network(["server", "one", "two"]) as net:
        address = net.address("server")
        serving = [*net.inside("server"), sys.executable, "-c", ECHO, address]
        with subprocess.Popen(serving, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                server.stdout.readline()

                def asked(name: str, patience_s: float = 30.0) -> str:
                    """Ask with a long timeout by default: the machine may be busy."""
                    command = [*net.inside(name), sys.executable, "-c", ASK, address, str(patience_s)]
                    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

                assert asked("one") == asked("two") == "echo"
                for part in (net.cut, net.mute, net.deafen):
                    part("one")
                    assert (asked("one", 0.5), asked("two")) == ("nothing", "echo"), part
                    net.mend("one")
                    assert asked("one") == "echo"
            finally:
                server.kill()


@pytest.mark.usefixtures("machines")
def test_a_removed_network_leaves_nothing_behind() -> None:
    with network.network(["a", "b"]) as net:
        assert net.mark in spaces()
    assert net.mark not in spaces()


def spaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


# --- what the checker would say --------------------------------------------------------------------------------------

DONE = "agents/Runner/completed/succeeded"
COMMIT = Hop(reason="committed", attempt=2, by="w1.0.a", to=DONE)
DEATH = Hop(reason="agent_died", attempt=1, by="keeper.0.a", to="jobs/stale")
AGAIN = Hop(reason="requeued", attempt=1, by="keeper.0.a", to="agents/Runner/incoming")


def fenced() -> tuple[History, Tree]:
    """A job whose first worker was cut off and refused; its step acted late, and the second worker's result stands."""
    job = Job(id="a", place=DONE, status="succeeded", token="a", hops=(DEATH, AGAIN, COMMIT), attempts=2)
    history = History(
        tried={"a"},
        enqueued=[("a", "a")],
        committed=[Committed(job="a", attempt=2, agent="w1.0.a", status="succeeded")],
        refused=[Refusal(job="a", attempt=1, agent="w0.0.a")],
        effects=[Effect(job="a", attempt=1), Effect(job="a", attempt=2), Effect(job="a", attempt=1)],
    )
    return history, Tree(jobs=[job])


def test_the_checker_accepts_a_fenced_worker() -> None:
    assert check(*fenced(), late_effects=True).clean
    assert "attempt 1 acted after attempt 2" in str(check(*fenced()))


Forge = Callable[[History, Tree], object]


@pytest.mark.parametrize(
    ("kind", "words", "forge"),
    [
        ("lost", "a (a) was acknowledged and is nowhere", lambda h, t: t.jobs.clear()),
        (
            "duplicated",
            "acknowledged as final 2 times",
            lambda h, t: h.committed.append(Committed(job="a", attempt=1, agent="w0.0.a", status="succeeded")),
        ),
        (
            "lost",
            "succeeded by w0.0.a in attempt 1 is not in its hops",
            lambda h, t: h.committed.append(Committed(job="a", attempt=1, agent="w0.0.a", status="succeeded")),
        ),
        (
            "unexpected",
            "w1.0.a was told that it lost attempt 2, and its commit was accepted",
            lambda h, t: h.refused.append(Refusal(job="a", attempt=2, agent="w1.0.a")),
        ),
        ("lost", "that attempt did nothing", lambda h, t: h.effects.pop(1)),
    ],
)
def test_the_checker_refuses_a_forged_history(kind: str, words: str, forge: Forge) -> None:
    history, tree = fenced()
    forge(history, tree)
    verdict = check(history, tree, late_effects=True)
    assert any(words in line for line in getattr(verdict, kind)), str(verdict)


def test_a_refusal_is_read_from_a_workers_log() -> None:
    said = {"job_id": "a", "attempt": 1, "agent": "w0.0.a", "event": {"type": "claim_lost"}, "message": "lost"}
    whole = json.dumps(said)
    assert list(refusals([whole, whole[:30], "{}"])) == [Refusal(job="a", attempt=1, agent="w0.0.a")]
