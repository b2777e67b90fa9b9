"""Sends each request to `url`, and tells what came back. A server that does not answer, or answers 5xx, is tried three
times; then the request lies among the dead letters of its queue, for somebody to look at or to send again."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from farro.component import Component


@dataclass(frozen=True)
class Config:
    url: str = "http://127.0.0.1:8098"
    timeout_s: float = 5.0


bee = Component("processor", config=Config, tries=3)


@bee.transform
def send(request: dict[str, Any], config: Config) -> dict[str, Any]:
    if not config.url.startswith(("http://", "https://")):
        raise ValueError(f"url must be http:// or https://, not {config.url}")
    began_s = time.perf_counter()
    try:
        with urllib.request.urlopen(config.url + request["path"], timeout=config.timeout_s) as answer:  # noqa: S310
            status, size = answer.status, len(answer.read())
    except urllib.error.HTTPError as error:
        error.close()
        if error.code >= 500:
            raise  # the server's trouble, which may pass
        status, size = error.code, 0
    latency_ms = (time.perf_counter() - began_s) * 1000
    return {**request, "status": status, "bytes": size, "latency_ms": round(latency_ms, 3)}


if __name__ == "__main__":
    bee.run()
