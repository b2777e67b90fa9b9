"""Paused accounts of providers: the list, and resuming one."""

from __future__ import annotations

from urllib.parse import quote

from farro.jobs.moves import awaited_accounts
from farro.jobs.outcomes import AccountWait, Released
from farro.jobs.states import Reason
from http_stage import WebStage, submission
from one_job import claim_one, commit_one
from support import eventually

ACCOUNT = "team/claude"  # a slash: the name is the user's own


def a_job_that_waits(front: WebStage) -> str:
    job_id = front.store.enqueue(submission())
    agent = front.store.join("hands", role="Runner")
    claim = claim_one(front.store, agent)
    assert claim is not None
    commit_one(front.store, claim, Released(wait=AccountWait(accounts=(ACCOUNT,), delay_s=3600.0)))
    front.store.leave(agent)
    return str(job_id)


def test_a_paused_account_is_listed_and_resumed(any_front: WebStage) -> None:
    assert any_front.get("/api/accounts").json == {"accounts": []}
    job_id = a_job_that_waits(any_front)
    any_front.store.accounts().pause(ACCOUNT, kind="refused", reason="401: no such key")
    eventually(lambda: any_front.get("/api/accounts").json["accounts"])
    (told,) = any_front.get("/api/accounts").json["accounts"]
    assert (told["account"], told["kind"], told["reason"]) == (ACCOUNT, "refused", "401: no such key")
    assert (told["until"], told["jobs"], told["fix"]) == (None, 1, f"farro provider resume {ACCOUNT}")
    eventually(lambda: any_front.get("/api/inbox").json == {"waiting": [], "accounts": [told]})
    resume = f"/api/accounts/{quote(ACCOUNT, safe='')}/resume"
    done = any_front.post(resume)
    assert (done.status, done.json) == (200, {"account": ACCOUNT, "was_paused": True, "jobs": [job_id]})
    assert any_front.store.accounts().paused() == []
    found = any_front.store.find(job_id)
    assert found is not None
    assert awaited_accounts(found.lifecycle) == ()
    last = found.lifecycle.hops[-1]
    assert (last.reason, last.by.split(".")[0]) == (Reason.RESUMED, "web-tester")
    again = any_front.post(resume)
    assert (again.status, again.code) == (404, "unknown_account")
    eventually(lambda: any_front.get("/api/accounts").json == {"accounts": []})


def test_inbox_has_no_account_whose_limit_ends_by_itself(front: WebStage) -> None:
    front.store.accounts().pause("claude", kind="limited", reason="resets 3pm", wait_s=3600.0)
    assert len(front.get("/api/accounts").json["accounts"]) == 1
    assert front.get("/api/inbox").json["accounts"] == []
