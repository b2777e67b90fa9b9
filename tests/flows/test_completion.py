"""Tab completion: by the protocol of the shells, and in a real bash."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping

import pytest
from click.shell_completion import get_completion_class

from farro.app import App
from farro.cli import main, plain_completion
from flows.program import FARRO, Program, steps
from support import need


def offered(farro: Program, line: str, env: Mapping[str, str] | None = None, *, kind: str = "plain") -> list[str]:
    """Return the completions at the end of `line`; kinds `file` and `dir` are completed by the shell itself."""
    words = line.split(" ")
    asked = {"_FARRO_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = farro.run(env={**asked, **(env or {})}, code=0)
    assert done.err == ""
    return [row.split(",", 1)[1] for row in done.out.split() if row.startswith(f"{kind},")]


def test_commands_and_options_are_offered(farro: Program) -> None:
    assert {"ls", "show", "enqueue", "schedules"} <= set(offered(farro, "farro "))
    assert offered(farro, "farro sho") == ["show"]
    assert offered(farro, "farro --h") == ["--help"]
    assert offered(farro, "farro ls --sta") == ["--status", "--state"]
    assert "stale" in offered(farro, "farro ls --status ")
    assert offered(farro, "farro schedules c") == ["check"]
    offered(farro, "farro nonsense ")  # no error


def test_jobs_roles_and_schedules_are_offered(farro: Program) -> None:
    farro.enqueue(steps(("true",)), "--id", "first")
    farro.enqueue(steps(("true",)), "--id", "finished")
    farro.worked()
    farro.enqueue(steps(("true",)), "--id", "fresh")
    assert set(offered(farro, "farro show f")) == {"fresh", "finished", "first"}
    assert offered(farro, "farro show f")[0] == "fresh", "unfinished jobs come first"
    assert offered(farro, "farro kill fr") == ["fresh"]
    farro.call("enqueue", "--after", "fresh", "--id", "waiting", "--", "true", code=0)
    assert offered(farro, "farro explain wai") == ["waiting"]
    assert offered(farro, "farro enqueue --after fr") == ["fresh"]
    assert offered(farro, "farro worker --role Ru") == ["Runner"]
    (farro.path / "schedules").mkdir()
    (farro.path / "schedules" / "nightly.json").write_text("{}")
    assert offered(farro, "farro schedules run ") == ["nightly"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_plain_line_is_completed_as_click_completes_it(
    farro: Program, shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        farro.enqueue(steps(("true",)), "--id", f"job-{number}")
    farro.call("job", "create", "nightly", "--tasks", "-", stdin='[{"id": "a", "command": "true"}]', code=0)
    monkeypatch.setenv("FARRO_ROOT", str(farro.path))
    monkeypatch.setenv("_FARRO_COMPLETE", f"{shell}_complete")
    asked = [([], ""), ([], "s"), ([], "nothing")]
    asked += [([command], begun) for command in sorted(plain_completion.OF_A_JOB) for begun in ("", "job-1", "n")]
    for before, begun in asked:
        cursor = begun if shell == "fish" else str(len(before) + 1)
        monkeypatch.setenv("COMP_WORDS", " ".join(["farro", *before, begun]))
        monkeypatch.setenv("COMP_CWORD", cursor)
        assert plain_completion.run() == 0
        plain = capsys.readouterr().out
        program = get_completion_class(shell)
        assert program is not None
        by_click = program(main.farro, {"obj": App()}, "farro", "_FARRO_COMPLETE").complete()
        assert sorted(plain.splitlines()) == sorted(f"{by_click}\n".splitlines()), (before, begun)


@pytest.mark.parametrize("line", ["farro --h", "farro ls --sta", "farro 'show ", "farro show a b", "farro run "])
def test_a_line_that_is_not_plain_is_left_to_click(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_FARRO_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    assert plain_completion.run() is None


def test_names_of_jobs_are_offered(farro: Program) -> None:
    farro.call("job", "create", "nightly", "--tasks", "-", stdin='[{"id": "a", "command": "true"}]', code=0)
    assert offered(farro, "farro status --job n") == ["nightly"]
    assert offered(farro, "farro show n") == ["nightly"]
    assert offered(farro, "farro job create n") == []


def test_swarm_names_are_completed_for_swarm_arguments(farro: Program) -> None:
    (farro.path / "schedules").mkdir()
    (farro.path / "schedules" / "nightly.json").write_text("{}")
    for folder, name in (("demo", "desired.json"), ("orchestrator", "about.json")):
        (farro.path / "swarms" / folder).mkdir(parents=True)
        (farro.path / "swarms" / folder / name).write_text("{}")
    assert offered(farro, "farro swarm start ") == ["demo"]
    assert offered(farro, "farro swarm status ") == ["demo"]
    assert offered(farro, "farro swarm create ") == []
    assert offered(farro, "farro agx new ") == []


def test_files_and_folders_are_left_to_the_shell(farro: Program) -> None:
    farro.enqueue(steps(("true",)), "--id", "fresh")
    for line in (
        "swarm apply ",
        "enqueue --prompt-json ",
        "enqueue ",
        "edit --file ",
        "agx submit --input ",
        "up --plan ",
    ):
        assert offered(farro, f"farro {line}fr", kind="file") == ["fr"], line
    assert offered(farro, "farro run --cwd fr", kind="dir") == ["fr"]
    assert offered(farro, "farro plan show fr") == ["fresh"]
    assert offered(farro, "farro plan show fr", kind="file") == ["fr"]


def test_number_of_completions_is_limited(farro: Program) -> None:
    many = "\n".join(json.dumps({**steps(("true",)), "id": f"job{number}"}) for number in range(300))
    farro.call("enqueue", "--many", "-", stdin=many, code=0)
    assert len(offered(farro, "farro show ")) == 200


def test_completion_without_a_root_is_empty_and_silent(empty: Program) -> None:
    assert offered(empty, "farro show ") == []
    assert offered(empty, "farro show --root /nowhere ") == []


def test_jobs_of_the_personal_root_are_offered_without_another_root(empty: Program) -> None:
    empty.run("run", "--id", "mine", "--", "true", code=0)
    assert offered(empty, "farro show m") == ["mine"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_printed_for_each_shell(farro: Program, shell: str) -> None:
    script = farro.call("completion", shell, code=0).out
    assert f"_FARRO_COMPLETE={shell}_complete" in script
    assert farro.call("completion", shell, "--json", code=0).json["script"] in script
    assert "tcsh" not in farro.call("completion", "tcsh", code=2).out


def test_completion_works_in_a_real_bash(farro: Program) -> None:
    farro.enqueue(steps(("true",)), "--id", "only-one")
    script = (
        'eval "$(farro completion bash)"; '
        "complete -p farro; "
        "COMP_WORDS=(farro show on); COMP_CWORD=2; _farro_completion farro on show; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [need("bash"), "--norc", "-c", script],
        cwd=farro.path,
        env={**farro.env, "PATH": f"{os.path.dirname(FARRO)}:{farro.env['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_farro_completion" in done.stdout.splitlines()[0]
    assert done.stdout.splitlines()[1:] == ["only-one"]
    assert done.stderr == ""
