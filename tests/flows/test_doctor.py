"""`farro doctor`: each trouble is caused for real, reported with its cause, and repaired by the command doctor names.

test_doctor_disks.py covers filesystems and mounts, test_policy_lock.py the profile and the lock.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.program import FARRO, Done, Program, endless, listing, shell, unprivileged
from support import eventually

Told = dict[str, Any]


def examined(farro: Program, *args: str, code: int | None = None) -> dict[str, Told]:
    """Return the findings of doctor by check id."""
    done = farro.call("doctor", "--json", *args, code=code)
    return {told["id"]: told for told in done.json["checks"]}


def repair(farro: Program, told: Told, editor: str = "false") -> None:
    """Run the repair commands of a finding, as a person would paste them."""
    assert told["cause"]
    assert told["repair"]
    env = {**farro.env, "PATH": f"{os.path.dirname(FARRO)}:{farro.env['PATH']}", "EDITOR": editor}
    for line in told["repair"]:
        done = subprocess.run(["sh", "-c", line], cwd=farro.path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def writes(farro: Program, path: str, text: str) -> str:
    """Return an editor command that replaces a file by the corrected text."""
    script = farro.path / "editor"
    script.write_text(f'#!{sys.executable}\nimport sys\nopen(sys.argv[1], "w").write({text!r})\n')
    script.chmod(0o755)
    assert (farro.path / path).exists()
    return str(script)


def config(farro: Program, **changes: Any) -> str:
    """Change the config; return the former text."""
    path = farro.path / "agents-config.json"
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), **changes}))
    return before


def queued(farro: Program) -> Path:
    return farro.folder(farro.enqueue(shell("true")))


def rewrite(folder: Path, **changes: Any) -> None:
    path = folder / "job.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def age(path: Path, days: float) -> None:
    then = time.time() - days * 86400
    os.utime(path, (then, then), follow_symlinks=False)


# --- the whole ---


def test_doctor_passes_a_fresh_root_and_changes_nothing(farro: Program) -> None:
    before = listing(farro.path)
    done = farro.run("doctor", code=0)
    assert "0 failed" in done.out
    assert "\x1b" not in done.out
    assert listing(farro.path) == before


def test_every_finding_has_a_verdict_and_a_bad_one_a_cause_and_a_repair(farro: Program) -> None:
    (farro.path / "jobs" / "stale").rmdir()
    (farro.path / "AGENTS.md").write_text("no header\n")
    done = farro.run("doctor", "--json", code=1)
    assert done.json["passed"] is False
    for told in done.json["checks"]:
        assert set(told) == {"id", "title", "verdict", "found", "cause", "repair", "details"}
        assert told["verdict"] in ("ok", "warning", "failed")
        assert told["verdict"] == "ok" or (told["cause"] and told["repair"])
    text = farro.run("doctor", code=1).out
    assert "failed: folders: jobs/stale is missing" in text
    assert "repair: farro init" in text


def test_warnings_fail_only_in_strict_mode(farro: Program) -> None:
    config(farro, durability="process")
    (farro.path / "AGENTS.md").write_text("no header\n")
    assert examined(farro, code=0)["policies"]["verdict"] == "warning"
    examined(farro, "--strict", code=1)


def test_repairs_name_a_root_that_is_not_found_by_default(farro: Program, tmp_path_factory: Any) -> None:
    (farro.path / "jobs" / "stale").rmdir()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    done = farro.run("doctor", "--json", "--root", str(farro.path), cwd=elsewhere, code=1)
    told = next(told for told in done.json["checks"] if told["id"] == "folders")
    assert told["repair"] == [f"farro init --root {farro.path}"]


def test_missing_root_is_reported_as_by_other_commands(empty: Program) -> None:
    done = empty.run("doctor", code=2)
    assert "farro init" in done.err


# --- every trouble, and its repair ---


def in_two_places(farro: Program) -> None:
    folder = queued(farro)
    twin = farro.path / "agents/Runner/completed/succeeded" / folder.name
    shutil.copytree(folder, twin)
    rewrite(twin, status="succeeded")


def contradicting(farro: Program) -> None:
    rewrite(queued(farro), status="succeeded")


def named_wrong(farro: Program) -> None:
    rewrite(queued(farro), job_id="somebody-else")


def cut(farro: Program) -> None:
    (queued(farro) / "job.json").write_text('{"schema_ver')


def without_prompt(farro: Program) -> None:
    (queued(farro) / "prompt.json").unlink()


def dead_lock(farro: Program) -> None:
    (queued(farro) / "lock").symlink_to("worker.0.0123456789abcdef")


def left_in_staging(farro: Program) -> None:
    folder = farro.path / "jobs/.staging/job-x.0123456789abcdef"
    folder.mkdir()
    (folder / "prompt.json").write_text("{}")
    age(folder, 2)


def temporary_file(farro: Program) -> None:
    path = queued(farro) / ".tmp-0123456789abcdef"
    path.write_text("half")
    age(path, 1)


def stray(farro: Program) -> None:
    (farro.path / "agents/Runner/incoming/notes.txt").write_text("not a job")


def quarantined(farro: Program) -> None:
    folder = queued(farro)
    folder.rename(farro.path / "jobs/quarantine" / folder.name)


def wrong_schema(farro: Program) -> None:
    (farro.path / "schemas/plan.schema.json").write_text("{}")


def missing_schema(farro: Program) -> None:
    (farro.path / "schemas/task.schema.json").unlink()


def missing_policy(farro: Program) -> None:
    (farro.path / "agents/Architect/AGENTS-ROLE.md").unlink()


def unversioned_policy(farro: Program) -> None:
    (farro.path / "AGENTS.md").write_text("# Rules\n")


def missing_folder(farro: Program) -> None:
    (farro.path / "agents/Manager/incoming").rmdir()


def open_to_everybody(farro: Program) -> None:
    (farro.path / "agents/Runner/incoming").chmod(0o777)


def lock_of_an_older_farro(farro: Program) -> None:
    queued(farro)
    (farro.path / "logs/.audit.lock").chmod(0o644)


def torn_log(farro: Program) -> None:
    queued(farro)
    with open(farro.path / "logs/audit.log", "ab") as file:
        file.write(b'{"ts": "2026-')


def full_queue(farro: Program) -> None:
    config(farro, capacity={"roles": {"Runner": 2}})
    queued(farro)
    queued(farro)


TROUBLES: list[tuple[Callable[[Program], None], str, str]] = [
    (in_two_places, "jobs-in-two-places", "failed"),
    (contradicting, "jobs-contradict", "failed"),
    (named_wrong, "jobs-contradict", "failed"),
    (cut, "jobs-damaged", "failed"),
    (without_prompt, "jobs-damaged", "failed"),
    (dead_lock, "dead-locks", "warning"),
    (left_in_staging, "staging", "warning"),
    (temporary_file, "temporary-files", "warning"),
    (stray, "strays", "warning"),
    (quarantined, "quarantine", "warning"),
    (wrong_schema, "schemas", "failed"),
    (missing_schema, "schemas", "failed"),
    (missing_policy, "policies", "failed"),
    (unversioned_policy, "policies", "warning"),
    (missing_folder, "folders", "failed"),
    (open_to_everybody, "permissions", "warning"),
    (lock_of_an_older_farro, "permissions", "warning"),
    (torn_log, "audit-tail", "warning"),
    (full_queue, "caps", "warning"),
]


@pytest.mark.parametrize(("trouble", "check", "verdict"), TROUBLES, ids=lambda value: getattr(value, "__name__", value))
def test_every_trouble_is_found_and_its_repair_works(
    farro: Program, trouble: Callable[[Program], None], check: str, verdict: str
) -> None:
    assert examined(farro)[check]["verdict"] == "ok"
    trouble(farro)
    before = listing(farro.path)
    told = examined(farro, code=1 if verdict == "failed" else 0)[check]
    assert told["verdict"] == verdict, told
    assert listing(farro.path) == before  # doctor changes nothing
    repair(farro, told)
    assert examined(farro)[check]["verdict"] == "ok"


def test_wrong_config_is_reported_with_positions_and_other_checks_still_run(farro: Program) -> None:
    right = (farro.path / "agents-config.json").read_text()
    (farro.path / "agents-config.json").write_text('{"durability": "maybe", "retry": {"base_s": 0}}')
    found = examined(farro, code=1)
    assert found["config"]["verdict"] == "failed"
    assert any("agents-config.json:1:16: durability" in line for line in found["config"]["details"])
    assert found["folders"]["verdict"] == "ok"
    repair(farro, found["config"], writes(farro, "agents-config.json", right))
    assert examined(farro)["config"]["verdict"] == "ok"


@pytest.mark.parametrize(
    ("changes", "check", "verdict"),
    [
        ({"strict": False}, "config-strict", "warning"),
        ({"strict": False, "colour": "red"}, "config", "warning"),
        ({"watchdog": {"stale_after_s": 60, "abandon_after_s": 30}}, "watchdog-thresholds", "warning"),
        ({"retry": {"base_s": 2}}, "backoff", "warning"),
        ({"audit": {"keep": 1}}, "audit-rotation", "warning"),
        ({"audit": {"max_bytes": 1000, "quota_bytes": 100}}, "audit-rotation", "warning"),
        ({"capacity": {"role_cap": 0}}, "caps", "warning"),
        ({"allow_cross_volume": True}, "same-device", "warning"),
        ({"tools": {"say": {"command": "no-such-program"}}}, "programs", "failed"),
        ({"providers": {name: {"kind": "scripted", "file": name} for name in "ab"}}, "agents-contract", "failed"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)  # fmt: skip
def test_bad_config_values_are_found_and_repaired_in_an_editor(
    farro: Program, changes: dict[str, Any], check: str, verdict: str
) -> None:
    right = config(farro, **changes)
    told = examined(farro)[check]
    assert told["verdict"] == verdict, told
    repair(farro, told, writes(farro, "agents-config.json", right))
    assert examined(farro)[check]["verdict"] == "ok"


def test_problems_of_tasks_and_schedules_are_reported_with_positions(farro: Program) -> None:
    (farro.path / "tasks/task-1.json").write_text('{"id": "task-2", "title": "x", "workflow": []}')
    (farro.path / "schedules").mkdir()
    (farro.path / "schedules/nightly.json").write_text('{"cron": "99 * * * *", "plan": {"steps": []}}')
    found = examined(farro, code=1)
    assert found["tasks"]["details"][0].startswith("tasks/task-1.json:1:")
    assert found["schedules"]["details"][0].startswith("schedules/nightly.json:1:")
    assert found["schedules"]["repair"] == [f'"${{EDITOR:-vi}}" {farro.path}/schedules/nightly.json']


def test_policy_with_a_wrong_header_is_reported(farro: Program) -> None:
    path = farro.path / "agents/Architect/AGENTS-ROLE.md"
    right = path.read_text()
    path.write_text("---\nversion: one\n---\n")
    told = examined(farro, code=1)["policies"]
    assert "AGENTS-ROLE.md:2:1" in told["details"][0]
    repair(farro, told, writes(farro, "agents/Architect/AGENTS-ROLE.md", right))
    assert examined(farro)["policies"]["verdict"] == "ok"


def test_provider_programs_and_secrets_are_checked_and_no_value_is_printed(farro: Program) -> None:
    config(
        farro,
        providers={
            "claude": {"kind": "cli", "command": ["claude", "-p"], "environment": ["ANTHROPIC_API_KEY"]},
            "openai": {"api_key": "${DOCTORS_KEY}", "model": "gpt-5"},
        },
        roles={role: {"provider": "claude"} for role in ("SeniorEngineer", "JuniorEngineer", "Architect")}
        | {role: {"provider": "openai"} for role in ("CodeReviewer", "DocWriter")},
    )
    farro.env["PATH"] = f"{os.path.dirname(FARRO)}:/usr/bin:/bin"
    farro.env.pop("ANTHROPIC_API_KEY", None)
    done = farro.run("doctor", "--json", code=1)
    found = {told["id"]: told for told in done.json["checks"]}
    assert found["agents-contract"]["verdict"] == "ok"
    assert found["libraries"]["verdict"] == "ok"
    assert found["programs"]["repair"] == ["npm install --global @anthropic-ai/claude-code"]
    assert found["secrets"]["verdict"] == "failed"
    assert found["secrets"]["repair"] == ["read -rs DOCTORS_KEY && export DOCTORS_KEY"]
    farro.env["DOCTORS_KEY"] = "sk-do-not-tell"
    done = farro.run("doctor", "--json")
    assert "sk-do-not-tell" not in done.out
    assert {told["id"]: told["verdict"] for told in done.json["checks"]}["secrets"] == "ok"


def test_a_whole_network_is_a_warning_and_listed_hosts_are_not(farro: Program) -> None:
    provider = {"kind": "cli", "command": ["true"], "network": ["index.example:443"]}
    config(farro, providers={"agent": provider})
    found = examined(farro, code=0)["network"]
    assert (found["verdict"], found["found"]) == ("ok", "providers.agent.network: listed hosts only")
    config(farro, providers={"agent": {**provider, "network": True}}, roles={"Architect": {"network": True}})
    found = examined(farro, code=0)["network"]
    assert found["verdict"] == "warning"
    assert found["found"] == "providers.agent.network, roles.Architect.network: true"


def test_missing_sandbox_is_a_warning_and_a_failure_where_required(farro: Program) -> None:
    config(farro, security={"sandbox": "none"})
    told = examined(farro, code=0)["sandbox"]
    assert told["verdict"] == "warning"
    assert told["details"]  # the guarantees that are lost
    config(farro, security={"sandbox": "none", "require_sandbox": True})
    assert examined(farro, code=1)["sandbox"]["verdict"] == "failed"


def test_unwritable_root_is_reported_without_a_traceback(farro: Program) -> None:
    folder = farro.path / "jobs"
    folder.chmod(0o500)
    done = farro.run("doctor", "--json", prefix=unprivileged(), code=1)
    found = {told["id"]: told for told in done.json["checks"]}
    for name in ("permissions", "rename-exclusive"):
        assert found[name]["verdict"] == "failed"
        assert found[name]["repair"] == [f'sudo chown -R "$(id -u):$(id -g)" {farro.path}']
    folder.chmod(0o700)
    (farro.path / "logs").chmod(0o500)
    done = farro.run("doctor", "--json", prefix=unprivileged(), code=1)
    assert {told["id"]: told["verdict"] for told in done.json["checks"]}["audit-probe"] == "failed"
    (farro.path / "logs").chmod(0o700)
    assert examined(farro)["permissions"]["verdict"] == "ok"


def test_jobs_of_another_version_are_reported_and_left_alone(farro: Program) -> None:
    rewrite(queued(farro), schema_version="9.0.0")
    told = examined(farro, code=0)["jobs-foreign"]
    assert told["verdict"] == "warning"
    assert "9.0.0" in told["details"][0]
    assert "--upgrade farro" in told["repair"][0]


def test_a_dead_worker_is_found_and_its_job_recovered(farro: Program) -> None:
    job = farro.enqueue(endless())
    worker = farro.start("worker")
    eventually((farro.path / "started").exists, "the step did not start")
    assert examined(farro)["dead-agents"]["verdict"] == "ok"
    worker.kill()
    told = examined(farro)["dead-agents"]
    assert told["verdict"] == "warning"
    repair(farro, told)
    assert examined(farro)["dead-agents"]["verdict"] == "ok"
    assert farro.status(job) == "queued"


def test_old_manager_heartbeat_is_reported(farro: Program) -> None:
    assert examined(farro)["manager-heartbeat"]["verdict"] == "ok"
    sign = farro.path / "agents/Manager/.heartbeat"
    sign.write_text("")
    assert examined(farro)["manager-heartbeat"]["verdict"] == "ok"
    age(sign, 1)
    told = examined(farro)["manager-heartbeat"]
    assert told["verdict"] == "warning"
    assert told["repair"] == ["farro start"]


def test_stale_job_without_a_manager_is_reported(farro: Program) -> None:
    folder = queued(farro)
    rewrite(folder, status="stale")
    folder.rename(farro.path / "jobs/stale" / folder.name)
    told = examined(farro)["manager-heartbeat"]
    assert told["verdict"] == "warning"
    repair(farro, told)
    assert examined(farro)["manager-heartbeat"]["verdict"] == "ok"


def test_a_clock_behind_the_newest_job_is_a_failure(farro: Program) -> None:
    age(farro.path / "agents/Runner/incoming", -1)
    told = examined(farro, code=1)["clock"]
    assert told["verdict"] == "failed"
    assert told["repair"] == ["timedatectl set-ntp true"]


def test_low_disk_space_fails_before_steps_are_ended(farro: Program) -> None:
    config(farro, security={"min_free_bytes": 1 << 60})
    told = examined(farro, code=1)["disk-space"]
    assert told["verdict"] == "failed"
    repair(farro, told)  # it removes what it can; the disk may still be too full


def test_audit_log_beyond_its_quota_is_reported(farro: Program) -> None:
    config(farro, audit={"max_bytes": 1000, "quota_bytes": 2000})
    (farro.path / "logs/audit.log.1").write_text("{}\n" * 2000)
    told = examined(farro)["audit-size"]
    assert told["verdict"] == "warning"
    repair(farro, told)
    assert examined(farro)["audit-size"]["verdict"] == "ok"


def test_invalid_last_line_of_the_audit_log_is_reported(farro: Program) -> None:
    (farro.path / "logs/audit.log").write_text("hello\n")
    assert examined(farro)["audit-tail"]["found"] == "the last line is not an event"


def test_missing_log_folder_is_reported_and_repaired(farro: Program) -> None:
    (farro.path / "logs").rmdir()
    found = examined(farro, code=1)
    assert found["audit-probe"]["verdict"] == "failed"
    repair(farro, found["audit-probe"])
    assert examined(farro)["audit-probe"]["verdict"] == "ok"


def test_a_live_queue_has_no_contradictions(farro: Program) -> None:
    for _ in range(60):
        queued(farro)
    worker = farro.start("worker", "--drain", "--workers", "4").started()
    while worker.process.poll() is None:
        wrong = {name: told for name, told in examined(farro).items() if told["verdict"] == "failed"}
        assert not wrong
    assert worker.ended().code == 0


def test_doctor_opens_a_sample_of_finished_jobs_unless_asked_for_all(farro: Program) -> None:
    from farro.app.checks import read_only_context
    from farro.store.files.scan import scan

    for _ in range(3):
        queued(farro)
    farro.worked()
    found = scan(read_only_context(str(farro.path)), finished=1)
    assert (found.jobs, found.unread) == (3, 2)
    assert scan(read_only_context(str(farro.path)), finished=None).unread == 0
    assert examined(farro, "--all", code=0)["jobs-seen"]["found"] == "3 jobs looked at"


# --- daemons that start strictly ---


@pytest.mark.parametrize("daemon", ["worker", "manager", "watchdog", "scheduler"])
def test_strict_daemon_refuses_to_start_and_names_the_repair(farro: Program, daemon: str) -> None:
    config(farro, durability="process")
    (farro.path / "agents/Runner/incoming").chmod(0o777)
    done = farro.run(daemon, "--strict", code=3)
    assert "permissions" in done.err
    assert f"chmod o-w {farro.path}/agents/Runner/incoming" in done.err


def test_strict_start_from_the_config_still_allows_once(farro: Program) -> None:
    config(farro, durability="process", strict_start=True)
    incoming = farro.path / "agents/Runner/incoming"
    job = farro.enqueue(shell("true"))
    incoming.chmod(0o777)
    farro.run("worker", "--drain", code=3)
    farro.run("watchdog", "--once", code=0)  # repairs use --once
    repair(farro, examined(farro)["permissions"])
    assert not stat.S_IMODE(incoming.stat().st_mode) & stat.S_IWOTH
    farro.worked()
    assert farro.status(job) == "succeeded"


@pytest.mark.parametrize("program", ["agentd", "managerd", "watchdogd", "farro up", "farro start"])
def test_no_daemon_starts_where_a_gate_fails(farro: Program, program: str) -> None:
    """SPEC-1 3.2: doctor must pass before daemon startup."""
    schema = farro.path / "schemas/prompt.schema.json"
    schema.write_text("{")
    name, *words = program.split()
    path = os.path.join(os.path.dirname(sys.executable), name)
    done = subprocess.run([path, *words], cwd=farro.path, env=farro.env, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "does not start: doctor finds\n" in done.stderr
    assert f"schemas: {schema} is no schema; repair: rm {schema} && farro init" in done.stderr
    schema.unlink()
    farro.run("init", code=0)
    assert farro.run("worker", "--drain", code=0)


def test_no_checks_starts_all_the_same_and_is_audited(farro: Program) -> None:
    job = farro.enqueue(shell("true"))
    (farro.path / "schemas/agents-config.schema.json").unlink()
    assert "agents-config.schema.json is missing" in farro.run("worker", "--drain", code=3).err
    farro.run("worker", "--drain", "--no-checks", code=0)
    assert farro.status(job) == "succeeded"
    lines = [json.loads(line) for line in (farro.path / "logs/audit.log").read_text().splitlines()]
    assert [line["service"] for line in lines if line["event"] == "checks_skipped"] == ["worker/Runner"]


def test_a_log_folder_that_is_none_stops_daemons(farro: Program) -> None:
    (farro.path / "logs").rmdir()
    (farro.path / "logs").write_text("in the way")
    assert f"log-folder: {farro.path}/logs is no folder; repair: mv " in farro.run("manager", code=3).err


def test_daemon_without_strict_starts_despite_a_warning(farro: Program) -> None:
    (farro.path / "agents/Runner/incoming").chmod(0o777)
    done: Done = farro.run("worker", "--drain", code=0)
    assert "permissions" not in done.err
