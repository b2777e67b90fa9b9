"""Write schemas/*.json of this repository from the models: the schemas that `farro init` also writes into a root, the
AsyncAPI document of the swarm messages, and the OpenAPI document of the HTTP API."""

from __future__ import annotations

import json
from pathlib import Path

import asyncapi

from farro.doctor.schemas import schemas
from farro.web import application, openapi

VERSION = "1"  # of the document; a server says its own
FOLDER = Path(__file__).resolve().parent.parent / "schemas"


def files() -> dict[str, str]:
    """Return the text of each file by its name."""
    wire = json.dumps(asyncapi.document(), indent=2, ensure_ascii=False) + "\n"
    web = json.dumps(openapi.document(application.ENDPOINTS, version=VERSION), indent=2, ensure_ascii=False) + "\n"
    return {**schemas(), asyncapi.FILE: wire, "openapi.json": web}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"schemas/{name}")
