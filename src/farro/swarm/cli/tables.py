"""Swarms and their commands as text. Printing goes through terminal.say, so that no component controls the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from farro.cli.tables import span, table
from farro.swarm.lifecycle import ComponentState
from farro.swarm.views import CommandView, ComponentView, SwarmView
from farro.swarm.wire import names

_NOT_THERE = (ComponentState.PROVISIONING, ComponentState.FAILED)
_COMMANDS = 8  # the newest are shown


def command_words(view: CommandView) -> str:
    """Describe a command and its outcome in one line."""
    about = view.scope.get("instance") or view.scope.get("swarmId", "")
    if view.result is None:
        return f"{about}: {view.signal} goes on"
    if view.result == "success":
        return f"{about}: {view.signal} done, {view.state}" + (f" ({view.notes})" if view.notes else "")
    again = "; it may be asked for again" if view.retryable else ""
    return f"{about}: {view.signal} failed ({view.code}): {view.message}{again}"


def listing(views: list[SwarmView]) -> str:
    rows = [("SWARM", "STATE", "HEALTH", "RUNNING", "STALE", "DEAD LETTERS", "")]
    for view in views:
        totals, dead = view.totals, sum(_dead(view).values())
        running = f"{totals.get('running', 0)}/{totals.get('desired', len(view.components))}"
        stale = span(view.max_staleness_s)
        rows.append((view.id, view.state, view.health, running, stale, str(dead or "-"), view.reason or ""))
    return table(rows, right=(5,))


def dead_words(view: SwarmView) -> str | None:
    """Describe the dead letters. They do not affect a swarm's health, so they are shown apart."""
    dead = _dead(view)
    if not dead:
        return None
    each = ", ".join(f"{count} of {name}" for name, count in dead.items())
    return f"dead letters: {each}; look: farro swarm dead {view.id}"


def _dead(view: SwarmView) -> dict[str, int]:
    """Count the dead letters by queue, as the plan names it."""
    counts = ((str(one.get("name", "")), one.get("deadLetters")) for one in view.queues)
    begin = names.work_exchange(view.id).removesuffix("hive")
    return {name.removeprefix(begin): count for name, count in counts if isinstance(count, int) and count > 0}


def page(view: SwarmView, commands: list[CommandView]) -> str:
    """Describe one swarm completely."""
    totals = view.totals
    lines = [f"{view.id}  {view.state}, {view.health}" + (f": {view.reason}" if view.reason else "")]
    if (dead := dead_words(view)) is not None:
        lines.append(dead)
    if totals:
        counts = ", ".join(f"{totals.get(name, 0)} {name}" for name in ("healthy", "running", "enabled"))
        oldest = "" if view.max_staleness_s is None else f"; oldest word {span(view.max_staleness_s)} ago"
        lines.append(f"of {totals.get('desired', 0)} components {counts}{oldest}")
    alive = "lives" if view.controller["alive"] else "does not run: what follows is what it said last"
    lines.append(f"controller {view.controller['instance']} {alive}")
    if view.durations:
        durations = ", ".join(f"{name} {span(seconds)}" for name, seconds in view.durations.items())
        lines.append(f"took: {durations}")
    if view.failures:
        lines.append("failures: " + ", ".join(f"{code} {count}" for code, count in sorted(view.failures.items())))
    lines += [f"warning: {text}" for text in view.warnings]
    if view.components:
        lines += ["", _components(view)]
        for member in view.components:
            if member.told:
                words = ", ".join(f"{name} {value}" for name, value in member.told.items())
                lines.append(f"{member.instance} tells: {words}")
    if view.queues:
        lines += ["", _queues(view)]
    if view.recent_errors:
        lines += ["", "Recent errors"]
        for error in view.recent_errors[-_COMMANDS:]:
            who, why = error.get("instance", ""), _once(str(error.get("reason", "")), view)
            lines.append(f"  {_clock(error.get('at'))}  {who + '  ' if who else ''}{why}")
    if commands:
        lines += ["", "Commands"]
        for one in commands[-_COMMANDS:]:
            lines.append(f"  {_clock(one.begun_at)}  {_once(command_words(one), view)}")
    return "\n".join(lines)


def ended_words(last_end: Mapping[str, str] | None) -> str:
    """Describe the last end of a component that does not run."""
    if last_end is None:
        return ""
    words = f": {last_end['words']}" if last_end.get("words") else ""
    return f"ended {last_end.get('how', '')} at {_clock(last_end.get('at'))}{words}"


def _once(text: str, view: SwarmView) -> str:
    """Replace reasons that are already shown above."""
    known = [view.reason or "", *(one.failure or "" for one in view.components)]
    for one in sorted(filter(None, known), key=len, reverse=True):
        text = text.replace(one, "see above")
    return text


def _components(view: SwarmView) -> str:
    rows = [("COMPONENT", "ROLE", "STATE", "TPS", "STALE", "STARTS", "")]
    for one in view.components:
        tps = (
            f"{one.tps:g}" if one.enabled and one.tps is not None else "-"
        )  # a stopped component reports its last rate
        rows.append((one.instance, one.role, one.state, tps, span(one.staleness_s), str(one.starts), _why(one, view)))
    return table(rows, right=(3, 4, 5))


def _why(one: ComponentView, view: SwarmView) -> str:
    if one.failure is not None:
        return "see above" if one.failure in (view.reason or "") else one.failure
    return ended_words(one.last_end) if one.state in _NOT_THERE else ""


def _queues(view: SwarmView) -> str:
    rows = [("QUEUE", "READY", "TAKEN", "CONSUMERS", "DEAD LETTERS")]
    for one in view.queues:
        cells = (one.get(name, "-") for name in ("name", "ready", "taken", "consumers", "deadLetters"))
        rows.append(tuple(str(cell) for cell in cells))  # type: ignore[arg-type]
    return table(rows, right=(1, 2, 3, 4))


def _clock(at: object) -> str:
    """Return the time of day, UTC."""
    return str(at)[11:19] if at else "-"
