"""Reckons over the last `window` answers: how many, how many of them errors, how long they took. In its status."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from farro.component import Component


@dataclass(frozen=True)
class Config:
    window: int = 1000


bee = Component("postprocessor", config=Config)
_answers: deque[tuple[str, int, float]] = deque()  # id, status, milliseconds
_known: set[str] = set()
_counts = {"answers": 0, "errors": 0, "repeated": 0}


@bee.sink
def reckon(answer: dict[str, Any], config: Config) -> None:
    own = str(answer["id"])
    if own in _known:  # a component before us was killed, and did it again
        _counts["repeated"] += 1
    else:
        _counts["answers"] += 1
        _counts["errors"] += answer["status"] >= 400
        _known.add(own)
        _answers.append((own, answer["status"], answer["latency_ms"]))
        while len(_answers) > config.window:
            _known.discard(_answers.popleft()[0])
    bee.tell(**_counts, **latencies([took_ms for _, _, took_ms in _answers]))


def latencies(took_ms: list[float]) -> dict[str, float]:
    ordered = sorted(took_ms)
    if not ordered:
        return {}
    last = len(ordered) - 1
    return {
        "meanMs": round(sum(ordered) / len(ordered), 3),
        "p50Ms": ordered[last // 2],
        "p95Ms": ordered[last * 95 // 100],
        "maxMs": ordered[-1],
    }


if __name__ == "__main__":
    bee.run()
