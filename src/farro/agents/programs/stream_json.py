"""Read the events that Claude Code calls `stream-json`. Amp and Cursor's agent write nearly the same."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

from farro.agents.programs.outcomes import ProgramError
from farro.agents.programs.output import Event, at, number_at, objects_at, text_at, tool_line
from farro.agents.programs.output_reader import EventReader, local_now, usage_beside_cache
from farro.agents.providers.port import TroubleKind
from farro.roles import money
from farro.store.ledger import NO_TOKENS

_PATHS = ("file_path", "path", "notebook_path")
_WRITERS = ("Edit", "MultiEdit", "NotebookEdit", "Write", "create_file", "edit_file")
_KINDS: dict[str, TroubleKind] = {
    "authentication_failed": "refused",
    "billing_error": "refused",
    "rate_limit": "limited",
}


class StreamJsonReader(EventReader):
    """Reads one run.

    A resumed session reports its cost and tokens of all runs; what each run added is in
    `model_usage_since_last_result`. A version without that reports no cost, so that nothing is counted twice.
    """

    def __init__(
        self, on_progress: Callable[[str], None], *, resumed: bool = False, now: Callable[[], datetime] = local_now
    ) -> None:
        super().__init__(on_progress, now)
        self._resumed = resumed
        self._calls: dict[str, tuple[str, str]] = {}  # of tools, by their ids: a line for people, the file it writes
        self._kind: TroubleKind | None = None  # of the last failed request
        self._until: datetime | None = None

    def take(self, event: Event) -> None:
        self.note_session(text_at(event, "session_id"))
        match event.get("type"):
            case "system":
                self._system(event)
            case "assistant":
                self._assistant(event)
            case "user":
                self._results(event)
            case "rate_limit_event":
                self._limit(event)
            case "result":
                self._result(event)

    def _system(self, event: Event) -> None:
        match event.get("subtype"):
            case "init":
                self.model = text_at(event, "model") or self.model
                self.progress(f"started with {self.model or 'its usual model'}")
            case "permission_denied":
                line, _ = self._calls.get(text_at(event, "tool_use_id"), ("", ""))
                self.deny(line or text_at(event, "tool_name"))
            case "api_retry":
                self.progress(f"asks again: {text_at(event, 'error') or 'a request failed'}")

    def _assistant(self, event: Event) -> None:
        self._kind = _KINDS.get(text_at(event, "error"))  # of a request that failed; None: it did not
        model = text_at(event, "message", "model")
        if model and not model.startswith("<"):
            self.model = model
        for part in objects_at(event, "message", "content"):
            if part.get("type") == "text":
                self.progress(text_at(part, "text"))
            elif part.get("type") == "tool_use":
                name, line = text_at(part, "name"), tool_line(text_at(part, "name"), part.get("input"))
                paths = (text_at(part, "input", key) for key in _PATHS) if name in _WRITERS else ()
                self._calls[text_at(part, "id")] = line, next(filter(None, paths), "")
                self.progress(line)

    def _results(self, event: Event) -> None:
        for part in objects_at(event, "message", "content"):
            _, path = self._calls.pop(text_at(part, "tool_use_id"), ("", ""))
            if part.get("is_error") is not True:
                self.wrote(path)

    def _limit(self, event: Event) -> None:
        if text_at(event, "rate_limit_info", "status") == "rejected":
            self._until = _time(number_at(event, "rate_limit_info", "resetsAt"))
            self.progress("the account has reached its limit")

    def _result(self, event: Event) -> None:
        self.finished = True
        self.text = text_at(event, "result")
        for denial in objects_at(event, "permission_denials"):
            self.deny(tool_line(text_at(denial, "tool_name"), denial.get("tool_input")))
        self.error = self._error(event)
        if self.error is not None:
            self.text = ""  # it was the error
        self._count(event)

    def _error(self, event: Event) -> ProgramError | None:
        subtype = text_at(event, "subtype")
        if event.get("is_error") is not True and not subtype.startswith("error"):
            return None
        status, causes = number_at(event, "api_error_status"), at(event, "errors")
        listed = "; ".join(map(str, causes)) if isinstance(causes, list) else ""
        return ProgramError(
            message=self.text or text_at(event, "error") or listed or subtype or "ended with an error",
            status=None if status is None else int(status),
            kind="denied" if subtype == "error_max_budget_usd" else self._kind,
            until=self._until,
        )

    def _count(self, event: Event) -> None:
        """Count what this run added. Of a failed run it may know nothing although it has cost something."""
        since = at(event, "model_usage_since_last_result")
        models = since if isinstance(since, dict) else None if self._resumed else at(event, "modelUsage")
        for counts in objects_at(models):
            self.add_usage(
                usage_beside_cache(
                    counts,
                    fresh="inputTokens",
                    output="outputTokens",
                    cache_read="cacheReadInputTokens",
                    cache_write="cacheCreationInputTokens",
                )
            )
        status = None if self.error is None else self.error.status
        if self.usage is None and status is not None and 400 <= status < 500:  # its only request was refused
            self.usage, self.cost_usd = NO_TOKENS, Decimal(0)
        costs = [money.reported_cost(counts.get("costUSD")) for counts in objects_at(models)]
        known = [cost for cost in costs if cost is not None]
        if costs and len(known) == len(costs):
            self.cost_usd = round(sum(known, self.cost_usd or Decimal(0)), 9)  # it adds binary fractions


def _time(epoch_s: float | None) -> datetime | None:
    return datetime.fromtimestamp(epoch_s, UTC) if epoch_s is not None and 0 < epoch_s < 4e9 else None
