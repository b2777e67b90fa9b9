"""The OpenAPI 3.1 document, made of the endpoints: what each takes and answers is what their dataclasses say.

What JSON Schema an annotation means lives in documents.json_schema. scripts/schemas.py keeps a copy in schemas/.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar

from farro.documents.json_schema import schema
from farro.jobs import ids
from farro.lazy_dataclass import dataclass
from farro.plans.model import ID_PATTERN
from farro.swarm.service import NAME_PATTERN
from farro.web.answers import Failure
from farro.web.endpoints import Endpoint, Nothing
from farro.web.output import FollowQuery, SaidQuery


@dataclass(frozen=True, kw_only=True)
class Document:
    """An OpenAPI document."""

    takes_more: ClassVar[bool] = True
    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]


_REFUSALS = {
    "400": "The request is wrong",
    "401": "No token, or a wrong one",
    "403": "A foreign Host or Origin, or the config does not permit it",
    "404": "There is no such thing",
    "408": "The body came too slowly",
    "409": "The state of things does not permit it",
    "413": "Too large",
    "415": "The body is no JSON",
    "422": "What was said cannot be; all that is wrong, with its place",
    "429": "A queue is full",
    "500": "Something is wrong in the server",
    "501": "This installation has no such part",
    "503": "The store does not answer, or all jobs are still being counted",
}


# What stands in a path; a job may be named by its id, its name, or the beginning of an id.
_NAMED: dict[str, dict[str, Any]] = {
    "job": {"type": "string", "pattern": f"^{ids.JOB_ID.pattern}$"},
    "task": {"type": "string", "pattern": f"^{ID_PATTERN}$"},
    "swarm": {"type": "string", "pattern": f"^{NAME_PATTERN}$", "maxLength": 55},
    "instance": {"type": "string", "pattern": f"^{NAME_PATTERN}$"},
    "role": {"type": "string", "pattern": f"^{NAME_PATTERN}$"},
    "path": {"type": "string", "minLength": 1},
}


def document(endpoints: Sequence[Endpoint], *, version: str) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = re.sub(r"{(\w+):path}", r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint)
    paths.update(_apart())
    shapes = {endpoint.answer.__name__: schema(endpoint.answer) for endpoint in endpoints if endpoint.answer}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "farro",
            "version": version,
            "description": "Jobs, queues, plans, tasks and swarms of a farro root. See docs/http.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}, {"session": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "farro_session",
                    "description": "Set by the link; its name ends in a mark of the server.",
                },
            },
            "schemas": {"Error": schema(Failure), **dict(sorted(shapes.items()))},
            "responses": {f"E{status}": {"description": told, "content": error} for status, told in _REFUSALS.items()},
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    names = re.findall(r"{(\w+)(?::path)?}", endpoint.path)
    made: dict[str, Any] = {
        "operationId": _name(endpoint),
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": _NAMED.get(name, _NAMED["path"])} for name in names
        ]
        + _queries(endpoint.query),
        "responses": {str(endpoint.status): _answer(endpoint), **_refusals()},
    }
    if endpoint.method == "POST":
        body = {"type": "object"} if endpoint.body is None else schema(endpoint.body)
        made["requestBody"] = {
            "required": bool(body.get("required")),
            "content": {"application/json": {"schema": body}},
        }
    return made


def _name(endpoint: Endpoint) -> str:
    words = re.findall(r"\w+", re.sub(r"{(\w+)(?::path)?}", r"by_\1", endpoint.path))
    return "_".join([endpoint.method.lower(), *(word for word in words if word != "api")]).rstrip("_")


def _queries(shape: type) -> list[dict[str, Any]]:
    if shape is Nothing:
        return []
    told = schema(shape)
    required = told.get("required", ())
    return [
        {
            "name": each.name,
            "in": "query",
            "required": each.name in required,
            "schema": _without_null(told["properties"][each.name]),
        }
        for each in fields(shape)
    ]


def _without_null(made: dict[str, Any]) -> dict[str, Any]:
    """A parameter is there or is not: null cannot be said in an address."""
    kind = made.get("type")
    if isinstance(kind, list):
        return {**made, "type": next(each for each in kind if each != "null")}
    if "anyOf" in made:
        return next(dict(each) for each in made["anyOf"] if each != {"type": "null"})
    return made


def _answer(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.answer is None:
        kinds = {endpoint.kind, "text/plain"} if endpoint.kind == "application/octet-stream" else {endpoint.kind}
        content: dict[str, Any] = {kind: {"schema": {}} for kind in sorted(kinds)}
    else:
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{endpoint.answer.__name__}"}}}
    return {"description": endpoint.summary, "content": content}


def _refusals() -> dict[str, Any]:
    return {status: {"$ref": f"#/components/responses/E{status}"} for status in _REFUSALS}


def _apart() -> dict[str, Any]:
    """What is no endpoint: streams, which do not end, and what needs no token."""
    job = {"name": "job", "in": "path", "required": True, "schema": _NAMED["job"]}
    stream = {"200": {"description": "Server-Sent Events", "content": {"text/event-stream": {"schema": {}}}}}
    saved = {"200": {"description": "The bytes", "content": {"application/octet-stream": {"schema": {}}}}}
    health = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    told = {"content": {"application/json": {"schema": health}}}
    return {
        "/api/events": {
            "get": {
                "operationId": "get_events",
                "summary": "What changes, as it changes.",
                "tags": ["events"],
                "parameters": [
                    {"name": "last_event_id", "in": "query", "required": False, "schema": {"type": "string"}},
                    {"name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string"}},
                ],
                "responses": {**stream, **_refusals()},
            }
        },
        "/api/jobs/{job}/logs/stream": {
            "get": {
                "operationId": "get_jobs_by_job_logs_stream",
                "summary": "What a job's steps say, as they say it.",
                "tags": ["events"],
                "parameters": [job, *_queries(FollowQuery)],
                "responses": {**stream, **_refusals()},
            }
        },
        "/api/jobs/{job}/logs/whole": {
            "get": {
                "operationId": "get_jobs_by_job_logs_whole",
                "summary": "All that a job's steps said, to be saved.",
                "tags": ["jobs"],
                "parameters": [job, *_queries(SaidQuery)],
                "responses": {**saved, **_refusals()},
            }
        },
        "/healthz": {
            "get": {
                "operationId": "get_healthz",
                "summary": "Whether the store answers. Needs no token.",
                "tags": ["overview"],
                "security": [],
                "responses": {
                    "200": {"description": "It does", **told},
                    "403": _refusals()["403"],
                    "503": {"description": "It does not", **told},
                },
            }
        },
    }
