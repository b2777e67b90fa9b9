"""Build the OpenAPI 3.1 document from the endpoints and their dataclasses.

scripts/schemas.py writes it to schemas/openapi.json.
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
from farro.web.output import FollowQuery, OutputQuery
from farro.web.request_handling import Endpoint, NoFields
from farro.web.responses import ErrorResponse


@dataclass(frozen=True, kw_only=True)
class OpenApiDocument:
    """An OpenAPI document."""

    takes_more: ClassVar[bool] = True
    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]


_ERRORS = {
    "400": "The request is wrong",
    "401": "No token, or a wrong one",
    "403": "A foreign Host or Origin, or the config does not permit it",
    "404": "Not found",
    "408": "The body arrived too slowly",
    "409": "The current state does not permit it",
    "413": "Too large",
    "415": "The body is not JSON",
    "422": "The values are invalid; all problems, with their positions",
    "429": "A queue is full",
    "500": "A defect in the server; its log says what",
    "501": "This installation lacks an optional package",
    "503": "The store does not answer, or all jobs are still being counted",
}


# Path parameters. A job is given by its id, its name, or the beginning of an id.
_PATH_PARAMETERS: dict[str, dict[str, Any]] = {
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
    paths.update(_other_paths())
    schemas = {endpoint.response.__name__: schema(endpoint.response) for endpoint in endpoints if endpoint.response}
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
                    "description": "Set by the sign-in link; the name ends in a hash that is specific to the server.",
                },
            },
            "schemas": {"Error": schema(ErrorResponse), **dict(sorted(schemas.items()))},
            "responses": {
                f"E{status}": {"description": description, "content": error} for status, description in _ERRORS.items()
            },
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    names = re.findall(r"{(\w+)(?::path)?}", endpoint.path)
    operation: dict[str, Any] = {
        "operationId": _operation_id(endpoint),
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "parameters": [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": _PATH_PARAMETERS.get(name, _PATH_PARAMETERS["path"]),
            }
            for name in names
        ]
        + _queries(endpoint.query),
        "responses": {str(endpoint.status): _response(endpoint), **_error_responses()},
    }
    if endpoint.method == "POST":
        body = {"type": "object"} if endpoint.body is None else schema(endpoint.body)
        operation["requestBody"] = {
            "required": bool(body.get("required")),
            "content": {"application/json": {"schema": body}},
        }
    return operation


def _operation_id(endpoint: Endpoint) -> str:
    words = re.findall(r"\w+", re.sub(r"{(\w+)(?::path)?}", r"by_\1", endpoint.path))
    return "_".join([endpoint.method.lower(), *(word for word in words if word != "api")]).rstrip("_")


def _queries(shape: type) -> list[dict[str, Any]]:
    if shape is NoFields:
        return []
    described = schema(shape)
    required = described.get("required", ())
    return [
        {
            "name": each.name,
            "in": "query",
            "required": each.name in required,
            "schema": _without_null(described["properties"][each.name]),
        }
        for each in fields(shape)
    ]


def _without_null(schema_: dict[str, Any]) -> dict[str, Any]:
    """Drop null from the schema of a query parameter: a URL cannot express it."""
    kind = schema_.get("type")
    if isinstance(kind, list):
        return {**schema_, "type": next(each for each in kind if each != "null")}
    if "anyOf" in schema_:
        return next(dict(each) for each in schema_["anyOf"] if each != {"type": "null"})
    return schema_


def _response(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.response is None:
        kinds = {endpoint.media_type}
        if endpoint.media_type == "application/octet-stream":
            kinds.add("text/plain")
        content: dict[str, Any] = {kind: {"schema": {}} for kind in sorted(kinds)}
    else:
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{endpoint.response.__name__}"}}}
    return {"description": endpoint.summary, "content": content}


def _error_responses() -> dict[str, Any]:
    return {status: {"$ref": f"#/components/responses/E{status}"} for status in _ERRORS}


def _other_paths() -> dict[str, Any]:
    """Describe the routes that are not endpoints: streams and the health check."""
    job = {"name": "job", "in": "path", "required": True, "schema": _PATH_PARAMETERS["job"]}
    last_id = [
        {"name": "last_event_id", "in": "query", "required": False, "schema": {"type": "string"}},
        {"name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string"}},
    ]
    return {
        "/api/events": _stream("get_events", "Changes, as they happen.", "events", last_id),
        "/api/jobs/{job}/logs/stream": _stream(
            "get_jobs_by_job_logs_stream",
            "The output of a job's steps, as it grows.",
            "events",
            [job, *_queries(FollowQuery)],
        ),
        "/api/jobs/{job}/logs/whole": _stream(
            "get_jobs_by_job_logs_whole",
            "All output of a job's steps, as a download.",
            "jobs",
            [job, *_queries(OutputQuery)],
            media_type="application/octet-stream",
        ),
        "/healthz": _health(),
    }


def _stream(
    operation_id: str,
    summary: str,
    tag: str,
    parameters: list[dict[str, Any]],
    *,
    media_type: str = "text/event-stream",
) -> dict[str, Any]:
    description = "Server-Sent Events" if media_type == "text/event-stream" else "The bytes"
    return {
        "get": {
            "operationId": operation_id,
            "summary": summary,
            "tags": [tag],
            "parameters": parameters,
            "responses": {
                "200": {"description": description, "content": {media_type: {"schema": {}}}},
                **_error_responses(),
            },
        }
    }


def _health() -> dict[str, Any]:
    body = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    content = {"application/json": {"schema": body}}
    return {
        "get": {
            "operationId": "get_healthz",
            "summary": "Whether the store answers. Needs no token.",
            "tags": ["overview"],
            "security": [],
            "responses": {
                "200": {"description": "It does", "content": content},
                "403": _error_responses()["403"],
                "503": {"description": "It does not", "content": content},
            },
        }
    }
