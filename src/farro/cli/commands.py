"""List the commands of `farro` by name. It imports nothing: completion answers from it before click is loaded."""

from __future__ import annotations

# section → its commands as (name, help, module:function). A module is imported only when its command runs.
SECTIONS = {
    "Run and queue": (
        ("run", "Run a command as a job, here and now.", "farro.cli.run:run"),
        ("enqueue", "Queue commands or plans and print their ids.", "farro.cli.enqueue:enqueue"),
        ("job", "Jobs by name: create, list, show.", "farro.air.cli:job"),
        ("run-task", "Run one task of a job here, to debug it.", "farro.air.cli:run_task"),
        ("task", "Add steps to a plan, from inside one that runs.", "farro.cli.tasks:task"),
        ("wait", "Wait until jobs have ended.", "farro.cli.everyday:wait"),
        ("schedules", "List, check and run schedules.", "farro.cli.schedules:schedules"),
        ("plan", "Check plans, and draw them.", "farro.cli.plan:plan"),
        ("agx", "Write a plan step by step, from commands or words.", "farro.agx.cli.group:agx"),
        ("tools", "List the tools that steps may use.", "farro.cli.plan:tools"),
        (
            "provider-test",
            "Send a test prompt to a role's provider.",
            "farro.agents.cli.providers:provider_test",
        ),
    ),
    "Look": (
        ("status", "Show the named jobs, with their progress.", "farro.air.cli:status"),
        ("ls", "List jobs.", "farro.cli.everyday:ls"),
        ("show", "Show one job.", "farro.cli.everyday:show"),
        ("logs", "Print the output of a job.", "farro.cli.everyday:logs"),
        ("explain", "Say why a job is not running, and what helps.", "farro.cli.history:explain"),
        ("history", "Show the whole life of a job.", "farro.cli.history:history"),
        ("watch", "Watch the queues, or a job, live.", "farro.cli.everyday:watch"),
        ("top", "Queues, workers, jobs and logs on one screen.", "farro.tui.cli:top"),
        ("workers", "List the workers, their tools and their jobs.", "farro.cli.queues:workers"),
        ("stats", "Show queue depth and throughput of each role.", "farro.cli.queues:stats"),
        ("costs", "Show what agents' calls cost, and what budgets have left.", "farro.agents.cli.costs:costs"),
    ),
    "Steer": (
        ("inbox", "List the jobs that wait for a person.", "farro.agents.cli.inbox:inbox"),
        ("approve", "Approve a job that waits for a person.", "farro.agents.cli.inbox:approve"),
        ("refuse", "Send such a job back, with the reason.", "farro.agents.cli.inbox:refuse"),
        ("edit", "Approve it with a text of your own.", "farro.agents.cli.inbox:edit"),
        ("route", "Send a job to a role, whatever its workflow says.", "farro.agents.cli.inbox:route"),
        ("retry", "Run a finished job again, from where it failed.", "farro.cli.steer:retry"),
        ("session", "Print how to continue an agent's session by hand.", "farro.agents.cli.session:session"),
        ("replay", "Run an agent job again with its recorded answers.", "farro.agents.cli.providers:replay"),
        ("requeue", "Put a stale or failed job back into its queue.", "farro.cli.steer:requeue"),
        ("reset", "Put a named job back to waiting, from its start.", "farro.air.cli:reset"),
        ("kill", "Kill a job.", "farro.cli.steer:kill"),
        ("force-complete", "Declare a job succeeded.", "farro.cli.steer:force_complete"),
        ("pause", "Stop giving out the jobs of a queue.", "farro.cli.queues:pause"),
        ("resume", "Resume a paused queue.", "farro.cli.queues:resume"),
        ("provider", "List providers, and resume a paused account.", "farro.agents.cli.accounts:provider"),
        ("prune", "Remove finished jobs.", "farro.cli.storage:prune"),
        ("archive", "Move finished jobs into compressed files.", "farro.cli.archive:archive"),
    ),
    "Keep running": (
        ("up", "Start what a root needs, here or in the background.", "farro.cli.up:up"),
        ("down", "Stop what `farro up` started.", "farro.cli.up:down"),
        ("ps", "List the components that run, and their state.", "farro.cli.up:ps"),
        ("start", "The same as up --detach.", "farro.cli.up:start"),
        ("stop", "The same as down.", "farro.cli.up:down"),
        ("worker", "Work a role's queue.", "farro.cli.daemons:worker"),
        ("watchdog", "Recover the jobs of dead agents.", "farro.cli.daemons:watchdog"),
        ("manager", "Route work, decide stale jobs, run schedules.", "farro.cli.daemons:manager"),
        ("scheduler", "Run schedules, where no manager does.", "farro.cli.daemons:scheduler"),
        ("swarm", "Manage sets of components.", "farro.swarm.cli.swarm:swarm"),
        ("agq", "Serve the queues to Redis clients.", "farro.agq.cli:agq"),
        ("web", "Serve the dashboard and the HTTP API.", "farro.web.cli:web"),
        ("mcp", "Serve farro to coding agents, as MCP tools.", "farro.mcp.cli:mcp"),
    ),
    "Set up": (
        ("demo", "A task from idea to documents, watched live.", "farro.agents.cli.demo:demo"),
        ("init", "Make a folder a farro root.", "farro.cli.root:init"),
        ("doctor", "Check a root and its machine; say what repairs it.", "farro.cli.root:doctor"),
        ("policy", "Pin the policies of jobs in policy.lock.json.", "farro.cli.root:policy"),
        ("sandbox", "Show what confines jobs to their allowed_paths.", "farro.cli.sandbox:sandbox"),
        ("service", "Run everything as systemd user services.", "farro.cli.service:service"),
        ("migrate", "Move queued jobs to another store, or back.", "farro.cli.storage:migrate"),
        ("import-air", "Import the jobs of an Air-Executor.", "farro.air.cli:import_air"),
        ("completion", "Print a script that lets Tab complete commands.", "farro.cli.completion:completion"),
    ),
}
COMMANDS = {name: place for section in SECTIONS.values() for name, _, place in section}
# Commands that only farro itself starts.
HIDDEN = {
    "orchestrator": "farro.swarm.cli.daemons:orchestrator",
    "controller": "farro.swarm.cli.daemons:controller",
    "supervisor": "farro.cli.up:supervisor",
}
HELP = {name: text for section in SECTIONS.values() for name, text, _ in section}
