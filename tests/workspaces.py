"""A small Workspace for tests of the Redis store: real folders, everything posted whole, nothing shared.

The real one is stores/redis/workspace.py; no test lives here.
"""

from __future__ import annotations

import json
import os
import shutil

from farro.kernel.outcome import Report
from farro.ports.workspace import Material, Posted


class SmallWorkspace:
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def begin(self, agent_id: str, job_id: str, attempt: int, material: Material) -> str:
        home = f"{self.folder}/{agent_id}/{job_id}"
        self._write(home, material)
        folder = f"{home}/attempts/{attempt:04d}"
        os.makedirs(folder, exist_ok=True)
        return folder

    def _write(self, home: str, material: Material) -> None:
        files = {"job.json": material.lifecycle, "prompt.json": material.prompt}
        files |= {f"payload/{name}": data for name, data in material.payload.items()}
        for number, posted in material.attempts.items():
            files |= {f"attempts/{number:04d}/{name}": data for name, data in posted.files.items()}
        if material.narrative is not None:
            files["prompt.md"] = material.narrative.encode()
        for name, data in files.items():
            os.makedirs(os.path.dirname(f"{home}/{name}"), exist_ok=True)
            with open(f"{home}/{name}", "wb") as file:
                file.write(data)

    def post(self, folder: str, report: Report, *, good: bool) -> Posted:
        text = json.dumps(report.result, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"
        words = report.markdown.encode("utf-8", "backslashreplace")
        found = {"result.json": text, "result.md" if good else "error.md": words}
        for place, _, names in os.walk(folder):
            for name in names:
                with open(f"{place}/{name}", "rb") as file:
                    found.setdefault(os.path.relpath(f"{place}/{name}", folder), file.read())
        return Posted(files=found)

    def end(self, agent_id: str, job_id: str) -> None:
        shutil.rmtree(f"{self.folder}/{agent_id}/{job_id}", ignore_errors=True)

    def leave(self, agent_id: str) -> None:
        shutil.rmtree(f"{self.folder}/{agent_id}", ignore_errors=True)

    def sweep(self) -> list[str]:
        return []

    def look(self, job_id: str, version: str, material: Material) -> str:
        home = f"{self.folder}/looks/{job_id}.{version}"
        self._write(home, material)
        return home
