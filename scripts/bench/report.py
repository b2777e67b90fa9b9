"""Write the report: the table on the terminal, docs/benchmarks.md, and its chart."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from bench.recovery import LIMIT_S
from bench.results import Bar, Entry, Figure, Results, must_beat

# The curves of the soak, and their titles.
CURVES = {
    "memory_mb": "memory, MB",
    "descriptors": "descriptors",
    "inodes": "inodes",
    "pickup_p50_ms": "pickup p50, ms",
}
TITLES = {"process": "Survives a killed process", "power": "Survives a power cut"}


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def spread(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return f"{number(figure.median)} ({number(figure.low)}–{number(figure.high)})"


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def of(found: Entry | None, base: Entry | None) -> str:
    """Return a ratio of end-to-end medians."""
    if found is None or base is None or found.end_to_end is None or base.end_to_end is None:
        return "-"
    return f"{found.end_to_end.median / base.end_to_end.median:.2f}"


def rows(results: Results, durability: str, *, main: bool) -> list[list[str]]:
    floor, farro = results.find("floor", durability), results.find("farro", durability)
    wanted = [e for e in results.entries if e.durability == durability and (e.main == main or e is farro)]
    made = []
    for entry in wanted:
        p50 = entry.pickup_p50_ms.median if entry.pickup_p50_ms else None
        made.append(
            [
                entry.name,
                spread(entry.end_to_end),
                of(entry, floor),
                of(farro, entry),
                spread(entry.enqueue),
                spread(entry.drain),
                f"{milliseconds(p50)} / {milliseconds(entry.pickup_p99_ms)}",
                "yes" if entry.acknowledges else "no",
            ]
        )
    return made


HEAD = ["", "end to end, jobs/s", "of floor", "farro is x", "enqueue/s", "drain/s", "pickup ms p50/p99", "acks"]


# --- the terminal --------------------------------------------------------------------------------------------------


def terminal(results: Results, bars: Sequence[Bar]) -> str:
    table = [HEAD]
    for durability, title in TITLES.items():
        found = [*rows(results, durability, main=True), *rows(results, durability, main=False)[1:]]
        if found:
            table += [[f"-- {title}"], *found]
    blocks = [_aligned(table)]
    own = results.own
    if own.get("calls"):
        lines = [["", "mutating calls a job", "syncs a job"]]
        lines += [[name, f"{told['calls']:.2f}", f"{told['syncs']:.2f}"] for name, told in own["calls"].items()]
        blocks.append(_aligned(lines))
    facts = list(_facts(results))
    if facts:
        blocks.append(_aligned(facts))
    for entry in results.entries:
        if entry.trouble:
            blocks.append(f"TROUBLE {entry.name}: {entry.trouble}")
    for name, why in results.missing.items():
        blocks.append(f"{'=' * 70}\nMISSING {name}: {why}\n{'=' * 70}")
    lines = [["bar", "wanted", "found", ""]]
    lines += [[bar.what, bar.wanted, bar.found, verdict(bar)] for bar in bars]
    blocks.append(_aligned(lines))
    return "\n\n".join(blocks)


def verdict(bar: Bar) -> str:
    return {True: "ok", False: "MISSED", None: "not measured"}[bar.held]


def _facts(results: Results) -> Iterable[list[str]]:
    own = results.own
    for durability, figure in own.get("enqueue_many", {}).items():
        yield [f"farro, {durability}: enqueue_many, 100 a call", f"{spread(Figure(**figure))} jobs/s"]
    for backlog, told in own.get("backlog", {}).items():
        yield [
            f"drain at a backlog of {int(backlog):,}",
            f"{number(told['steady'])} jobs/s, from the worker's start {number(told['whole'])}; "
            f"first job after {told['first_job_s'] * 1000:.0f} ms",
        ]
    if "idle" in own:
        told = own["idle"]
        scaled = "" if told["seconds"] >= 60 else f" (measured for {told['seconds']:.0f} s and scaled)"
        yield ["an idle worker", f"{told['cpu_ms_in_60_s']:.1f} ms CPU in 60 s{scaled}, {told['rss_mb']:.1f} MB"]
    if "house" in own:
        told = own["house"]
        memory = told.get("pss_mb") or told["rss_mb"]  # earlier runs counted shared pages in each process
        yield [
            f"manager, watchdog and 2 workers x 6 roles, idle ({told['processes']:.0f} processes)",
            f"{told['cpu_percent']:.2f} % of a core together, over {told['seconds']:.0f} s; {memory:.0f} MB",
        ]
    if "pings" in own:
        told = own["pings"]
        yield [
            "PING at one connection (redis-benchmark -c 1)",
            f"agq {number(told['agq_per_s'])}/s, redis-server {number(told['redis_per_s'])}/s: {told['ratio']:.2f} x",
        ]
    for name, told in own.get("startup", {}).items():
        said = f"{told['seconds'] * 1000:.0f} ms, {told['ratio']:.1f} x" if told else "there is no such command yet"
        yield [name, said]
    if "plans" in own:
        piped, grown, add = (own["plans"][name] for name in ("piped", "grown", "add"))
        yield [
            "20 piped steps",
            f"{piped['farro_s'] * 1000:.1f} ms; 20 plain subprocess.run {piped['plain_s'] * 1000:.1f} ms",
        ]
        yield [
            "100 steps of 50 ms that grow to 1000, two at once",
            f"{grown['wall_s']:.1f} s, {grown['share']:.1%} of it in the steps",
        ]
        yield ["farro.add_task", f"{add['ms']:.2f} ms"]
        box = own["plans"].get("sandbox", {})
        for level in ("A", "B"):
            if f"{level}_ms" in box:
                told = f"{box[f'{level}_ms']:.1f} ms; without {box['plain_ms']:.1f} ms"
                yield [f"a step in the sandbox, level {level}", told]

    for name, per_s in own.get("commands", {}).get("per_s", {}).items():
        yield [f"jobs of one command (`true`, or as named), two at once: {name}", f"{number(per_s)} jobs/s"]
    yield from _recovery(results.own.get("recovery", {}))
    if "soak" in own:
        told = own["soak"]
        ends = ", ".join(
            f"{title} {number(told[name][2])} → {number(told[name][-1])}" for name, title in CURVES.items()
        )
        yield [f"{told['jobs']} jobs in {told['seconds']:.0f} s under farro up", ends]
    yield from _swarms(own.get("swarms", {}))
    yield from _web(own.get("web", {}))


def _recovery(told: dict[str, Any]) -> Iterable[list[str]]:
    for name, found in told.get("again", {}).items():
        if "trouble" in found:
            yield [f"kill -9 of a worker: {name}", found["trouble"]]
        elif not found["again"]:
            yield [f"kill -9 of a worker: {name}", f"its job does not run again within {LIMIT_S:.0f} s"]
        else:
            said = f"its job runs again after {found['p50_s']:.2f} s (p99 {found['p99_s']:.2f} s)"
            yield [f"kill -9 of a worker: {name}", f"{said}, {found['again']} of {found['kills']} times"]
    for name, found in told.get("startup", {}).items():
        yield [f"start-up beside peers: {name}", f"{found['seconds'] * 1000:.0f} ms, {found['ratio']:.1f} x"]


def _web(told: dict[str, Any]) -> Iterable[list[str]]:
    if not told:
        return
    yield [
        f"farro web with {told['jobs']} jobs and {told['viewers']} viewers: a list",
        f"{told['list_p50_ms']:.1f} ms, p95 {told['list_p95_ms']:.1f} ms; ready after {told['ready_s']:.1f} s, "
        f"{told['rss_mb']:.0f} MB",
    ]
    yield ["an event after the commit", f"{told['event_p50_ms']:.0f} ms, p95 {told['event_p95_ms']:.0f} ms"]
    yield ["a busy queue with farro web beside it", f"{told['slower_percent']:.1f} % slower"]


def _swarms(told: dict[str, Any]) -> Iterable[list[str]]:
    if not told:
        return
    start = told["start"]
    yield [
        f"a swarm of {start['components']:.0f} on the files bus: to start it, a component",
        f"{start['cpu_ms']:.1f} ms CPU beyond {start['bare_ms']:.0f} ms of its process, the controller's "
        f"{start['controller_ms']:.1f} in it; {start['wall_ms']:.1f} ms of time, {start['enable_ms']:.1f} to enable it",
    ]
    for bus, fan_in in told["fan_in"].items():
        yield [
            f"a controller that hears {fan_in['components']:.0f} components once a second, {bus}",
            f"{fan_in['percent']:.1f} % of a core, over {fan_in['seconds']:.0f} s",
        ]
    titles = {"bare": "bare aio-pika", "amqp": "farro on RabbitMQ", "files": "farro on files"}
    for name, title in titles.items():
        found = told["pipeline"][name]
        yield [
            f"source, transform, sink: {title}",
            f"{number(found['per_s'])} items/s, {found['cpu_us']:.0f} us CPU an item in its three processes",
        ]


def _aligned(table: Sequence[Sequence[str]]) -> str:
    full = [row for row in table if len(row) > 1]
    widths = [max(len(row[i]) for row in full) for i in range(max(map(len, full)))]
    return "\n".join("  ".join(cell.ljust(widths[i]) for i, cell in enumerate(row)).rstrip() for row in table)


# --- docs/benchmarks.md --------------------------------------------------------------------------------------------


def markdown(results: Results, bars: Sequence[Bar]) -> str:
    parts = [
        "# Benchmarks",
        "",
        "Made by `make bench`; do not edit. What the figures mean is at the end of the page.",
        "",
        "![End-to-end jobs a second of farro, its floor and its peers](images/bench.svg)",
        "",
    ]
    for durability, title in TITLES.items():
        parts += [f"## {title} (`{durability}`)", "", *_table(HEAD, rows(results, durability, main=True)), ""]
        parts += ["farro with other numbers of slots in each worker:", ""]
        parts += [*_table(HEAD, rows(results, durability, main=False)), ""]
    parts += ["## What each one promises", ""]
    promises = [[e.name, e.promise] for e in results.entries if e.main]
    parts += [*_table(["", "durability"], promises), ""]
    parts += ["## Calls and syncs a job", ""]
    calls = [
        [name, f"{told['calls']:.2f}", f"{told['syncs']:.2f}", ", ".join(f"{op} {n:g}" for op, n in _calls(told))]
        for name, told in results.own.get("calls", {}).items()
    ]
    parts += [*_table(["", "mutating calls", "syncs", "which"], calls), ""]
    parts += ["## farro alone", "", *_table(["", ""], _facts(results)), ""]
    parts += ["## Bars", ""]
    parts += [*_table(["bar", "wanted", "found", ""], [[b.what, b.wanted, b.found, verdict(b)] for b in bars]), ""]
    trouble = [f"- {e.name}: {e.trouble}" for e in results.entries if e.trouble]
    trouble += [f"- {name} is missing: {why}" for name, why in results.missing.items()]
    trouble += [
        f"- {name}: end to end beats enqueue alone, so the machine was not even" for name in results.implausible()
    ]
    if trouble:
        parts += ["## What did not run, or not evenly", "", *trouble, ""]
    parts += ["## The machine", ""]
    parts += [*_table(["", ""], [*results.machine.items(), *results.versions.items()]), ""]
    parts += [READING.format(rounds=results.rounds, jobs=results.jobs, pickups=results.pickups)]
    return "\n".join(parts)


def _calls(told: dict[str, dict[str, float]]) -> list[tuple[str, float]]:
    return [(op, round(n, 2)) for op, n in told["by_call"].items() if "sync" not in op]


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return lines + [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in body]


READING = """## How to read this

- **A job** does nothing but note the time. What is measured is the queue, not the work: with jobs of a second,
  every queue here is fast enough.
- **Rounds.** {rounds} rounds; in each, every contestant has its turn, so that a slow minute of the machine meets
  all of them. Figures are medians of the rounds with their lowest and highest value in brackets. A round is
  {jobs:,} jobs; the forking RQ gets a fifth of that.
- **End to end**: two idle worker processes and one producer that enqueues one by one; from the first call to the
  last job done. **Enqueue** is the producer alone, **drain** the workers alone on a full queue, between the first
  and the last tenth of the jobs. **Pickup** is the time from the start of the enqueue call to the start of the job,
  one job at a time, {pickups} a round; p99 is of all rounds together.
- **Of floor**: end to end, divided by the floor's. The floor (`scripts/bench/floor.py`) makes the system calls that
  the protocol of a job folder needs, with real bytes, in a bare loop; it imports no farro. **farro is x**: farro's
  end to end, divided by this contestant's.
- **Acks**: a job whose worker is killed in the middle comes back. Without, it is lost, and the queue is spared a
  second write.
- **What the peers get.** Two worker processes each: huey's consumer with two, two RQ `SimpleWorker`s (its fastest;
  the forking default is shown too), two Celery workers with the solo pool, Dramatiq with eight threads in each,
  taskiq on streams, arq with ten jobs at once in each. persist-queue is safe within one process only, so it has two
  threads beside its producer there. They log warnings only and keep no results; farro logs two lines a job and keeps
  each job's folder with its result, as it ships.
- **Redis** runs on this machine, without persistence or with `appendfsync always`, on the same disk as farro's
  root. `farro, Redis …` is farro's own store on that server: its end is the start of the last job, as for the peers.
  `farro, agq, …` is `farro agq` in front of files: redis-py pushes, two `agw` processes work, and the end is the last
  folder in completed. With `local workers` two `farro worker` processes beside it take the jobs from the root.
- **Calls** are mutating system calls (a create and its write are two), counted at farro's filesystem seam in a run
  of its own with the default slots; syncs are counted apart.
- **Backlog**: so many jobs are queued before the workers start. The bar compares the long one from the worker's
  start, with the listing of the queue, to the steady rate of the short one.
- **Jobs of one command.** Each starts `true`. xargs, make and GNU parallel keep no job and never repeat one;
  task-spooler is asked once for each job, as it is used, and keeps its queue in memory; farro claims, runs and
  commits each from its folder, with its output in files. farro's rate is
  that between the first and the last tenth of the jobs; GNU parallel gets a quarter of them.
- **Recovery.** A job hangs, its worker is killed with `kill -9` (every process of its session), and the time counts
  until the job starts again. Two workers run. `farro up` and the peers have their defaults. A job that does not run
  again within a minute is lost, is marked as failed, or waits for a longer timeout of its system.
- **Soak.** Blocks of jobs under `farro up`, one at a time; `farro prune` runs half-way. The curves are in
  [images/soak.svg](images/soak.svg).
- **Swarms.** To start a component beyond its process: the CPU of a controller and of all its components from the
  signal to the confirmation that they work, less what each component had used when it had imported everything; the
  time is that of a start beside one of as many bare processes that import the SDK and open the bus. A controller's
  CPU is taken while processes that only sleep have their status told by another. The pipelines are three processes
  each, with persistent messages, publisher confirms, an acknowledgement after the confirm of what came of an item,
  and the same prefetch; on files every item is synced.
- **Before the first round** free memory is touched once (a virtual machine is given a page when it first touches it,
  and only those who write new files would pay for it), and on ext4 without a journal six minutes pass, until it has
  forgotten what was deleted before.
- Scratch folders are removed at the very end and in small pieces: beside mass deletes ext4 creates files ten to
  forty times slower, and the next contestant would pay for it.
"""


# --- the chart -----------------------------------------------------------------------------------------------------

_ROW, _LEFT, _WIDE, _RIGHT = 22, 230, 400, 130
_TEXT, _FARRO, _FLOOR, _PEER = "#7d8590", "#2f81f7", "#a371f7", "#8b949e"  # readable on white and on black


def chart(results: Results) -> str:
    """Draw the end-to-end medians as horizontal bars with a thin line for the spread: a block with its own scale for
    each class."""
    parts: list[str] = []
    y = 8
    for durability, title in TITLES.items():
        shown = [e for e in results.entries if e.durability == durability and e.main and e.end_to_end is not None]
        if not shown:
            continue
        shown.sort(key=lambda e: -(e.end_to_end.median if e.end_to_end else 0))
        scale = _WIDE / max(e.end_to_end.high for e in shown if e.end_to_end)
        y += 16
        parts.append(f'<text x="0" y="{y}" font-weight="bold">{html.escape(title)}: end to end, jobs/s</text>')
        y += 10
        for entry in shown:
            assert entry.end_to_end is not None
            parts += _bar_row(entry, entry.end_to_end, scale, y, bold=must_beat(entry, durability))
            y += _ROW
        y += 14
    total = _LEFT + _WIDE + _RIGHT
    note = "Line: lowest and highest round. Bold: peers that farro must be ahead of in this class."
    parts.append(f'<text x="0" y="{y + 6}">{note}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {y + 16}" width="{total}" height="{y + 16}"'
            f' font-family="sans-serif" font-size="12" fill="{_TEXT}" role="img">',
            "<title>End-to-end jobs a second of farro, its floor and its peers</title>",
            *parts,
            "</svg>",
            "",
        ]
    )


def _bar_row(entry: Entry, figure: Figure, scale: float, y: int, *, bold: bool) -> list[str]:
    own = ("farro", "shared", "agq")
    colour = _FARRO if entry.kind in own else _FLOOR if entry.kind == "floor" else _PEER
    weight = ' font-weight="bold"' if bold or entry.kind in own else ""
    middle = y + _ROW // 2
    low, high = _LEFT + figure.low * scale, _LEFT + figure.high * scale
    return [
        f'<text x="{_LEFT - 8}" y="{middle + 4}" text-anchor="end"{weight}>{html.escape(entry.name)}</text>',
        f'<rect x="{_LEFT}" y="{y + 4}" width="{max(figure.median * scale, 1):.1f}" height="{_ROW - 8}" rx="2"'
        f' fill="{colour}"/>',
        f'<line x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}" stroke="{_TEXT}" stroke-width="1.5"/>',
        f'<text x="{high + 8:.1f}" y="{middle + 4}">{number(figure.median)}</text>',
    ]


def curves(soak: dict[str, Any]) -> str:
    """Draw the curves of the soak, each in a panel with its own scale, from zero."""
    wide, high, gap = 300, 90, 34
    parts = []
    for index, (name, title) in enumerate(CURVES.items()):
        left, top = (index % 2) * (wide + 60), (index // 2) * (high + gap) + 20
        values = soak[name]
        most = max(values) or 1.0
        points = " ".join(
            f"{left + at * wide / (len(values) - 1):.1f},{top + high - value * high / most:.1f}"
            for at, value in enumerate(values)
        )
        parts.append(f'<text x="{left}" y="{top - 6}">{html.escape(title)}: at most {number(most)}</text>')
        parts.append(f'<line x1="{left}" y1="{top + high}" x2="{left + wide}" y2="{top + high}" stroke="{_PEER}"/>')
        parts.append(f'<polyline points="{points}" fill="none" stroke="{_FARRO}" stroke-width="1.5"/>')
    size = (2 * wide + 60, 2 * (high + gap) + 10)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}"'
            f' height="{size[1]}" font-family="sans-serif" font-size="12" fill="{_TEXT}" role="img">',
            "<title>Memory, descriptors, inodes and pickup time while farro up runs jobs</title>",
            *parts,
            "</svg>",
            "",
        ]
    )
