"""Run the model server as a program: PYTHONPATH=tests python -m model_server --port 8555 --log requests.jsonl."""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
from pathlib import Path

from model_server.scenarios import SCENARIOS, read_scenarios
from model_server.server import ModelServer, ServedRequest


def main() -> None:
    parser = argparse.ArgumentParser(description="A scripted model server on loopback.")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--scenarios", type=Path, help=f"more of them, a JSON file; built in: {', '.join(SCENARIOS)}")
    parser.add_argument("--key", action="append", help="accept this key; else every one that does not begin with bad")
    parser.add_argument("--within", action="append", help="let programs write in this folder, too")
    parser.add_argument("--log", type=Path, help="write a line of JSON for each request that was answered")
    options = parser.parse_args()

    writing = threading.Lock()

    def write(served: ServedRequest) -> None:
        if options.log is not None:
            with writing, options.log.open("a") as file:
                file.write(json.dumps(served.to_json()) + "\n")

    scenarios = None if options.scenarios is None else read_scenarios(options.scenarios.read_text())
    with ModelServer(
        port=options.port, scenarios=scenarios, keys=options.key, within=options.within, on_answered=write
    ) as server:
        print(server.base_url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
