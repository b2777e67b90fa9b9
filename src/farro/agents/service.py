"""Offer agent work to the slices above: the inbox, costs, tasks, replay and calls of providers.

A name is loaded when it is first used: the modules behind them import much that most commands never need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farro.agents.costs import BudgetStatus, Costs, CostSum, GroupBy, cost_of_job, parse_day_range, sum_costs
    from farro.agents.inbox import InboxItem, approve, edit, list_inbox, refuse, reroute
    from farro.agents.provider_calls import (
        CallTry,
        ProviderCaller,
        ProviderCandidate,
        budgets_of,
        open_candidates,
        providers_of_role,
    )
    from farro.agents.provider_test import TEST_PROMPT, scratch_folder
    from farro.agents.providers.port import Answer, ChatMessage, Provider, Reach, Request, Usage
    from farro.agents.replay import ReplayedAttempt, replay_job
    from farro.agents.tasks import HopReport, JobRoute, TaskSummary, find_task, job_route, list_tasks

_MODULES = {
    "costs": ("BudgetStatus", "CostSum", "Costs", "GroupBy", "cost_of_job", "parse_day_range", "sum_costs"),
    "provider_calls": (
        "CallTry",
        "ProviderCaller",
        "ProviderCandidate",
        "budgets_of",
        "open_candidates",
        "providers_of_role",
    ),
    "inbox": ("InboxItem", "approve", "edit", "list_inbox", "refuse", "reroute"),
    "provider_test": ("TEST_PROMPT", "scratch_folder"),
    "providers.port": ("Answer", "ChatMessage", "Provider", "Reach", "Request", "Usage"),
    "replay": ("ReplayedAttempt", "replay_job"),
    "tasks": ("HopReport", "JobRoute", "TaskSummary", "find_task", "job_route", "list_tasks"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"farro.agents.{_MODULE_OF[name]}"), name)
    globals()[name] = found  # later uses do not come here
    return found
