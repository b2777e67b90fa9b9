"""Four agents without a model: each reads its prompt, does its work on this repository for real, and answers in JSON.

What they may write is not their matter: farro's sandbox keeps each to its allowed paths. In your own repository a
provider of the kind cli names another program here, such as claude, codex or gemini.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

SHOP, TESTS, CHANGES = "src/shop.py", "tests/test_shop.py", "CHANGELOG.md"
USD_PER_TOKEN = 2e-6  # pretended, so that there is a cost to look at; a token is four characters
GUARD = """    if not 0 <= discount <= 100:
        raise ValueError(f"a discount is between 0 and 100 percent, not {discount}")
"""
GUARDED = """
    def test_a_discount_beyond_all_is_refused(self) -> None:
        for discount in (-1, 101):
            with self.assertRaises(ValueError):
                total([10.0], discount)
"""


def architect(prompt: str) -> dict[str, Any]:
    passed, said = run_tests()
    failing = re.findall(r"^(?:FAIL|ERROR): (\w+)", said, re.MULTILINE)
    number, line = line_of(SHOP, "return ")
    return {
        "analysis": (
            f"{len(failing)} of the tests fails: {', '.join(failing)}. {SHOP}:{number} takes the discount off as an "
            f"amount: `{line.strip()}`. Plan: multiply by what is left of 100 percent there, and nowhere else."
            if not passed
            else "All tests pass already."
        )
    }


def engineer(prompt: str) -> dict[str, Any]:
    if "# What has to change" in prompt:
        text = read(SHOP)
        if GUARD not in text:
            number, _ = line_of(SHOP, "return ")
            lines = text.splitlines(keepends=True)
            write(SHOP, "".join([*lines[: number - 1], GUARD, *lines[number - 1 :]]))
        tests = read(TESTS)
        if GUARDED not in tests:
            write(TESTS, tests.replace("\n\nif __name__", f"{GUARDED}\n\nif __name__"))
        done = "A discount outside of 0 to 100 percent is refused now, and a test asks for it."
    else:
        write(SHOP, read(SHOP).replace("sum(prices) - discount", "sum(prices) * (1 - discount / 100)"))
        done = "The discount is a percentage now."
    passed, said = run_tests()
    if not passed:
        sys.exit(f"the tests still fail:\n{said}")
    return {"summary": done, "tests": said.strip().splitlines()[-3]}


def reviewer(prompt: str) -> dict[str, Any]:
    passed, said = run_tests()
    if not passed:
        return {"verdict": "changes_requested", "findings": [{"message": f"the tests fail:\n{said}"}]}
    tried = python("-c", "from shop import total; print(total([10.0], 150))")
    if tried.returncode == 0:
        number, _ = line_of(SHOP, "return ")
        message = (
            f"total([10.0], 150) is {tried.stdout.strip()}: with 150 percent off the shop pays its customers. Refuse "
            "it, and test that."
        )
        finding = {"path": SHOP, "line": number, "severity": "major", "message": message}
        return {"verdict": "changes_requested", "findings": [finding]}
    return {"verdict": "approve", "summary": f"{said.strip().splitlines()[-3]}; and 150 percent off is refused."}


def writer(prompt: str) -> dict[str, Any]:
    lines = (
        "- A discount is a percentage: 10 off 40.00 is 36.00, and no longer 30.00.\n"
        "- A discount below 0 or above 100 percent is refused.\n"
    )
    text = read(CHANGES)
    if lines not in text:
        write(CHANGES, text.replace("## Unreleased\n", f"## Unreleased\n\n{lines}"))
    return {"summary": "Two lines under Unreleased.", "documents": [{"path": CHANGES}]}


AGENTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "architect": architect,
    "engineer": engineer,
    "reviewer": reviewer,
    "writer": writer,
}


def run_tests() -> tuple[bool, str]:
    done = python("-m", "unittest", "discover", "-s", "tests")
    return done.returncode == 0, done.stderr


def python(*words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": "src", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=False)


def line_of(path: str, what: str) -> tuple[int, str]:
    return next((number, line) for number, line in enumerate(read(path).splitlines(), 1) if what in line)


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    asked = sys.stdin.read()
    answer = json.dumps(AGENTS[sys.argv[1]](asked))
    print(json.dumps({"result": answer, "cost_usd": round((len(asked) + len(answer)) / 4 * USD_PER_TOKEN, 6)}))
