"""Write schemas/*.json of this repository from the models, as `farro init` writes them into a root."""

from __future__ import annotations

from pathlib import Path

from farro.operations.schemas import schemas

FOLDER = Path(__file__).resolve().parent.parent / "schemas"

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in schemas().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"schemas/{name}")
