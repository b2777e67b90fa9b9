"""Read requests: what they have in common, whatever their dialect."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from model_server.scenarios import DEFAULT, named_in

Dialect = Literal["anthropic", "responses", "chat", "gemini", "code_assist"]
Author = Literal["system", "user", "model", "tool"]

_ANSWERED = re.compile(r"^You answered:$", re.MULTILINE)  # farro's words for a reply in a prompt that is one text
_FOLDER = re.compile(r"(?:[Ww]orking directory|<cwd>|[Cc]urrent directory|[Ww]orkspace)[^/\n]{0,40}(/[^\s<`\"']+)")


@dataclass(frozen=True, kw_only=True)
class Message:
    author: Author
    text: str


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """One request of a program."""

    model: str
    messages: Sequence[Message]
    tools: Mapping[str, Any] = field(default_factory=dict)  # name → definition
    streamed: bool = False
    wants_usage: bool = True  # False: a stream of chat completions that was not asked to report usage
    answer_schema: Mapping[str, Any] | None = None

    def text_of(self, *authors: Author) -> str:
        return "\n".join(message.text for message in self.messages if message.author in authors)

    def scenario(self) -> tuple[str, int, int | None]:
        """Return the scenario that the user named last, how many replies there were since then, and its number."""
        name, number, replies = DEFAULT, None, 0
        before: Author = "user"
        for message in self.messages:
            if message.author == "user" and (found := named_in(message.text)):
                name, number, rest = found
                replies = len(_ANSWERED.findall(rest))
            elif message.author == "user":
                replies += len(_ANSWERED.findall(message.text))
            elif message.author == "model" and before != "model":  # a reply may have several parts
                replies += 1
            before = message.author
        return name, replies, number

    def path(self, name: str, within: Sequence[str]) -> str:
        """Return an absolute path where the request says in which folder the program works: some tools want that.

        Only a folder inside `within` is believed: the program will write there.
        """
        for found in _FOLDER.finditer(self.text_of("system", "user")):
            folder = found[1].rstrip("/.,")
            real = os.path.realpath(folder)
            if os.path.isdir(real) and any(real.startswith(f"{os.path.realpath(place)}/") for place in within):
                return os.path.normpath(f"{folder}/{name}")
        return name


def text_in(content: Any) -> str:
    """Return the text of a message's content, however deep it is."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, map(text_in, content)))
    if isinstance(content, dict):
        return text_in(content.get("text") or content.get("content") or content.get("output") or "")
    return ""


def _anthropic(body: Mapping[str, Any]) -> Conversation:
    def messages() -> Iterator[Message]:
        yield Message(author="system", text=text_in(body.get("system", "")))
        for message in body["messages"]:
            content = message["content"]
            parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
            for part in parts:
                author: Author = "tool" if part.get("type") == "tool_result" else _author(message["role"])
                yield Message(author=author, text=text_in(part))

    return Conversation(
        model=body["model"],
        messages=list(messages()),
        tools={tool["name"]: tool for tool in body.get("tools") or [] if "name" in tool},
        streamed=bool(body.get("stream")),
    )


def _responses(body: Mapping[str, Any]) -> Conversation:
    def messages() -> Iterator[Message]:
        yield Message(author="system", text=body.get("instructions") or "")
        items = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
        for item in items:
            kind = item.get("type", "message")
            if kind == "additional_tools":
                continue
            if kind.endswith("_output"):
                yield Message(author="tool", text=text_in(item.get("output")))
            else:
                author: Author = _author(item["role"]) if "role" in item else "model"  # a call, or its reasoning
                yield Message(author=author, text=text_in(item.get("content") or ""))

    # codex names its tools in the input for some models, and groups them there.
    items = body["input"] if isinstance(body["input"], list) else []
    tools = list(body.get("tools") or [])
    tools += [tool for item in items if item.get("type") == "additional_tools" for tool in item["tools"]]
    tools = [inner for tool in tools for inner in (tool["tools"] if tool.get("type") == "namespace" else [tool])]
    return Conversation(
        model=body["model"],
        messages=list(messages()),
        tools={tool.get("name") or tool["type"]: tool for tool in tools},
        streamed=bool(body.get("stream")),
    )


def _chat(body: Mapping[str, Any]) -> Conversation:
    return Conversation(
        model=body["model"],
        messages=[Message(author=_author(one["role"]), text=text_in(one.get("content"))) for one in body["messages"]],
        tools={tool["function"]["name"]: tool["function"] for tool in body.get("tools") or []},
        streamed=bool(body.get("stream")),
        wants_usage=not body.get("stream") or bool((body.get("stream_options") or {}).get("include_usage")),
    )


def _gemini(body: Mapping[str, Any]) -> Conversation:
    def messages() -> Iterator[Message]:
        yield Message(author="system", text=text_in((body.get("systemInstruction") or {}).get("parts", "")))
        for content in body["contents"]:
            for part in content.get("parts", []):
                if "functionResponse" in part:
                    yield Message(author="tool", text=json.dumps(part["functionResponse"].get("response")))
                else:
                    yield Message(author=_author(content.get("role", "user")), text=text_in(part))

    declared = [tool for group in body.get("tools") or [] for tool in group.get("functionDeclarations", [])]
    return Conversation(
        model=body["model"],
        messages=list(messages()),
        tools={tool["name"]: tool for tool in declared},
        streamed=bool(body.get("stream")),
        answer_schema=(body.get("generationConfig") or {}).get("responseJsonSchema"),
    )


def _author(role: str) -> Author:
    roles: Mapping[str, Author] = {"assistant": "model", "model": "model", "tool": "tool", "user": "user"}
    return roles.get(role, "system")


def read(dialect: Dialect, path: str, body: Mapping[str, Any]) -> Conversation:
    """Read the body of a request; `path` says of Gemini's what other dialects say in the body."""
    if dialect == "code_assist":
        return _gemini({**body["request"], "model": body["model"], "stream": ":stream" in path})
    if dialect == "gemini":
        model = path.rpartition("/")[2].partition(":")[0]
        return _gemini({**body, "model": model, "stream": ":stream" in path})
    return {"anthropic": _anthropic, "responses": _responses, "chat": _chat}[dialect](body)


# --- the program's own tools ---


def tool_for_file(conversation: Conversation, path: str, text: str, within: Sequence[str]) -> tuple[str, Any] | None:
    """Return the program's tool that writes a file, and its arguments (text, for a tool that takes no JSON)."""
    tools = conversation.tools
    if "Write" in tools:  # claude
        return "Write", {"file_path": conversation.path(path, within), "content": text}
    if "write_file" in tools:  # gemini
        return "write_file", {"file_path": conversation.path(path, within), "content": text}
    if "write" in tools:  # opencode, goose
        name = "filePath" if "filePath" in json.dumps(tools["write"]) else "path"
        return "write", {name: conversation.path(path, within), "content": text}
    lines = "".join(f"+{line}\n" for line in text.splitlines())
    patch = f"*** Begin Patch\n*** Add File: {path}\n{lines}*** End Patch"
    if _runs_scripts(tools):
        return "exec", f"text(await tools.apply_patch({json.dumps(patch)}));"
    if "apply_patch" in tools:  # codex
        return "apply_patch", patch if tools["apply_patch"].get("type") == "custom" else {"input": patch}
    folder = os.path.dirname(path) or "."
    command = f"mkdir -p '{folder}' && cat > '{path}' <<'END_OF_FILE'\n{text}END_OF_FILE"
    return tool_for_command(conversation, command)


def tool_for_command(conversation: Conversation, command: str) -> tuple[str, Any] | None:
    """Return the program's shell, and its arguments."""
    tools = conversation.tools
    if _runs_scripts(tools):
        return "exec", f"text(await tools.exec_command({json.dumps({'cmd': command})}));"
    for name, argument in (("Bash", "command"), ("run_shell_command", "command"), ("bash", "command")):
        if name in tools:
            return name, {argument: command, "description": "Run a command"}
    for name, argument in (("exec_command", "cmd"), ("shell_command", "command")):
        if name in tools:
            return name, {argument: command}
    for name in ("shell", "developer__shell"):
        if name in tools:
            as_list = '"array"' in json.dumps(tools[name])
            return name, {"command": ["bash", "-c", command] if as_list else command}
    return None


def _runs_scripts(tools: Mapping[str, Any]) -> bool:
    """Tell whether the program takes a script whose functions are its tools, as codex does for some models."""
    return "exec" in tools and tools["exec"].get("type") == "custom"
