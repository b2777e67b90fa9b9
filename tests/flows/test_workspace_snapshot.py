"""`farro enqueue --workspace-snapshot`: the tracked files and the diff come with the job (SPEC-1, could-have)."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path

from flows.program import Program
from flows.test_agents import PROMPT


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, check=True, text=True).stdout


def repository(farro: Program) -> Path:
    git(farro.path, "init", "-q")
    (farro.path / "src").mkdir(exist_ok=True)
    (farro.path / "src/run.sh").write_text("echo committed\n")
    (farro.path / "src/run.sh").chmod(0o755)
    (farro.path / "src/link").symlink_to("run.sh")
    (farro.path / "gone.txt").write_text("x\n")
    git(farro.path, "add", "src", "gone.txt")
    git(farro.path, "commit", "-q", "-m", "first")
    (farro.path / "src/run.sh").write_text("echo changed\n")
    (farro.path / "gone.txt").unlink()
    (farro.path / ".env").write_text("KEY=secret\n")
    return farro.path


def test_a_job_may_be_reproduced_from_its_workspace_snapshot(farro: Program, tmp_path: Path) -> None:
    path = repository(farro)
    job = farro.run("enqueue", "--workspace-snapshot", "--", "true", code=0).out.strip()
    (path / "src/run.sh").write_text("echo later\n")
    payload = farro.folder(job) / "payload"
    with tarfile.open(payload / "workspace.tar") as tar:
        assert tar.getnames() == ["src/link", "src/run.sh"], "tracked files that are there, and no others"
        tar.extractall(tmp_path, filter="data")
    told = subprocess.run(["sh", tmp_path / "src/link"], capture_output=True, check=True, text=True)
    assert told.stdout == "changed\n"
    assert (tmp_path / "src/run.sh").stat().st_mode & 0o100
    git(path, "stash", "-q")
    git(path, "apply", str(payload / "workspace.diff"))
    assert (path / "src/run.sh").read_text() == "echo changed\n"
    assert not (path / "gone.txt").exists()
    farro.worked()
    assert farro.status(job) == "succeeded"


def test_an_agents_job_may_have_one_and_the_cap_holds(farro: Program) -> None:
    path = repository(farro)
    (path / "prompt.json").write_text(json.dumps(PROMPT))
    config = path / "agents-config.json"
    whole = json.loads(config.read_text())
    config.write_text(json.dumps({**whole, "providers": {"file": {"kind": "scripted", "file": "answers.json"}}}))
    args = ("enqueue", "--workspace-snapshot", "--prompt-json", "prompt.json")
    job = farro.run(*args, code=0).out.strip()
    assert {file.name for file in (farro.folder(job) / "payload").iterdir()} == {"workspace.tar", "workspace.diff"}
    security = {**whole["security"], "max_job_bytes": 5000}
    config.write_text(json.dumps({**json.loads(config.read_text()), "security": security}))
    assert "is too large" in farro.run(*args, code=3).err


def test_a_folder_that_is_no_repository_is_refused(farro: Program) -> None:
    done = farro.run("enqueue", "--workspace-snapshot", "--", "true", code=2)
    assert "cannot be attached: git ls-files: " in done.err
    assert farro.run("ls", "--json", code=0).json["jobs"] == []
