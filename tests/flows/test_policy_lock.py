"""`farro policy lock` and `farro doctor --conformance`: pin the rules of jobs, name each difference."""

from __future__ import annotations

import json

from flows.program import Program, shell
from flows.test_doctor import config, examined, repair
from support import eventually

LOCK = "policy.lock.json"


def locked(farro: Program) -> dict[str, object]:
    farro.call("policy", "lock", code=0)
    told: dict[str, object] = json.loads((farro.path / LOCK).read_text())
    return told


def test_the_lock_is_the_same_bytes_for_the_same_root(farro: Program) -> None:
    farro.call("policy", "lock", code=0)
    first = (farro.path / LOCK).read_bytes()
    assert "up to date" in farro.call("policy", "lock", code=0).out
    (farro.path / LOCK).unlink()
    farro.call("policy", "lock", code=0)
    assert (farro.path / LOCK).read_bytes() == first
    assert str(farro.path).encode() not in first


def with_manager(farro: Program) -> None:
    farro.start("manager").started()
    eventually((farro.path / "agents/Manager/.heartbeat").exists, "no heartbeat")


def test_init_makes_the_lock_and_doctor_misses_it(farro: Program) -> None:
    lock = (farro.path / LOCK).read_bytes()
    farro.call("policy", "lock", "--check", code=0)
    (farro.path / LOCK).unlink()
    told = examined(farro, "--strict", code=1)["policy-lock"]
    assert (told["verdict"], told["repair"][0].split(" --root")[0]) == ("warning", "farro policy lock")
    assert LOCK in farro.call("init", code=0).out
    assert (farro.path / LOCK).read_bytes() == lock


def test_the_checklist_asks_for_a_manager(farro: Program) -> None:
    config(farro, durability="process")
    locked(farro)
    item = farro.call("doctor", "--conformance", "--json").json["checklist"][5]
    assert (item["done"], item["open"]) == (False, ["manager-heartbeat"])
    with_manager(farro)
    assert farro.call("doctor", "--conformance", "--json").json["checklist"][5]["done"]


def test_the_lock_holds_parameters_policies_and_schemas(farro: Program) -> None:
    (farro.path / LOCK).unlink()
    told = farro.call("policy", "lock", "--json", code=0).json
    assert told["changed"] is True
    lock = told["lock"]
    assert lock["parameters"]["backoff"]["attempts_http"] == 4
    assert lock["parameters"]["security"]["max_job_bytes"] == 25 << 20
    assert lock["policies"]["AGENTS.md"]["version"] == "1.0.0"
    assert len(lock["policies"]["agents/Architect/AGENTS-ROLE.md"]["sha256"]) == 64
    assert set(lock["schemas"]) == {path.name for path in (farro.path / "schemas").iterdir()}


def test_check_names_each_difference_and_writes_nothing(farro: Program) -> None:
    (farro.path / LOCK).unlink()
    assert "farro policy lock" in farro.call("policy", "lock", "--check", code=1).out
    locked(farro)
    farro.call("policy", "lock", "--check", code=0)
    before = (farro.path / LOCK).read_bytes()
    config(farro, watchdog={"stale_after_s": 60})
    policy = farro.path / "agents/Architect/AGENTS-ROLE.md"
    policy.write_text(policy.read_text().replace("version: 1.0.0", "version: 1.1.0"))
    told = farro.call("policy", "lock", "--check", code=1).out
    assert "parameters.watchdog.stale_after_s: 60, not 1800" in told
    assert 'policies.agents/Architect/AGENTS-ROLE.md.version: "1.1.0", not "1.0.0"' in told
    assert (farro.path / LOCK).read_bytes() == before
    paths = {item["path"] for item in farro.call("policy", "lock", "--check", "--json", code=1).json["differences"]}
    assert "policies.agents/Architect/AGENTS-ROLE.md.sha256" in paths


def test_invalid_lock_file_is_reported_and_rewritten(farro: Program) -> None:
    (farro.path / LOCK).write_text("[1]")
    assert "farro policy lock" in farro.call("policy", "lock", "--check", code=2).err
    farro.call("policy", "lock", code=0)
    farro.call("policy", "lock", "--check", code=0)


def test_doctor_compares_with_the_lock_and_the_profile(farro: Program) -> None:
    config(farro, durability="process")
    (farro.path / LOCK).unlink()
    told = examined(farro, "--conformance", code=1)
    assert told["policy-lock"]["verdict"] == "failed"
    repair(farro, told["policy-lock"])
    with_manager(farro)
    told = examined(farro, "--conformance", code=0)
    assert told["policy-lock"]["verdict"] == "ok"
    assert told["example-job"]["verdict"] == "ok"
    config(farro, capacity={"role_cap": 5})
    told = examined(farro, "--conformance", code=1)
    assert told["profile-caps"]["details"] == ["caps.role: 5, not 200"]
    assert told["policy-lock"]["details"] == ["parameters.caps.role: 5, not 200"]


def test_conformance_checklist_is_printed_item_by_item(farro: Program) -> None:
    config(farro, durability="process", retry={"base_s": 2})
    locked(farro)
    with_manager(farro)
    done = farro.call("doctor", "--conformance", "--strict", code=1)
    assert "[ ] doctor passes in strict mode  (see backoff)" in done.out
    assert "[ ] Backoff parameters match pinned values  (see backoff)" in done.out
    assert "[x] Same-volume verified; cross-volume forbidden" in done.out
    assert "[x] Example job executes end-to-end and lands in completed/" in done.out
    items = farro.call("doctor", "--conformance", "--strict", "--json", code=1).json["checklist"]
    assert len(items) == 7
    assert [item["open"] for item in items if not item["done"]] == [["backoff"], ["backoff"]]


def test_jobs_record_the_version_of_a_changed_lock(farro: Program) -> None:
    job = farro.enqueue(shell("true"))
    farro.worked()
    config(farro, capacity={"role_cap": 5})
    locked(farro)
    later = farro.enqueue(shell("true"))
    farro.worked()
    assert farro.job(job)["policy_version"] != farro.job(later)["policy_version"]
