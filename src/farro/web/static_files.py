"""Serve the dashboard's files from the package: known media types only, each with an ETag."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

from farro.web import errors
from farro.web.errors import HttpError

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "woff2": "font/woff2",
    "json": "application/json",
    "webmanifest": "application/manifest+json",
    "txt": "text/plain; charset=utf-8",
}
_LIMIT = 4 << 20
_EMPTY = b"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>farro</title></head>
<body><h1>farro</h1><p>This installation has no page. The API is at <a href="/api">/api</a>.</p></body></html>
"""


def index(request: Request) -> Response:
    return _answer(request, "index.html")


def file(request: Request) -> Response:
    return _answer(request, request.path_params["path"])


def _answer(request: Request, name: str) -> Response:
    ending = name.rsplit(".", 1)[-1].lower()
    found = _read(name) if ending in MEDIA_TYPES else None
    if found is None:
        if name == "index.html":
            return Response(_EMPTY, media_type=MEDIA_TYPES["html"])
        return errors.response(HttpError(404, "not_found", "no such page"))
    data, tag = found
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=MEDIA_TYPES[ending], headers=headers)


def _read(name: str) -> tuple[bytes, str] | None:
    home = str(resources.files("farro.web").joinpath("page"))
    path = os.path.normpath(os.path.join(home, name))
    if not path.startswith(f"{home}{os.sep}") or "\0" in name:
        return None
    try:
        status = os.stat(path)
        return _content(path, status.st_mtime_ns, status.st_size)
    except OSError:
        return None


@lru_cache(maxsize=256)
def _content(path: str, changed_ns: int, size: int) -> tuple[bytes, str]:
    """Read a file once per version of it."""
    if size > _LIMIT:
        raise OSError(f"{path} is larger than a file of the page may be")
    with open(path, "rb") as file:
        data = file.read()
    return data, f'"{hashlib.sha256(data).hexdigest()[:32]}"'
