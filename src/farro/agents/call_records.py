"""Record the answer of each call of an agent step in the attempt's folder: `steps/<id>/calls/<n>.json`.

Costs are in the ledger; this is the answer itself. It is written before the call is settled and before the step writes
anything: if the worker dies in between, the next attempt finds the answer and does not ask again.
[test_a_recorded_answer_is_not_asked_again_and_its_diff_is_kept]
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from farro.agents.providers.port import Answer, Usage
from farro.execution.confined import TMP
from farro.host import fs, links, trees
from farro.lazy_dataclass import dataclass

_LIMIT = 64 << 20
DIFF = "diff.patch"  # in the step's folder
_OF_PROGRAM = ("session_id", "denied", "files")  # of an Answer; the answers of other providers have none


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedAnswer:
    """An answer with the digest of its question and its id in the ledger."""

    request_sha256: str
    call_id: str
    provider: str
    model: str | None  # the model that was asked for
    answer: Answer
    asked: str = ""  # the whole question

    def to_json(self) -> dict[str, Any]:
        answer = self.answer
        return {
            "request_sha256": self.request_sha256,
            "call_id": self.call_id,
            "provider": self.provider,
            "asked_model": self.model,
            "model": answer.model,
            "whole": answer.whole,
            "usage": None if answer.usage is None else answer.usage.to_json(),
            "cost_usd": None if answer.cost_usd is None else str(answer.cost_usd),
            "text": answer.text,
            "asked": self.asked,
            **{name: getattr(answer, name) for name in _OF_PROGRAM if getattr(answer, name)},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecordedAnswer:
        usage, cost = data["usage"], data["cost_usd"]
        return cls(
            request_sha256=data["request_sha256"],
            call_id=data["call_id"],
            provider=data["provider"],
            model=data["asked_model"],
            answer=Answer(
                text=data["text"],
                model=data["model"],
                whole=data["whole"],
                usage=None if usage is None else Usage(**usage),
                cost_usd=None if cost is None else Decimal(cost),
                session_id=data.get("session_id"),
                denied=tuple(data.get("denied", ())),
                files=tuple(data.get("files", ())),
            ),
            asked=data["asked"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerFolder:
    """The recorded answers of one step in one attempt."""

    attempt_dir: str
    step: str
    durable: bool

    @property
    def folder(self) -> str:
        return f"{self.attempt_dir}/steps/{self.step}/calls"

    def keep(self, number: int, recorded: RecordedAnswer) -> None:
        """Write the answer to the disk before anything depends on it."""
        self.make_folder()
        text = json.dumps(recorded.to_json(), ensure_ascii=False, indent=1).encode("utf-8", "backslashreplace")
        fs.write_atomic(f"{self.folder}/{number}.json", text + b"\n", sync=self.durable)
        if self.durable:
            step = f"{self.attempt_dir}/steps/{self.step}"
            fs.sync_all([self.folder, step, f"{self.attempt_dir}/steps", self.attempt_dir])

    def keep_diff(self, diff: bytes) -> None:
        """Write what the program of the last call changed. The caller has removed secrets from it."""
        fs.write_atomic(f"{self.attempt_dir}/steps/{self.step}/{DIFF}", diff, sync=self.durable)

    def take_over(self, step_folder: str) -> None:
        """Link the diff that came with an answer of an earlier attempt."""
        if fs.exists(f"{step_folder}/{DIFF}"):
            self.forget_diff()
            links.place(f"{step_folder}/{DIFF}", f"{self.attempt_dir}/steps/{self.step}/{DIFF}")

    def forget_diff(self) -> None:
        """Remove the diff of an earlier try of this step."""
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(f"{self.attempt_dir}/steps/{self.step}/{DIFF}")

    def make_folder(self) -> None:
        step = f"{self.attempt_dir}/steps/{self.step}"
        for path in (f"{self.attempt_dir}/steps", step, self.folder):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(path)


def answers_of_earlier_attempts(earlier: Sequence[str], step: str) -> dict[str, tuple[RecordedAnswer, str]]:
    """Return the answers of the same step in earlier attempts, each with its step folder, by the question's digest.

    Answers of an attempt that failed are left out: it failed because of them, so they are asked again.
    """
    found: dict[str, tuple[RecordedAnswer, str]] = {}
    for folder in earlier:
        if not _failed(folder):
            home = f"{folder}/steps/{step}"
            found |= {recorded.request_sha256: (recorded, home) for recorded in _read(f"{home}/calls")}
    return found


def recorded_answers(attempt_dir: str, step: str) -> list[RecordedAnswer]:
    """Return the answers of a step in an attempt, in order."""
    return list(_read(f"{attempt_dir}/steps/{step}/calls"))


def remove_private_folders(earlier: Sequence[str], step: str) -> None:
    """Remove the private folders that programs of killed attempts left: they were not searched for secrets."""
    for folder in earlier:
        home = f"{folder}/steps/{step}/calls"
        with contextlib.suppress(OSError):
            for name in fs.listdir(home):
                if fs.exists(private := f"{home}/{name}/{TMP}"):
                    trees.remove_tree(private)


def _failed(folder: str) -> bool:
    """Tell whether the attempt recorded its failure. A killed attempt has no result, or half of one."""
    try:
        result = json.loads(fs.read_bytes(f"{folder}/result.json", _LIMIT))
    except (OSError, ValueError):
        return False
    return isinstance(result, dict) and result.get("success") is False


def _read(folder: str) -> Iterator[RecordedAnswer]:
    with contextlib.suppress(OSError):
        for name in sorted(fs.listdir(folder), key=lambda name: (len(name), name)):
            if name.endswith(".json"):
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError, ArithmeticError):
                    yield RecordedAnswer.from_json(json.loads(fs.read_bytes(f"{folder}/{name}", _LIMIT)))
