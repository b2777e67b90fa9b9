"""Describe the public surface of farro as sorted lines of text, for test_surface.py to compare.

A view looks at what a user can see: programs, documents, files, answers. None imports an internal module of farro, so
moving a module does not change a view. Type names, in OpenAPI components and in annotations, are left out: they may
change, while data and calls may not.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import redis

import farro
from flows.program import FARRO, Daemon, Program
from mcp import Client, StdioServerParameters
from support import ROOT

PROGRAMS = ("farro", "agent-cli", "agentd", "managerd", "watchdogd", "air-executor", "agx", "agq", "agw")
SCHEMAS = Path(ROOT, "schemas")
# Modules that the documents import besides `farro` itself.
DOCUMENTED = {
    "farro.component": ("Component", "Drop"),
    "farro.component.testing": ("trial",),
    "farro.ports.program": ("AgentProgram", "ProgramLaunch", "ProgramRun", "Reader", "ReaderReport", "TextReader"),
    "farro.ports.provider": ("Answer", "ProviderTrouble", "Request", "Usage"),
    "farro.providers.registry": ("Place",),
    "farro.settings": ("ProviderSettings",),
    "farro.swarm.conformance": ("Captured", "check"),
}


# --- programs ---


def command_lines() -> list[str]:
    """List every command of every program. `agent-cli` is another name of farro: only differences are listed."""
    script = str(Path(__file__).with_name("click_tree.py"))
    found: list[str] = []
    for program in PROGRAMS:
        done = subprocess.run([sys.executable, script, program], capture_output=True, text=True, check=True)
        lines = done.stdout.splitlines()
        if program == "agent-cli":
            same = lines == [re.sub(r"^farro", program, line) for line in found]
            lines = ["agent-cli  (the commands of farro)"] if same else lines
        found += lines
    return found


# --- documents ---


def http_routes() -> list[str]:
    document = _schema("openapi.json")
    found = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            route = f"{method.upper()} {path}"
            found.append(f"{route}  id={operation['operationId']}")
            for parameter in operation.get("parameters", ()):
                required = " required" if parameter.get("required") else ""
                found.append(f"{route}  {parameter['in']} {parameter['name']}{required}")
            found += [f"{route}  body {line}" for line in _contents(operation.get("requestBody", {}), document)]
            for code, response in operation["responses"].items():
                if code >= "400":
                    found.append(f"{route}  {code}")
                else:
                    found += [f"{route}  {code} {line}" for line in _contents(response, document)]
    for name, response in document["components"]["responses"].items():
        found += [f"error {name.removeprefix('E')}  {line}" for line in _contents(response, document)]
    return found


def _contents(holder: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[str]:
    for kind, content in holder.get("content", {}).items():
        yield kind
        for path in properties(content["schema"], document):
            yield f"{kind} {path}"


def swarm_wire() -> list[str]:
    document = _schema("asyncapi.json")
    found = []
    for name, channel in document["channels"].items():
        exchange = channel.get("bindings", {}).get("amqp", {}).get("exchange", {})
        messages = " ".join(sorted(channel["messages"]))
        found.append(f"channel {name}  {channel['address']}  {exchange.get('name')} {exchange.get('type')}  {messages}")
    found += [f"operation {name}  {operation['action']}" for name, operation in document["operations"].items()]
    for name, message in document["components"]["messages"].items():
        found += [f"message {name}  {path}" for path in properties(message["payload"], document)]
    return found


def schema_properties() -> list[str]:
    found = []
    for path in sorted(SCHEMAS.glob("*.schema.json")):
        document = _schema(path.name)
        found += [f"{path.name}  {line}" for line in properties(document, document)]
    return found


def config_keys() -> list[str]:
    """List the settings from the documentation, which tests compare with the code, and from the file's schema."""
    page = Path(ROOT, "docs", "configuration.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_$][^`]*)` \| (.*?) \|", page, re.MULTILINE)
    document = _schema("agents-config.schema.json")
    return [*(f"{key} = {default}" for key, default in rows), *properties(document, document, defaults=True)]


def _schema(name: str) -> Any:
    return json.loads((SCHEMAS / name).read_text(encoding="utf-8"))


def properties(
    schema: Any, document: Mapping[str, Any], path: str = "", above: tuple[str, ...] = (), *, defaults: bool = False
) -> list[str]:
    """List the paths of all nested properties, following references; a required path ends with `!`."""
    if "$ref" in schema:
        if schema["$ref"] in above:
            return [f"{path} (recursive)"]
        above = (*above, schema["$ref"])
        schema = resolved(schema["$ref"], document)
    found = []
    for name, inner in schema.get("properties", {}).items():
        mark = "!" if name in schema.get("required", ()) else ""
        default = f" default={json.dumps(inner['default'])}" if defaults and "default" in inner else ""
        found.append(f"{path}.{name}{mark}{default}")
        found += properties(inner, document, f"{path}.{name}", above, defaults=defaults)
    for keyword, step in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(schema.get(keyword), dict):
            found += properties(schema[keyword], document, path + step, above, defaults=defaults)
    for keyword in ("anyOf", "oneOf", "allOf"):
        for inner in schema.get(keyword, ()):
            found += properties(inner, document, path, above, defaults=defaults)
    return sorted(set(found))


def resolved(reference: str, document: Mapping[str, Any]) -> Any:
    found: Any = document
    for part in reference.removeprefix("#/").split("/"):
        found = found[part.replace("~1", "/").replace("~0", "~")]
    return found


# --- servers ---


def mcp_tools(program: Program) -> list[str]:
    """List the tools, their arguments, and the tools that an agent may call only with permission."""
    free = {name for name, _ in _tools(program)}
    found = []
    for name, arguments in _tools(program, "--allow", "write", "--allow", "approve"):
        found.append(name if name in free else f"{name} (needs --allow)")
        found += [f"{name}  {argument}" for argument in properties(arguments, arguments)]
    return found


def _tools(program: Program, *allowed: str) -> list[tuple[str, Any]]:
    server = StdioServerParameters(command=FARRO, args=["mcp", *allowed], env=dict(program.env), cwd=str(program.path))

    async def ask() -> list[tuple[str, Any]]:
        async with asyncio.timeout(60), Client(server) as client:
            return [(tool.name, tool.input_schema) for tool in (await client.list_tools()).tools]

    return asyncio.run(ask())


def resp_commands(program: Program) -> list[str]:
    daemon = program.start("agq", "--bind", "127.0.0.1:0", "--json")
    port = json.loads(_line_of(daemon, "agq started"))["port"]
    with redis.Redis(port=port) as client:
        listed = client.execute_command("COMMAND")
    daemon.end()
    rows = listed.values() if isinstance(listed, dict) else listed
    found = []
    for row in rows:
        name, arity = (row["name"], row["arity"]) if isinstance(row, dict) else (row[0], row[1])
        found.append(f"{name.decode() if isinstance(name, bytes) else name} {arity}")
    return found


def _line_of(daemon: Daemon, message: str) -> str:
    assert daemon.process.stdout is not None
    for line in daemon.process.stdout:
        if message in line:
            return line
    raise AssertionError(f"it ended before it said {message!r}")


# --- Python ---


def python_names() -> list[str]:
    found = []
    for name in farro.__all__:
        found += _described(f"farro.{name}", getattr(farro, name), made_by_callers=False)
    for module, names in DOCUMENTED.items():
        for name in names:
            found += _described(f"{module}.{name}", getattr(importlib.import_module(module), name))
    return found


def _described(name: str, thing: Any, *, made_by_callers: bool = True) -> Iterator[str]:
    if not inspect.isclass(thing):
        yield f"{name}{signature(thing)}" if callable(thing) else name
        return
    if issubclass(thing, Exception):
        bases = [base.__name__ for base in thing.__mro__[1:] if base.__name__ in (*farro.__all__, *EXCEPTIONS)]
        yield f"{name}({', '.join(bases)})  exit_code={getattr(thing, 'exit_code', None)}"
    else:
        yield name
    fields = _fields(thing)
    for field in fields:
        yield f"{name}.{field}"
    told_by_init = made_by_callers or issubclass(thing, Exception)  # an error stores its arguments as attributes
    if told_by_init and not fields and "__init__" in vars(thing):
        yield f"{name}{signature(thing.__init__)}"
    for member, value in inspect.getmembers_static(thing):
        if (
            (member.startswith("_") and member not in USED_BY_SYNTAX)
            or member in fields
            or _is_of_python(thing, member)
        ):
            continue
        if isinstance(value, property):
            yield f"{name}.{member} (property)"
        elif isinstance(value, classmethod | staticmethod) or inspect.isfunction(value):
            yield f"{name}.{member}{signature(getattr(value, '__func__', value))}"


USED_BY_SYNTAX = ("__call__", "__await__", "__enter__", "__aenter__", "__iter__", "__aiter__", "__len__", "__getitem__")
EXCEPTIONS = ("TypeError", "ValueError", "TimeoutError", "LookupError")


def _fields(thing: type) -> list[str]:
    """Return the public fields of a dataclass."""
    annotated = [name for base in reversed(thing.__mro__) for name in inspect.get_annotations(base)]
    return sorted({name for name in annotated if not name.startswith("_")})


def _is_of_python(thing: type, member: str) -> bool:
    """Tell whether it is inherited from a class outside farro, such as list."""
    owner = next(base for base in thing.__mro__ if member in vars(base))
    return not owner.__module__.startswith("farro")


def signature(function: Any) -> str:
    """Describe the parameters with their kinds and defaults, without types. `…`: an option that may be left out."""
    plain: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if (named := re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))) is not None:
            names = _option_names(function.__module__, named[1])
            plain += [inspect.Parameter(name, parameter.KEYWORD_ONLY, default=...) for name in names]
        elif parameter.name != "self":
            plain.append(parameter.replace(annotation=parameter.empty))
    return str(inspect.Signature(plain)).replace("=Ellipsis", "=…")


def _option_names(module: str, name: str) -> list[str]:
    """Return the fields of a typed dictionary of options. Its source is read, because it may exist for type checkers
    only."""
    source = inspect.getsource(importlib.import_module(module))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id != "TypedDict"]
            inherited = [field for base in bases for field in _option_names(module, base)]
            return inherited + [each.target.id for each in node.body if isinstance(each, ast.AnnAssign)]
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return _option_names(node.module, name)
    raise AssertionError(f"{module} does not know {name}")


def variables() -> list[str]:
    """List the environment variables in the source: those that farro reads, and those that it sets for steps."""
    named = re.compile(r"""["'](?:FARRO|AGQ|AGW|AGX|AIR)_[A-Z_]+["']""")
    texts = (path.read_text(encoding="utf-8") for path in Path(ROOT, "src").rglob("*.py"))
    return [name.strip("\"'") for text in texts for name in named.findall(text)]


# --- a root that was used ---


class Played:
    """Use a root with many commands; record each exit code, each answer and the resulting files."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.codes: list[str] = []
        self.answers: dict[str, Any] = {}
        self.logs: list[dict[str, Any]] = []
        self.play()

    def run(self, *args: str, stdin: str = "") -> str:
        done = self.program.run(*args, stdin=stdin)
        self.codes.append(f"farro {' '.join(args)}  {done.code}")
        return done.out

    def daemon(self, *args: str) -> None:
        for line in self.run(*args, "--json").splitlines():
            told = json.loads(line)
            if "timestamp" in told:
                self.logs.append(told)
            else:
                self.answers[f"farro {' '.join(args)}"] = [told]

    def ask(self, *args: str) -> None:
        """Run a command and record its answer: one JSON document, or one on each line."""
        said = self.run(*args, "--json").splitlines()
        self.answers[f"farro {' '.join(args)}"] = json.loads(f"[{','.join(said)}]")

    def play(self) -> None:
        plan = '{"plan_id": "p", "steps": [{"id": "a", "command": "true"}]}'
        self.run("ls")
        self.run("init")
        self.run("enqueue", "--id", "good", "--", "echo", "hi")
        self.run("enqueue", "--id", "good", "--", "echo", "other")
        self.run("enqueue", "--id", "bad", "--", "false")
        self.run("enqueue", "--id", "then", "--after", "good", "--", "true")
        self.run("enqueue", "--id", "dead", "--", "true")
        self.run("enqueue", "-", stdin='{"steps": [{"no": "plan"}]}')
        self.run("enqueue", "--role", "Nobody", "--", "true")
        self.run("kill", "dead")
        self.run("enqueue", "--id", "env", "--", "sh", "-c", "env | grep -o '^FARRO_[A-Z_]*' | sort")
        self.run("job", "create", "nightly", "--tasks", "-", stdin=plan)
        self.run("job", "create", "nightly", "--tasks", "-", stdin=plan)
        schedules = self.program.path / "schedules"
        schedules.mkdir()
        (schedules / "early.json").write_text(f'{{"cron": "0 3 * * *", "plan": {plan}}}')
        self.run("schedules", "check", "schedules/early.json")
        self.run("schedules", "run", "early")
        self.run("pause", "DocWriter", "--why", "holiday")
        self.daemon("worker", "--drain")
        self.daemon("watchdog", "--once")
        self.daemon("manager", "--once")
        self.daemon("scheduler", "--once")
        self.run("retry", "bad")
        self.run("enqueue", "--id", "later", "--delay", "1h", "--", "true")
        self.run("requeue", "good")
        self.run("show", "unknown")
        self.run("show")
        self.run("no-such-command")
        self.run("wait", "good")
        self.run("wait", "bad")
        self.run("wait", "later", "--timeout", "0.01")
        self.run("run", "--", "false")
        self.run("logs", "good")
        self.of_steps = self.run("logs", "env").split()
        for command in ASKED:
            self.ask(*command.split())


ASKED = (
    *("ls", "show good", "show bad", "show later", "status", "job list", "logs good", "history bad", "explain later"),
    *("workers", "stats", "costs", "inbox", "schedules", "pause", "ps", "policy lock", "tools"),
)
MINTED = re.compile(r"job-\d{8}-\d{6}-[0-9a-f]+")
AGENT = re.compile(r"[\w-]+\.\d+\.[0-9a-f]{16}")


def layout(played: Played) -> list[str]:
    """List every path, and for each file name the fields of all JSON files of that name."""
    root = played.program.path
    found = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name.startswith((".state", ".home")):
            continue
        plain = AGENT.sub("<agent>", MINTED.sub("<minted>", name))
        found.append(f"{plain}/" if path.is_dir() else plain)
        if path.parent.name in ("schemas", "schedules") or not path.is_file():
            continue
        if path.suffix == ".json" or path.name in (".heartbeat", ".paused"):
            found += [f"in {path.name}  {field}" for field in fields_of(json.loads(path.read_text()))]
    return found


def answers(played: Played) -> list[str]:
    return [f"{asked} --json  {field}" for asked, told in played.answers.items() for field in fields_of(told)]


def log_lines(played: Played) -> list[str]:
    """List the fields of the daemons' log by message, then those of the audit log by event."""
    found = [f"log {line['message']}  {field}" for line in played.logs for field in fields_of(line)]
    audited = Path(played.program.path, "logs", "audit.log").read_text().splitlines()
    for line in map(json.loads, audited):
        found += [f"audit {line['event']}  {field}" for field in fields_of(line)]
    return found


def step_variables(played: Played) -> list[str]:
    return [word for word in played.of_steps if word.startswith("FARRO_")]


def exit_codes(played: Played) -> list[str]:
    return played.codes


def fields_of(data: Any, path: str = "") -> list[str]:
    if isinstance(data, dict):
        return [
            line
            for name, inner in data.items()
            for line in (f"{path}.{_plain(name)}", *fields_of(inner, f"{path}.{_plain(name)}"))
        ]
    if isinstance(data, list):
        return [line for inner in data for line in fields_of(inner, f"{path}[]")]
    return []


def _plain(key: str) -> str:
    return AGENT.sub("<agent>", MINTED.sub("<minted>", key)).replace(os.uname().nodename, "<host>")
