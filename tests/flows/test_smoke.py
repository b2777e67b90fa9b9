"""The gates of SPEC-1 D: the smoke test that CI runs first, in both languages, and the workflow that runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from farro.cli.commands import COMMANDS
from farro.doctor.schemas import schemas
from flows.program import FARRO, PATIENCE_S, Program
from support import ROOT

WORKFLOW = Path(ROOT, ".github", "workflows", "farro-ci.yml")
POWERSHELL = Path(ROOT, "scripts", "smoke.ps1").read_text(encoding="utf-8")


def smoke(empty: Program, **env: str) -> subprocess.CompletedProcess[str]:
    (empty.path / "tmp").mkdir(exist_ok=True)
    return subprocess.run(
        ["bash", f"{ROOT}/scripts/smoke.sh"],
        env={
            **empty.env,
            "FARRO": FARRO,
            "TMPDIR": str(empty.path / "tmp"),
            "SMOKE_LOGS": str(empty.path / "kept"),
            **env,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def test_one_job_completes_and_nothing_stays_behind(empty: Program) -> None:
    done = smoke(empty)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "smoke: it completed"
    assert list((empty.path / "tmp").iterdir()) == []
    assert not (empty.path / "kept").exists()
    assert empty.living() == []


def test_failed_smoke_test_keeps_the_logs(empty: Program) -> None:
    """Use a program whose worker ends at once, so that the smoke test waits in vain."""
    broken = empty.path / "farro"
    broken.write_text(
        '#!/bin/sh\ncase "$1" in\n  worker) echo "no worker today"; exit 1;;\n  wait) exit 1;;\nesac\n'
        f'exec {FARRO} "$@"\n'
    )
    broken.chmod(0o755)
    done = smoke(empty, FARRO=str(broken))
    assert done.returncode == 1
    assert "smoke: failed; the logs are in" in done.stderr
    assert "smoke (queued)" in done.stderr  # farro explain
    assert (empty.path / "kept" / "worker.log").read_text() == "no worker today\n"
    assert {"audit.log", "manager.log", "jobs.json", "history.txt"} <= {
        file.name for file in (empty.path / "kept").iterdir()
    }
    assert list((empty.path / "tmp").iterdir()) == []
    assert empty.living() == []


# --- Windows: parsed, not run


def test_the_script_for_windows_parses() -> None:
    """Parse it with PowerShell if installed; otherwise check that brackets and quotes are closed."""
    pwsh = shutil.which("pwsh")
    if pwsh is not None:
        check = (
            "$errors = $null; [void][System.Management.Automation.Language.Parser]::ParseFile("
            "$args[0], [ref]$null, [ref]$errors); exit $errors.Count"
        )
        subprocess.run([pwsh, "-NoProfile", "-Command", check, f"{ROOT}/scripts/smoke.ps1"], check=True)
    code = re.sub(r"'[^'\n]*'|\"[^\"\n]*\"|#[^\n]*", "", POWERSHELL)
    assert "'" not in code
    assert '"' not in code
    open_ones: list[str] = []
    pairs = {")": "(", "]": "[", "}": "{"}
    for letter in code:
        if letter in pairs.values():
            open_ones.append(letter)
        elif letter in pairs:
            assert open_ones.pop() == pairs[letter]
    assert open_ones == []


def test_both_scripts_do_the_same_with_commands_that_exist() -> None:
    shell = Path(ROOT, "scripts", "smoke.sh").read_text(encoding="utf-8")
    in_shell = re.findall(r'"\$farro" ([a-z]+)', shell)
    in_powershell = re.findall(r"(?:Invoke-Farro|& \$farro|Start-Farro '[a-z]+' @\(')\s*([a-z]+)", POWERSHELL)
    for name in {*in_shell, *in_powershell} - {"doctor"}:
        assert name in COMMANDS
    assert {"init", "manager", "worker", "enqueue", "wait", "stats", "doctor"} <= set(in_powershell) & set(in_shell)
    for file in ("prompt.json", "answers.json", "agents-config.json"):
        assert file in shell
        assert file in POWERSHELL


# --- the schemas and the workflow


@pytest.mark.parametrize("name", sorted(schemas()))
def test_schemas_of_the_repository_are_valid(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(Path(ROOT, "schemas", name).read_text(encoding="utf-8")))


def jobs() -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    return found


def test_workflow_has_the_required_gates_and_matrix() -> None:
    assert {job["runs-on"] for job in jobs().values()} == {"ubuntu-latest", "windows-latest"}
    for name, job in jobs().items():
        assert job["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
        steps = {step.get("name"): str(step.get("run", "")) for step in job["steps"]}
        for gate, runs in (("doctor", "farro doctor"), ("schemas", "test_schemas"), ("smoke", "scripts/smoke.")):
            assert runs in steps[f"Gate, {gate}"]
        assert job.get("continue-on-error", False) == (name == "windows")  # Windows: written for, untested


def test_logs_are_uploaded_on_failure_only() -> None:
    for job in jobs().values():
        uploads = [step for step in job["steps"] if "upload-artifact" in str(step.get("uses"))]
        assert uploads
        for step in uploads:
            assert step["if"] == "failure()"
            assert ".build/smoke/" in step["with"]["path"]
    assert not any(step.get("continue-on-error") for step in jobs()["linux"]["steps"])


def test_ci_runs_what_make_test_runs() -> None:
    assert any(".ci/run" in str(step.get("run")) for step in jobs()["linux"]["steps"])
    assert os.access(f"{ROOT}/.ci/run", os.X_OK)
