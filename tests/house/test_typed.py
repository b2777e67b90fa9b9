"""Check the types of the Python API as a user's type checker sees them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support import ROOT

PROGRAM = """
from datetime import timedelta
import farro

@farro.task
def plain(number: int, text: str = "") -> list[int]:
    return [number]

@farro.task(timeout="5m", retries=2)
async def later(number: int) -> str:
    return "x"

reveal_type(plain(1))  # builtins.list[builtins.int]
reveal_type(plain.delay(1, text="x"))  # farro.api.job.Job[builtins.list[builtins.int]]
reveal_type(later.delay(1).result())  # builtins.str
reveal_type(plain.options(delay=timedelta(hours=1)).delay(1).result(timeout=5))  # builtins.list[builtins.int]
with farro.open() as queue:
    reveal_type(queue.enqueue(plain.call(1), after="a"))  # farro.api.job.Job[builtins.list[builtins.int]]
    reveal_type(queue.enqueue(["make", "test"]).wait().status)  # builtins.str
    queue.enqueue_many(plain.call(number) for number in range(3))
plain.delay("x")  # error
plain.delay()  # error
queue.enqueue(7)  # error
"""


def test_a_type_checker_knows_the_arguments_and_result_of_a_task(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    lines: dict[int, str] = {}
    for number, told in re.findall(r"program\.py:(\d+): (.*)", done.stdout):
        lines.setdefault(int(number), told)  # only the first message of each line: notes follow an error
    for number, line in enumerate(PROGRAM.splitlines(), start=1):
        wanted = line.partition("  # ")[2]
        if wanted == "error":
            assert "error:" in lines.get(number, ""), f"{line}\n{done.stdout}"
        elif wanted:
            revealed = lines.get(number, "").replace("builtins.", "")
            assert f'"{wanted.replace("builtins.", "")}"' in revealed, f"{line}\n{done.stdout}"
        else:
            assert number not in lines, done.stdout
