"""List the tools that a server offers, and check that a caller may use one."""

from __future__ import annotations

from collections.abc import Collection

from farro.config.settings import Allowed
from farro.errors import InputError, NotPermitted
from farro.mcp import changes, queries
from farro.mcp.context import McpTool

TOOLS = (*queries.tool.tools, *changes.tool.tools)
WAIT = queries.wait_for_jobs.__name__
BY_NAME = {tool.name: tool for tool in TOOLS}


def allowed(permitted: Collection[Allowed]) -> list[McpTool]:
    """Return the tools that a server offers: an agent does not plan with a tool it cannot see."""
    return [tool for tool in TOOLS if tool.needs is None or tool.needs in permitted]


def chosen(name: str, permitted: Collection[Allowed]) -> McpTool:
    tool = BY_NAME.get(name)
    if tool is None:
        raise InputError(f"no tool {name!a}; known: {', '.join(each.name for each in allowed(permitted))}")
    if tool.needs is not None and tool.needs not in permitted:
        raise NotPermitted(
            f"{name} is not allowed here: it was not started with `--allow {tool.needs}`, nor does `mcp.allow` in the "
            f"config name it. Ask the person who runs it to start it with `farro mcp --allow {tool.needs}`"
        )
    return tool
