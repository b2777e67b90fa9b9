"""Add advice to the faults of a plan: the words that people bring from other tools. It never decides what is wrong."""

from __future__ import annotations

import json
from typing import Any

from farro.documents import Path
from farro.documents.shapes import Fault
from farro.plans.forms import TASK_STATE, Shaped
from farro.plans.model import MAX_STEPS

_STEP = '{"id": "build", "command": "make", "args": ["all"]}'
_NO_SHELL = "command, and its words args; farro uses no shell"

_STEP_WORDS = {  # names in other tools, in lower case without - and _
    **dict.fromkeys(("dependson", "depends", "after", "requires", "require", "deps", "upstream"), "needs"),
    **dict.fromkeys(("run", "script", "shell", "exec", "cmd", "commandline", "program", "entrypoint"), _NO_SHELL),
    **dict.fromkeys(("argv", "arguments", "parameters", "params"), "args"),
    **dict.fromkeys(("workingdir", "workingdirectory", "workdir", "dir", "directory", "folder"), "cwd"),
    **dict.fromkeys(("environment", "environ", "envvars", "variables", "vars"), "env"),
    **dict.fromkeys(("name", "key", "label", "taskid", "stepid"), "id"),
    **dict.fromkeys(("input", "stdin", "inputfrom", "inputs", "pipe"), "input_from_step"),
    **dict.fromkeys(("retry", "maxretries", "attempts"), "retries"),
    **dict.fromkeys(("retryinterval", "retrywait", "retryafter", "countdown"), "retry_delay, in seconds"),
    **dict.fromkeys(("backoff", "backofffactor", "backoffrate"), "retry_backoff"),
    **dict.fromkeys(("timeouts", "timeoutseconds", "timelimit", "maxtime", "deadline"), "timeout, in seconds"),
    **dict.fromkeys(("exitcodes", "okcodes", "allowedexitcodes", "successcodes"), "ok_exit_codes"),
    **dict.fromkeys(("labels", "tag"), "tags"),
    "uses": "tool",
}
_PLAN_WORDS = {
    **dict.fromkeys(("jobs", "stages", "step", "commands", "actions", "nodes"), "steps, a list"),
    **dict.fromkeys(("concurrency", "maxparallel", "workers", "threads", "maxconcurrent"), "parallel"),
    **dict.fromkeys(("timeouts", "timeoutseconds", "timelimit", "deadline"), "timeout, in seconds"),
    **dict.fromkeys(("title", "jobname"), "name"),
    **dict.fromkeys(("tags", "labels"), "metadata.tags"),
    "priority": "metadata.priority",
    "after": "metadata.after",
    "queue": "role",
    "jobid": "id",
}


def advised(fault: Fault, shaped: Shaped) -> str:
    """Return the fault's message with what to do about it."""
    if fault.unknown:
        return _known_as(fault, shaped)
    hint = _hint(fault.path, shaped.value(fault.path))
    return f"{fault.message}; {hint}" if hint else fault.message


def _known_as(fault: Fault, shaped: Shaped) -> str:
    name = str(fault.path[-1])
    in_step = fault.path[:1] == ("steps",) and len(fault.path) == 3
    words = _STEP_WORDS if in_step else _PLAN_WORDS if len(fault.path) == 1 else {}
    if meant := words.get(name.lower().replace("-", "").replace("_", "")):
        return f"is not a known field; farro calls it {meant}"
    if in_step and shaped.tasks:
        from difflib import get_close_matches  # imported late: most plans are valid

        least = 0.8 if "did you mean" in fault.message else 0.6  # the message already names a similar field
        if near := get_close_matches(name, (*TASK_STATE, "job_name"), n=1, cutoff=least):
            return f"is not a known field; did you mean {near[0]}?"
    return fault.message


def _hint(path: Path, value: Any) -> str:
    match path:
        case ():
            return "" if isinstance(value, dict) else f'a plan is an object, {{"steps": [{_STEP}]}}, or a list of tasks'
        case ("steps",):
            return _steps_hint(value)
        case ("steps", int()) if not isinstance(value, dict):
            return f"a step is an object: {_STEP}"
        case ("steps", int(), name):
            return _field_hint(str(name), value)
        case ("steps", int(), "args" | "env", _):
            return _text_hint(value)
        case ("timeout",):
            return _seconds_hint(value)
    return ""


def _steps_hint(value: Any) -> str:
    if value is None or value == []:
        return f"a plan has at least one step: [{_STEP}]"
    if isinstance(value, dict):
        return f"each step is an item with its own id: [{_STEP}]"
    if isinstance(value, list) and len(value) > MAX_STEPS:
        return "let a step add the rest while it runs (farro task add), or make more plans of it"
    return f"write [{_STEP}]" if isinstance(value, str) else ""


def _field_hint(name: str, value: Any) -> str:
    if name == "command" and isinstance(value, list):
        return "the program alone is the command; its words go into args"
    if name in ("args", "needs", "ok_exit_codes", "tags") and not isinstance(value, list):
        examples = {"args": '["-l", "/tmp"]', "needs": '["build"]', "ok_exit_codes": "[0, 1]", "tags": '["gpu"]'}
        example = examples[name]
        return f"leave it out, or write {example}" if value is None else f"write {example}"
    if name == "env" and not isinstance(value, dict):
        return 'write {"NAME": "value"}'
    if name == "timeout":
        return _seconds_hint(value)
    return _text_hint(value) if name in ("id", "command", "cwd", "tool", "input_from_step") else ""


def _seconds_hint(value: Any) -> str:
    return "it is in seconds: 600 is ten minutes" if isinstance(value, str) else ""


def _text_hint(value: Any) -> str:
    """Quote numbers and booleans; never quote text, which may be a secret."""
    if isinstance(value, bool | int | float):
        spelled = json.dumps(value)
        return f'quote it: "{spelled}"' if len(spelled) <= 40 else "quote it"
    return "a text with a colon in it needs quotes" if isinstance(value, dict) else ""
