"""List all tools: name, description for the agent, arguments, function, and the permission it needs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from farro.config.settings import Allowed
from farro.documents import json_schema, render_path, shapes
from farro.errors import InputError, NotPermitted
from farro.lazy_dataclass import dataclass
from farro.mcp import arguments as asking
from farro.mcp import changes, queries
from farro.mcp.context import ToolContext


@dataclass(frozen=True, kw_only=True, slots=True)
class McpTool:
    name: str
    title: str
    description: str
    shape: type
    call: Callable[[ToolContext, Any], dict[str, Any]]
    needs: Allowed | None = None  # None: it only reads
    destructive: bool = False
    idempotent: bool = False

    def schema(self) -> dict[str, Any]:
        return json_schema.schema(self.shape)

    def arguments(self, given: Any) -> Any:
        """Parse the arguments; InputError reports all faults at once."""
        checked: shapes.Checked[Any] = shapes.check(self.shape, {} if given is None else given)
        if checked.value is None or checked.faults:
            wrong = [f"{render_path(fault.path) or 'arguments'}: {fault.message}" for fault in checked.faults]
            raise InputError("\n".join(wrong))
        return checked.value


def _waits(context: ToolContext, args: asking.WaitAsked) -> dict[str, Any]:
    raise AssertionError("waiting is the server's: it can be given up")


WAIT = "wait_for_jobs"

TOOLS = (
    McpTool(
        name="list_jobs",
        title="List jobs",
        description="Jobs, the newest first, by role, status or tag; and how many there are of each status.",
        shape=asking.JobsAsked,
        call=queries.list_jobs,
    ),
    McpTool(
        name="show_job",
        title="Show a job",
        description="One job: status, attempts, how it came there, its steps with their states, its files, and its"
        " message (result.md or error.md).",
        shape=asking.Shown,
        call=queries.show_job,
    ),
    McpTool(
        name=WAIT,
        title="Wait for jobs",
        description="Wait until jobs have ended (succeeded, failed for good, or killed); tells each, and which still"
        " run when the time is over. Better than asking again and again.",
        shape=asking.WaitAsked,
        call=_waits,
    ),
    McpTool(
        name="read_result",
        title="Read a result",
        description="What came of a job: its value (the last step's stdout, a function's value, or an agent's answer),"
        " each step's exit code and output; of a failure its category, message and last words.",
        shape=asking.ResultAsked,
        call=queries.read_result,
    ),
    McpTool(
        name="read_log",
        title="Read logs",
        description="What a job's steps said on stdout and stderr, the last lines of it; also while it runs.",
        shape=asking.LogAsked,
        call=queries.read_log,
    ),
    McpTool(
        name="read_file",
        title="Read a job's file",
        description="A piece of one of a job's files (show_job lists them): prompt.json, result.json, a patch.",
        shape=asking.FileAsked,
        call=queries.read_file,
    ),
    McpTool(
        name="explain_job",
        title="Explain a job",
        description="Why a job does not run, or what it does just now, and what helps.",
        shape=asking.OneJob,
        call=queries.explain_job,
    ),
    McpTool(
        name="job_history",
        title="A job's history",
        description="The whole life of a job: each attempt with agent, times and steps, each hop with its reason.",
        shape=asking.OneJob,
        call=queries.job_history,
    ),
    McpTool(
        name="stats",
        title="Statistics",
        description="How each role does: depth of its queue, jobs that ended in the window, latency, failure rate.",
        shape=asking.StatsAsked,
        call=queries.stats,
    ),
    McpTool(
        name="alerts",
        title="Alerts",
        description="What somebody must be woken for: requeue storms, queues near their caps, a log that cannot be"
        " written.",
        shape=asking.NoArguments,
        call=queries.alerts,
    ),
    McpTool(
        name="list_workers",
        title="List workers",
        description="Who works here: each slot with its role, machine, tags, tools and the job in its hands.",
        shape=asking.WorkersAsked,
        call=queries.list_workers,
    ),
    McpTool(
        name="inbox",
        title="What waits for a person",
        description="Jobs that wait for a person, with the question and what the last role found.",
        shape=asking.NoArguments,
        call=queries.inbox,
    ),
    McpTool(
        name="list_plans",
        title="List kept plans",
        description="The plans that are kept and can be queued by their id (enqueue_plan).",
        shape=asking.NoArguments,
        call=queries.list_plans,
    ),
    McpTool(
        name="show_plan",
        title="Show a kept plan",
        description="One kept plan with all its steps.",
        shape=asking.PlanNamed,
        call=queries.show_plan,
    ),
    McpTool(
        name="check_plan",
        title="Check a plan",
        description="All that is wrong with a plan, each with its place; nothing is queued.",
        shape=asking.PlanArguments,
        call=queries.check_plan,
    ),
    McpTool(
        name="list_swarms",
        title="List swarms",
        description="Swarms with their state, health, components, queues and last errors.",
        shape=asking.NoArguments,
        call=queries.list_swarms,
    ),
    McpTool(
        name="doctor",
        title="Check the root",
        description="Check the root and its machine: what is wrong, why, and the command that repairs it.",
        shape=asking.NoArguments,
        call=queries.examine,
    ),
    McpTool(
        name="enqueue_command",
        title="Queue a command",
        description="Queue a command as a job; a worker runs it. Answers the job's id at once. With an `id` of yours,"
        " asking again is safe.",
        shape=asking.CommandWanted,
        call=changes.enqueue_command,
        needs="write",
    ),
    McpTool(
        name="enqueue_plan",
        title="Queue a plan",
        description="Queue a plan of several steps as one job: they run in order, or by their `needs`. Answers its id.",
        shape=asking.PlanWanted,
        call=changes.enqueue_plan,
        needs="write",
    ),
    McpTool(
        name="enqueue_agent_task",
        title="Queue work for an agent",
        description="Queue work for an agent of a role (a provider answers it), with what to do, when it is done, and"
        " what it may write. It costs money where the provider does.",
        shape=asking.AgentWanted,
        call=changes.enqueue_agent_task,
        needs="write",
    ),
    McpTool(
        name="retry_job",
        title="Run a job again",
        description="A finished job again, as a new job that starts where the old one failed. Answers the new id.",
        shape=asking.RetryWanted,
        call=changes.retry_job,
        needs="write",
    ),
    McpTool(
        name="requeue_job",
        title="Requeue a job",
        description="Put a stale job, or a failed one that is not final, back into its queue.",
        shape=asking.JobSteered,
        call=changes.requeue_job,
        needs="write",
    ),
    McpTool(
        name="kill_job",
        title="Kill a job",
        description="End a job for good, with its processes. What it was doing is lost.",
        shape=asking.JobSteered,
        call=changes.kill_job,
        needs="write",
        destructive=True,
        idempotent=True,
    ),
    McpTool(
        name="approve_job",
        title="Approve, for a person",
        description="Let a job that waits for a person go on. Only where a person said so: it answers in their name.",
        shape=asking.JobSteered,
        call=changes.approve_job,
        needs="approve",
    ),
    McpTool(
        name="refuse_job",
        title="Refuse, for a person",
        description="Send a job that waits for a person back, with the reason. Only where a person has said so.",
        shape=asking.Refusal,
        call=changes.refuse_job,
        needs="approve",
    ),
)
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
