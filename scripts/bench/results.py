"""Sum up the measurements, and check the bars that farro must clear."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.contestants import Contestant
from bench.rounds import Sample

END_TO_END_OF_FLOOR = 0.7
CALLS_OF_FLOOR = 1.3
LONG_OF_SHORT_BACKLOG = 0.8
PICKUP_MS = 3.0
IDLE_MS = 10.0
RSS_MB = 60.0
HOUSE_PERCENT = 1.0  # of a core: all idle processes of a SPEC-1 root together
HOUSE_MB = 400.0
LIGHT_COMMAND, COMMAND = 3.0, 15.0
PIPED_OF_PLAIN = 1.3
IN_STEPS = 0.9
ADD_MS = 3.0
SANDBOX_MS = {"A": 10.0, "B": 3.0}
PING_OF_REDIS = 0.3
COMMANDS_OF_XARGS, POWER_COMMANDS_OF_XARGS, SLOTS_OF_PROCESSES = 0.5, 0.3, 0.85
COMMANDS_OF_PARALLEL = 2.0
RECOVERY_S = {"farro up, files": (0.1, 1.0), "farro, Redis": (3.0, None)}  # p50, p99
LIST_MS, EVENT_MS, SLOWER_PERCENT = 100.0, 200.0, 5.0  # of farro web
COMPONENT_MS = 20.0  # of a swarm's start, a component, beyond its process
FAN_IN_PERCENT = 20.0  # of a core
PIPELINE_OF_BARE = 0.7
SHORT, LONG = 1_000, 100_000  # backlogs


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """Median and spread over the rounds."""

    median: float
    low: float
    high: float


def figure(values: Sequence[float]) -> Figure:
    return Figure(median=statistics.median(values), low=min(values), high=max(values))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile by nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(kw_only=True)
class Entry:
    """One contestant's rounds."""

    name: str
    kind: str
    durability: str
    acknowledges: bool
    promise: str
    main: bool
    as_shipped: bool
    end_to_end: Figure | None = None
    enqueue: Figure | None = None
    drain: Figure | None = None
    pickup_p50_ms: Figure | None = None  # of each round's median
    pickup_p99_ms: float | None = None  # of all rounds' pickups together
    trouble: str = ""


def entry(contestant: Contestant, samples: Sequence[Sample], trouble: str) -> Entry:
    made = Entry(
        name=contestant.name,
        kind=contestant.kind,
        durability=contestant.durability,
        acknowledges=contestant.acknowledges,
        promise=contestant.promise,
        main=contestant.main,
        as_shipped=contestant.as_shipped,
        trouble=trouble,
    )
    if samples:
        made.end_to_end = figure([sample.end_to_end_per_s for sample in samples])
        made.enqueue = figure([sample.enqueue_per_s for sample in samples])
        made.drain = figure([sample.drain_per_s for sample in samples])
        medians_ms = [percentile([ns / 1e6 for ns in sample.pickup_ns], 0.5) for sample in samples]
        made.pickup_p50_ms = figure(medians_ms)
        made.pickup_p99_ms = percentile([ns / 1e6 for sample in samples for ns in sample.pickup_ns], 0.99)
    return made


@dataclass(kw_only=True)
class Results:
    """A whole run. `own` holds what is measured of farro alone; an absent key was not measured."""

    full: bool
    rounds: int
    jobs: int
    pickups: int
    machine: dict[str, str]
    versions: dict[str, str]
    entries: list[Entry] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # peer → why
    own: dict[str, Any] = field(default_factory=dict)

    def find(self, kind: str, durability: str) -> Entry | None:
        """Return the floor, or farro as it ships: on files, on Redis (`shared`) or behind agq."""
        return next((e for e in self.entries if (e.kind, e.durability, e.main) == (kind, durability, True)), None)

    def implausible(self) -> list[str]:
        """Return the contestants that were faster end to end than at enqueueing alone. That is impossible on a steady
        machine, so its load changed between the two phases."""
        return [
            e.name
            for e in self.entries
            if e.end_to_end is not None and e.enqueue is not None and e.end_to_end.median > 1.1 * e.enqueue.median
        ]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Results:
        made = cls(**{**data, "entries": [Entry(**entry) for entry in data["entries"]]})
        for entry in made.entries:
            for name in ("end_to_end", "enqueue", "drain", "pickup_p50_ms"):
                if isinstance(found := getattr(entry, name), dict):
                    setattr(entry, name, Figure(**found))
        return made


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    what: str
    wanted: str
    found: str
    held: bool | None  # None: not measured


def bars(results: Results) -> list[Bar]:
    return [*_throughput(results), *_shared(results), *_calls(results), *_own(results)]


def _shared(results: Results) -> list[Bar]:
    """Return the bars across machines: the Redis store, and agq in front of files, each against the peers on Redis that
    acknowledge."""
    found: list[Bar] = []
    for mine in results.entries:
        for peer in results.entries:
            same = peer.durability == mine.durability and peer.acknowledges
            if mine.kind in ("shared", "agq") and peer.kind == "redis" and same:
                found += _ahead(mine, peer)
    ratio = results.own.get("pings", {}).get("ratio")
    found.append(_bar("agq: PING at one connection, of redis-server's", ratio, PING_OF_REDIS, least=True, unit=" x"))
    return found


def _ahead(mine: Entry, peer: Entry) -> list[Bar]:
    pairs = (
        ("end to end", mine.end_to_end, peer.end_to_end),
        ("pickup p50", peer.pickup_p50_ms, mine.pickup_p50_ms),  # the smaller value is better
    )
    return [
        _bar(
            f"{mine.name}: {what}, ahead of {peer.name}",
            upper.median / lower.median if upper is not None and lower is not None and lower.median else None,
            1.0,
            least=True,
            unit=" x",
            strict=True,
        )
        for what, upper, lower in pairs
    ]


def _throughput(results: Results) -> list[Bar]:
    found: list[Bar] = []
    for durability in ("process", "power"):
        farro = results.find("farro", durability)
        mine = farro.end_to_end.median if farro is not None and farro.end_to_end is not None else None
        if durability == "process":
            floor = results.find("floor", durability)
            base = floor.end_to_end.median if floor is not None and floor.end_to_end is not None else None
            share = mine / base if mine is not None and base is not None else None
            found.append(_bar("process: end to end, of the floor", share, END_TO_END_OF_FLOOR, least=True, unit=" x"))
        for peer in results.entries:
            if not must_beat(peer, durability):
                continue
            theirs = peer.end_to_end.median if peer.end_to_end is not None else None
            ratio = mine / theirs if mine is not None and theirs is not None else None
            what = f"{durability}: end to end, of {peer.name}"
            found.append(_bar(what, ratio, 1.0, least=True, unit=" x", strict=True))
    return found


def must_beat(peer: Entry, durability: str) -> bool:
    """Return peers as they ship. `process`: all on files or SQLite; `power`: the power-safe ones that acknowledge."""
    if peer.kind in ("farro", "shared", "agq", "floor") or not peer.as_shipped:
        return False
    if durability == "process":
        return peer.kind in ("file", "sqlite")
    return peer.durability == "power" and peer.acknowledges


def _calls(results: Results) -> list[Bar]:
    found = []
    for durability in ("process", "power"):
        counted = results.own.get("calls", {})
        mine, floor = counted.get(f"farro, {durability}"), counted.get(f"floor, {durability}")
        ratio = mine["calls"] / floor["calls"] if mine and floor else None
        found.append(_bar(f"{durability}: mutating calls a job, of the floor's", ratio, CALLS_OF_FLOOR, unit=" x"))
    return found


def _own(results: Results) -> list[Bar]:
    own = results.own
    backlogs = own.get("backlog", {})
    short, long = backlogs.get(str(SHORT)), backlogs.get(str(LONG))
    share = long["whole"] / short["steady"] if short and long else None
    farro = results.find("farro", "process")
    pickup = farro.pickup_p50_ms.median if farro is not None and farro.pickup_p50_ms is not None else None
    idle, house = own.get("idle", {}), own.get("house", {})
    commands = own.get("startup", {})
    found = [
        _bar(
            f"drain at a backlog of {LONG:,}, of that at {SHORT:,}", share, LONG_OF_SHORT_BACKLOG, least=True, unit=" x"
        ),
        _bar("pickup by an idle worker, p50", pickup, PICKUP_MS, unit=" ms", strict=True),
        _bar("CPU of an idle worker in 60 s", idle.get("cpu_ms_in_60_s"), IDLE_MS, unit=" ms"),
        _bar("memory of a Runner worker", idle.get("rss_mb"), RSS_MB, unit=" MB"),
        _bar("CPU of 2 workers x 6 roles, manager, watchdog, idle", house.get("cpu_percent"), HOUSE_PERCENT, unit=" %"),
        _bar("their memory together", house.get("pss_mb") or house.get("rss_mb"), HOUSE_MB, unit=" MB"),
    ]
    limits = {
        "farro --version": LIGHT_COMMAND,
        "farro task add": LIGHT_COMMAND,
        "farro ls --json": COMMAND,
        "farro enqueue": COMMAND,
    }
    for name, limit in limits.items():
        ratio = commands.get(name, {}).get("ratio")
        found.append(_bar(f"{name}, of python -c pass", ratio, limit, unit=" x"))
    return [*found, *_plans(results), *_commands(results), *_recovery(results), *_swarms(results), *_web(results)]


def _commands(results: Results) -> list[Bar]:
    found = results.own.get("commands", {})
    bars = (
        ("process: jobs of one command, of xargs -P2", "process_of_xargs", COMMANDS_OF_XARGS),
        ("process: jobs of one command, of GNU parallel --joblog", "process_of_parallel", COMMANDS_OF_PARALLEL),
        ("power: jobs of one command, of xargs -P2", "power_of_xargs", POWER_COMMANDS_OF_XARGS),
        ("one worker with two slots, of two workers with one", "slots_of_processes", SLOTS_OF_PROCESSES),
    )
    return [_bar(what, found.get(name), limit, least=True, unit=" x") for what, name, limit in bars]


def _recovery(results: Results) -> list[Bar]:
    again = results.own.get("recovery", {}).get("again", {})
    found = []
    for name, (p50_s, p99_s) in RECOVERY_S.items():
        told = again.get(name, {})
        found.append(_bar(f"{name}: job runs again after kill -9, p50", told.get("p50_s"), p50_s, unit=" s"))
        if p99_s is not None:
            found.append(_bar(f"{name}: job runs again after kill -9, p99", told.get("p99_s"), p99_s, unit=" s"))
    return found


def _web(results: Results) -> list[Bar]:
    web = results.own.get("web", {})
    what = f"list of {web.get('jobs', LONG)} jobs over HTTP with {web.get('viewers', 100)} viewers, p95"
    return [
        _bar(what, web.get("list_p95_ms"), LIST_MS, unit=" ms", strict=True),
        _bar("an event at a viewer after the commit, p95", web.get("event_p95_ms"), EVENT_MS, unit=" ms", strict=True),
        _bar("a busy queue, slower with farro web", web.get("slower_percent"), SLOWER_PERCENT, unit=" %", strict=True),
    ]


def _swarms(results: Results) -> list[Bar]:
    swarms = results.own.get("swarms", {})
    start, fan_in, pipeline = (swarms.get(name, {}) for name in ("start", "fan_in", "pipeline"))
    count = start.get("components", 50)
    what = f"start of a swarm of {count:.0f}: CPU a component beyond its process"
    ratio = pipeline.get("ratio", {}).get("per_s")
    return [
        _bar(what, start.get("cpu_ms"), COMPONENT_MS, unit=" ms", strict=True),
        *(
            _bar(
                f"controller at the status of {fan_in.get(bus, {}).get('components', 500):.0f} a second, {bus}",
                fan_in.get(bus, {}).get("percent"),
                FAN_IN_PERCENT,
                unit=" % of a core",
                strict=True,
            )
            for bus in ("files", "amqp")
        ),
        _bar("pipeline of three stages, of bare aio-pika", ratio, PIPELINE_OF_BARE, least=True, unit=" x"),
    ]


def _plans(results: Results) -> list[Bar]:
    plans = results.own.get("plans", {})
    piped, grown = plans.get("piped", {}), plans.get("grown", {})
    beyond = results.own.get("startup", {}).get("farro task add", {}).get("beyond_ms")
    return [
        _bar("20 piped steps, of 20 plain subprocess.run", piped.get("ratio"), PIPED_OF_PLAIN, unit=" x"),
        _bar("wall time in its steps, of a plan that grows to 1000", grown.get("share"), IN_STEPS, least=True),
        _bar("farro.add_task", plans.get("add", {}).get("ms"), ADD_MS, unit=" ms", strict=True),
        _bar("farro task add, beyond python -c pass", beyond, ADD_MS, unit=" ms", strict=True),
        *(
            _bar(f"sandbox {level} overhead", plans.get("sandbox", {}).get(f"{level}_over_ms"), limit, unit=" ms")
            for level, limit in SANDBOX_MS.items()
        ),
    ]


def _bar(
    what: str, found: float | None, limit: float, *, least: bool = False, unit: str = "", strict: bool = False
) -> Bar:
    sign = (">" if strict else ">=") if least else ("<" if strict else "<=")
    wanted = f"{sign} {limit:g}{unit}"
    if found is None:
        return Bar(what=what, wanted=wanted, found="not measured", held=None)
    better = found > limit if least else found < limit
    digits = 2 if abs(found / limit - 1) > 0.01 else 4  # "1.30, wanted 1.3: missed" would confuse a reader
    return Bar(
        what=what, wanted=wanted, found=f"{found:.{digits}f}{unit}", held=better or (found == limit and not strict)
    )
