"""Test the tests: with one safeguard removed from a script a play must fail; with all it passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from farro.errors import AgentLost, ClaimLost, IdConflict
from farro.jobs import moves
from farro.jobs.moves import Move
from farro.jobs.outcomes import Succeeded
from farro.jobs.states import Reason, Status
from farro.store.redis import decisions, scripts
from one_job import claim_one, commit_one
from redis_rig import Rig, life, proxied
from servers import RedisServer
from stage import report, submission


def fenced(rig: Rig, server: RedisServer) -> None:
    """Use an agent whose lease is over."""
    store = rig.store(lease_s=30.0)
    store.enqueue(submission())
    claim = claim_one(store, store.join("w", role="Runner"))
    assert claim is not None
    rig.clock.advance(31)
    with pytest.raises(AgentLost):
        commit_one(store, claim, Succeeded(report=report(claim)))


def twice(rig: Rig, server: RedisServer) -> None:
    """Commit a claim twice."""
    store = rig.store()
    store.enqueue(submission())
    claim = claim_one(store, store.join("w", role="Runner"))
    assert claim is not None
    commit_one(store, claim, Succeeded(report=report(claim)))
    with pytest.raises(ClaimLost):
        commit_one(store, claim, Succeeded(report=report(claim)))


def overtaken(rig: Rig, server: RedisServer) -> None:
    """Apply a decision to a job that another process changed meanwhile."""
    store = rig.store()
    store.enqueue(submission(job_id="j"))
    boss = store.join("b", role=None)
    (seen,) = store._context.read_jobs(["j"])
    assert seen is not None
    move = Move(reason=Reason.REROUTED, status=Status.QUEUED, role="CodeReviewer")
    late = moves.decided(seen.lifecycle, move, by=boss.id, attempt=0, now=store._context.now())
    store.kill(boss, "j")
    assert decisions.compare_and_swap(store._context, boss, seen, late, 0) is None
    assert store.count()[Status.KILLED] == 1


def other_content(rig: Rig, server: RedisServer) -> None:
    store = rig.store()
    store.enqueue(submission(1, job_id="j"))
    with pytest.raises(IdConflict):
        store.enqueue(submission(2, job_id="j"))


def lost_answers(rig: Rig, server: RedisServer) -> None:
    """Lose every answer of a job life once."""
    whole = life(rig.store())
    for cut in range(1, 1000):
        with proxied(server.port) as proxy:
            proxy.cut, proxy.after = cut, True
            one = Rig(Path(rig.stores[0].root) / f"cut{cut}", proxy.url)
            try:
                assert life(one.store(beat_s=0.0)) == whole
                log = [line["event"] for line in one.stores[0].audit_lines()]
            finally:
                one.close()
        assert len(log) == len(list(rig.stores[0].audit_lines()))
        if not proxy.cuts:
            return


Play = Callable[[Rig, RedisServer], None]
SAFEGUARDS: dict[str, tuple[str, str, str, Play]] = {
    "the lease": ("commit", "if not alive(agent) then", "if false then", fenced),
    "the fence": ("commit", "if job[1] ~= 'held' or job[2] ~= agent or job[3] ~= attempt then", "if false then", twice),
    "the token of a commit": (
        "commit",
        "if again and call('HGET', key, 't'",
        "if call('HGET', key, 'none'",
        lost_answers,
    ),
    "the nonce of a claim": ("claim", "if held[j + 1] == corr then", "if false then", lost_answers),
    "the token of a decision": ("decide", "if again and job[7] == token then", "if false then", lost_answers),
    "the number of a change": ("decide", "if job[1] ~= ARGV[4] then", "if false then", overtaken),
    "the digest": ("enqueue", "if known[1] and (known[2] or '') ~= ARGV[at + 1] then", "if false then", other_content),
    "the token of a submission": ("enqueue", "(again and (known[3] or '') == ARGV[at + 2])", "false", lost_answers),
}


@pytest.mark.parametrize("play", sorted({play for *_, play in SAFEGUARDS.values()}, key=lambda play: play.__name__))
def test_with_all_safeguards_every_play_passes(rig: Rig, redis_server: RedisServer, play: Play) -> None:
    play(rig, redis_server)


@pytest.mark.parametrize("name", SAFEGUARDS)
def test_a_removed_safeguard_is_noticed(
    rig: Rig, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    script, line, without, play = SAFEGUARDS[name]
    whole = scripts._text

    def text(wanted: str) -> str:
        found = whole(wanted)
        if wanted == script:
            assert line in found, f"{script}.lua has no such line: {line}"
            found = found.replace(line, without)
        return found

    monkeypatch.setattr(scripts, "_text", text)
    other = Rig(Path(rig._folder) / "without", redis_server.url)
    noticed = False
    try:
        play(other, redis_server)
    except (Exception, pytest.fail.Exception) as trouble:  # whatever fails: it was noticed
        noticed = "compiling script" not in str(trouble)
    finally:
        other.close()
    assert noticed, f"nothing noticed that {name} was missing"
