"""What the sample measures: a small HTTP server that takes `delay_ms` to answer, and answers while it is enabled."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from farro.component import Component


@dataclass(frozen=True)
class Config:
    port: int = 8098
    delay_ms: float = 5.0


bee = Component("target", config=Config)
_now = Config()


@bee.on_config
def learn(config: Config) -> None:
    global _now
    _now = config


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        time.sleep(_now.delay_ms / 1000)
        body = b'{"ok":true}\n'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        bee.count()

    def log_message(self, *args: Any) -> None: ...


@bee.service
def serve(ending: threading.Event, config: Config) -> None:
    learn(config)
    with ThreadingHTTPServer(("127.0.0.1", config.port), Handler) as server:
        listening = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
        listening.start()
        ending.wait()
        server.shutdown()
        listening.join()


if __name__ == "__main__":
    bee.run()
