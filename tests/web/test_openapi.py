"""The OpenAPI document: it equals the one in schemas/, and schemathesis finds no response that it does not describe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from farro.store.port import Submission
from farro.web import application, openapi
from http_stage import TOKEN, ManualWorker, WebStage, submission
from support import ROOT, torture

BUDGET_S = 15


def test_served_openapi_document_matches_the_repository(front: WebStage) -> None:
    served = front.get("/api/openapi.json").json
    kept = json.loads((Path(ROOT) / "schemas" / "openapi.json").read_text())
    assert {**served, "info": None} == {**kept, "info": None}
    assert served["openapi"].startswith("3.1")


def test_every_route_is_in_the_openapi_document_once() -> None:
    told = openapi.document(application.ENDPOINTS, version="1")
    names = [operation["operationId"] for path in told["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names)) >= len(application.ENDPOINTS)
    shapes = [endpoint.response for endpoint in application.ENDPOINTS if endpoint.response is not None]
    assert len({shape.__name__ for shape in shapes}) == len(set(shapes))  # equal names would be merged in the document


def test_schemathesis_finds_no_violation(front: WebStage, tmp_path: Path) -> None:
    """Check all routes but the endless streams.

    A request that matches the schema may still be refused: the schema cannot say which roles, folders and jobs exist,
    nor when a plan is valid.
    """
    front.store.enqueue_many([submission() for _ in range(3)])
    front.store.enqueue(Submission(role="Architect", prompt={"rubric": "x", "inputs": {"task_id": "T-1"}}, job_id="0"))
    hands = ManualWorker(front.store)
    hands.one()
    hands.one(fail="no")
    hands.leave()
    command = [os.path.join(os.path.dirname(sys.executable), "st"), "run", f"http://{front.host}/api/openapi.json"]
    command += ["--header", f"Authorization: Bearer {TOKEN}", "--url", f"http://{front.host}", "--no-color"]
    command += ["--exclude-path-regex", "(events|stream)$", "--exclude-checks", "positive_data_acceptance"]
    command += [
        "--phases",
        "coverage,fuzzing",
        "--max-time",
        str(BUDGET_S * max(1, 20 * torture())),
        "--warnings",
        "off",
    ]
    command += ["--generation-deterministic", "--max-examples", str(3 + 50 * torture()), "--request-timeout", "60"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    assert not [told for told in front.log if told[0] == "error"]
