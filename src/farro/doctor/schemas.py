"""Generate the schema files of a root, schemas/*.json, from the models that validate each kind of document.

The versions are those of SPEC-1's conformance profile.
"""

from __future__ import annotations

import json
from typing import Any

from farro.config.settings import Settings
from farro.documents.json_schema import DIALECT, schema
from farro.jobs.envelope import SCHEMA_VERSION, Lifecycle
from farro.plans.forms import TASK_STATE
from farro.plans.model import MAX_STEPS, Plan, Step
from farro.roles.prompt import AgentPrompt
from farro.roles.task import WorkflowTask

VERSION = "1.0.0"


def schemas() -> dict[str, str]:
    """Return the text of each file, by its name."""
    made = {
        "prompt": ("An agent prompt (prompt.json)", _for_people(schema(AgentPrompt)), VERSION),
        "agents-config": ("The config of a root for agents (agents-config.json)", _config(), VERSION),
        "job": ("The state of a job (job.json)", _job(), SCHEMA_VERSION),
        "task": ("A task: roles in order (tasks/<id>.json)", _for_people(schema(WorkflowTask)), VERSION),
        "plan": ("A plan: the steps of one job", _plan(), VERSION),
    }
    return {f"{name}.schema.json": _text(f"{name}.schema.json", *what) for name, what in made.items()}


def _text(name: str, title: str, body: dict[str, Any], version: str) -> str:
    whole = {"$schema": DIALECT, "$id": f"{name}@{version}", "title": title, **body}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _for_people(body: dict[str, Any]) -> dict[str, Any]:
    """Permit `$schema` in files that people write."""
    return {**body, "properties": {"$schema": {"type": "string"}, **body["properties"]}}


def _config() -> dict[str, Any]:
    """Require what SPEC-1 §3.1 requires for agents. A queue of commands does not need it (config.check_contract)."""
    body = _for_people(schema(Settings))
    security = {**body["properties"]["security"], "required": ["max_job_bytes", "payload_allowlist"]}
    body["properties"]["security"] = security
    return {**body, "required": ["version", "providers", "security"]}


def _job() -> dict[str, Any]:
    """Require every field: farro always writes all of them."""
    body = schema(Lifecycle)
    return {**body, "required": list(body["properties"])}


def _plan() -> dict[str, Any]:
    """Describe the forms that people write (plans.forms), not the internal one."""
    step = _step()
    state: dict[str, Any] = {name: {} for name in (*TASK_STATE, "job_name")}
    task = {**step, "properties": {**step["properties"], **state}}
    body = _for_people(schema(Plan))
    body["properties"]["steps"] = {**body["properties"]["steps"], "items": step}
    body["properties"]["tasks"] = {**body["properties"]["steps"], "items": task}
    del body["required"]
    whole = {**body, "oneOf": [{"required": ["steps"]}, {"required": ["tasks"]}]}
    return {"anyOf": [whole, {"type": "array", "items": task, "minItems": 1, "maxItems": MAX_STEPS}]}


def _step() -> dict[str, Any]:
    body = schema(Step)
    properties = dict(body["properties"])
    # A reference is an id, or in the memo's form a number.
    reference = {"anyOf": [properties["needs"]["items"], {"type": "integer", "minimum": 1}]}
    properties["needs"] = properties["dependencies"] = {"type": "array", "items": reference}
    properties["input_from_step"] = {"anyOf": [*reference["anyOf"], {"type": "null"}]}
    return {
        **body,
        "properties": properties,
        "required": ["command"],
        "oneOf": [{"required": ["id"]}, {"required": ["step_number"]}],
        "not": {"required": ["needs", "dependencies"]},
    }
