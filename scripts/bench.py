"""`make bench`: compare farro with its floor and its peers in interleaved rounds; exit 1 on a missed bar.

The measurements are in the package bench; this script runs them in order. Standard library only.

    make bench                   five rounds; writes docs/benchmarks.md and its chart. Half an hour on two cores
    make bench QUICK=1           few jobs, one round, nothing written, exit 0
    make bench ARGS="--only floor,farro --jobs 500 --rounds 2"
    make bench ARGS="--only swarms,web --add"   measure parts again; the rest comes from the last full run
    make bench ARGS=--render     write the documents again from the results of the last run

The environment variables QUICK, BENCH_JOBS, BENCH_ROUNDS and BENCH_ONLY set the same options. A peer that cannot be
installed is reported loudly; with CI=true that is a failure. All results are kept in .build/bench/results.json.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import (
    commands,
    contestants,
    machine,
    own,
    places,
    quiet,
    recovery,
    report,
    results,
    rounds,
    soak,
    swarms,
    web,
)
from bench.contestants import Contestant
from bench.machine import Missing, tell

KEPT = os.path.join(places.BUILD, "results.json")
FULL_JOBS, FULL_ROUNDS = 2000, 5  # about a second each: in a shorter round, the start would dominate
PARTS = (
    "commands",
    "recovery",
    "soak",
    "swarms",
    "web",
)  # measured separately, together with what they are compared with
ASIDE_ROUNDS = 2  # for contestants outside the main table: farro with other numbers of slots
UNEVEN = 4.0  # the largest ratio of the slowest to the fastest sync in a run that can be compared
SPACE_BYTES = 25 << 30  # a job's folder takes about 50 KiB in blocks, and nothing is removed before the end


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The size of a run."""

    jobs: int
    rounds: int
    pickups: int
    backlogs: dict[int, int]  # backlog → how often
    idle_s: float
    startups: int
    counted: int
    pings: int


def main() -> int:
    options = arguments()
    os.chdir(places.ROOT)
    compile_all()
    if options.render:
        return render()
    size = size_of(options)
    only = [word for word in options.only.replace(",", " ").split() if word]
    full = not options.quick and not only and size.jobs >= FULL_JOBS and size.rounds >= FULL_ROUNDS
    if full and shutil.disk_usage(places.ROOT).free < SPACE_BYTES:
        print(f"The full run needs {SPACE_BYTES >> 30} GiB of free space; `make bench QUICK=1` needs less than one.")
        return 2
    if options.add and not set(only) <= set(PARTS):
        print(f"--add is for the parts that are measured by themselves: --only {','.join(PARTS)}")
        return 2
    warn_of_load()
    scratch = places.Scratch()
    try:
        found = measure(size, only, full, scratch)
        if options.add:
            found = added(found)
        bars = results.bars(found)
        write(found, bars)
        print("\n" + report.terminal(found, bars), flush=True)
        return judge(found, bars, strict=not options.quick, partial=bool(only))
    finally:
        shutil.rmtree(scratch.memory, ignore_errors=True)
        clear_up(options.keep)


def compile_all() -> None:
    """Compile farro's modules, as an installation does for the peers: else every process would compile them again if
    PYTHONDONTWRITEBYTECODE is set."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compileall.compile_dir(os.path.join(places.ROOT, "src"), quiet=1)
    compileall.compile_dir(places.SCRIPTS, quiet=1)


def arguments() -> argparse.Namespace:
    env = os.environ
    quick = env.get("QUICK", "") not in ("", "0")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", default=quick, help="few jobs, one round, no files, exit 0")
    parser.add_argument("--jobs", type=int, default=int(env.get("BENCH_JOBS", 0)), help="jobs in a round")
    parser.add_argument("--rounds", type=int, default=int(env.get("BENCH_ROUNDS", 0)))
    parser.add_argument(
        "--only",
        default=env.get("BENCH_ONLY", ""),
        help=f"words in names; own; {'; '.join(PARTS)}",
    )
    parser.add_argument("--add", action="store_true", help="put these parts beside the last full run's, and write")
    parser.add_argument("--keep", action="store_true", help="leave the scratch folders; the next run removes them")
    parser.add_argument("--render", action="store_true", help="write the documents again, measure nothing")
    return parser.parse_args()


def added(parts: results.Results) -> results.Results:
    """Return the last full run with these parts replaced. Each part includes what it is compared with."""
    with open(KEPT, encoding="utf-8") as file:
        whole = results.Results.from_json(json.load(file))
    whole.own |= parts.own
    whole.missing = {name: why for name, why in whole.missing.items() if name not in parts.own} | parts.missing
    names = ", ".join(sorted(parts.own))
    whole.machine[f"{names}: in a run of their own"] = f"load at the end {parts.machine['load at the end']}"
    return whole


def render() -> int:
    with open(KEPT, encoding="utf-8") as file:
        found = results.Results.from_json(json.load(file))
    bars = results.bars(found)
    write(found, bars)
    print(report.terminal(found, bars))
    return judge(found, bars, strict=True, partial=not found.full)


def size_of(options: argparse.Namespace) -> Size:
    if options.quick:
        size = Size(jobs=200, rounds=1, pickups=20, backlogs={1000: 1}, idle_s=10, startups=5, counted=40, pings=5000)
    else:
        backlogs = {1000: FULL_ROUNDS, 10_000: 2, 100_000: 1}
        size = Size(
            jobs=FULL_JOBS,
            rounds=FULL_ROUNDS,
            pickups=40,
            backlogs=backlogs,
            idle_s=60,
            startups=21,
            counted=200,
            pings=20_000,
        )
    changes = {name: getattr(options, name) for name in ("jobs", "rounds") if getattr(options, name) > 0}
    return Size(**{**{name: getattr(size, name) for name in Size.__slots__}, **changes})


def warn_of_load() -> None:
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > cores / 4:
        tell(f"NOTE: load {load:.1f} on {cores} cores: others are working here, and the figures will show it")


# --- measuring -----------------------------------------------------------------------------------------------------


def measure(size: Size, only: Sequence[str], full: bool, scratch: places.Scratch) -> results.Results:
    wanted = [c for c in contestants.all_of_them(own.default_slots()) if chosen(c.name, only)]
    kills = not only or "recovery" in only
    missing = make_ready([*(c.package for c in wanted), *(recovery.packages() if kills else ())])
    redis = None
    try:
        redis = machine.find_redis() if kills or any(c.redis for c in wanted) else None
    except Missing as error:
        missing["Redis"] = str(error)
    ready = [c for c in wanted if c.package not in missing and (not c.redis or redis is not None)]
    found = results.Results(
        full=full,
        rounds=size.rounds,
        jobs=size.jobs,
        pickups=size.pickups,
        machine=machine.facts(scratch.folder),
        versions=versions(ready, redis),
        missing=missing,
    )
    if full:
        ready_s = time.monotonic()
        quiet.touch_memory()
        quiet.wait_for_inodes(scratch.folder, ready_s)
    found.entries = go_round(ready, size, scratch, redis)
    found.machine |= quietness()
    if not only or "own" in only:
        found.own = measure_own(size, scratch)
    large = size.jobs >= FULL_JOBS
    parts: dict[str, Callable[[], object]] = {
        "commands": lambda: commands.measure(scratch, commands.Size() if large else commands.QUICK),
        "recovery": lambda: measure_recovery(scratch, redis, recovery.Size() if large else recovery.QUICK),
        "soak": lambda: soak.measure(scratch, soak.Size() if large else soak.QUICK),
        "swarms": lambda: swarms.measure(scratch, swarms.Size() if large else swarms.QUICK),
        "web": lambda: web.measure(scratch, web.Size() if large else web.QUICK),
    }
    for name, part in parts.items():
        if not only or name in only:
            try:
                found.own[name] = part()
            except (Missing, rounds.Broken, subprocess.SubprocessError) as error:
                missing[name] = str(error)
    if redis is not None and (not only or "agq" in only):
        tell("agq: PING at one connection")
        try:
            found.own["pings"] = own.pings(scratch, redis, size.pings)
        except (Missing, subprocess.SubprocessError) as error:
            missing["agq PING"] = str(error)
    return found


noise: list[float] = []  # duration of one sync before each turn, ms


def quietness() -> dict[str, str]:
    """Report how steady the machine was: syncs of other processes can make ours twenty times slower within a second."""
    told = {"load at the end": f"{os.getloadavg()[0]:.1f}"}
    if noise:
        low, high = min(noise), max(noise)
        told["one sync, over the run"] = f"{low:.2f}–{high:.2f} ms before each turn"
        if high > UNEVEN * low:
            told["NOT QUIET"] = (
                f"a sync became {high / low:.0f} times dearer during the run: do not compare these figures"
            )
            tell(f"NOTE: {told['NOT QUIET']}")
    return told


def chosen(name: str, only: Sequence[str]) -> bool:
    return not only or any(word.lower() in name.lower() for word in only)


def make_ready(packages: Sequence[str]) -> dict[str, str]:
    """Make every peer's environment; return the missing ones with the reason."""
    missing = {}
    for package in dict.fromkeys(package for package in packages if package):
        try:
            machine.make_environment(package, contestants.ENVIRONMENTS[package])
        except Missing as error:
            missing[package] = str(error)
            tell(f"MISSING: {package}: {error}")
    return missing


def versions(ready: Sequence[Contestant], redis: str | None) -> dict[str, str]:
    said = subprocess.run([places.FARRO, "--version"], capture_output=True, text=True, check=True).stdout
    found = {"farro": said.split()[-1]}
    for package in dict.fromkeys(c.package for c in ready if c.package):
        found[package] = machine.versions(package, contestants.ENVIRONMENTS[package])
    if redis is not None:
        found["Redis server"] = machine.redis_version(redis)
    return found


def go_round(
    ready: Sequence[Contestant], size: Size, scratch: places.Scratch, redis: str | None
) -> list[results.Entry]:
    """Run every contestant in every round, each beginning with another one. A failed one is reported and left out."""
    samples: dict[str, list[rounds.Sample]] = {c.name: [] for c in ready}
    noise.clear()
    trouble: dict[str, str] = {}
    for turn in range(size.rounds):
        first = turn * len(ready) // size.rounds
        for contestant in [*ready[first:], *ready[:first]]:
            if contestant.name in trouble or (turn >= ASIDE_ROUNDS and not contestant.main):
                continue
            noise.append(machine.sync_ms(scratch.folder))
            try:
                with rounds.stand(contestant, scratch, redis) as place:
                    sample = rounds.take_turn(place, size.jobs, size.pickups)
            except (rounds.Broken, Missing, subprocess.SubprocessError) as error:
                trouble[contestant.name] = f"round {turn + 1}: {error}"
                tell(f"TROUBLE: {contestant.name}: {error}")
                continue
            samples[contestant.name].append(sample)
            tell(
                f"round {turn + 1}: {contestant.name:<32} end to end {sample.end_to_end_per_s:>8,.0f}/s"
                f"   enqueue {sample.enqueue_per_s:>8,.0f}/s   drain {sample.drain_per_s:>8,.0f}/s"
            )
    return [results.entry(c, samples[c.name], trouble.get(c.name, "")) for c in ready]


def measure_recovery(scratch: places.Scratch, redis: str | None, size: recovery.Size) -> dict[str, object]:
    """Measure recovery, and beside the same peers the start-up of their commands."""
    tell("recovery: kill -9 of the worker, farro and its peers")
    if redis is None:
        raise Missing("no Redis server")
    found: dict[str, object] = {"again": recovery.measure(scratch, redis, size)}
    return found | {"startup": own.peers_startup(scratch, redis, size.kills)}


def measure_own(size: Size, scratch: places.Scratch) -> dict[str, object]:
    found: dict[str, object] = {}
    kinds = ("process", "power")
    tell("farro alone: calls, enqueue_many, backlogs, idle workers, start-up")
    found["calls"] = {
        contestant.name: own.calls_per_job(scratch, contestant, size.counted)
        for kind in kinds
        for contestant in (contestants.floor(kind), contestants.farro(kind))
    }
    rates = {kind: [own.enqueue_many(scratch, kind, size.jobs) for _ in range(size.rounds)] for kind in kinds}
    found["enqueue_many"] = {kind: vars_of(results.figure(values)) for kind, values in rates.items()}
    found["startup"] = own.startup(scratch, size.startups)
    tell("plans: piped steps, a plan that grows, adding a step, the sandbox")
    found["plans"] = own.plans(scratch)
    found["idle"] = own.idle(scratch, size.idle_s, min(size.jobs, 200))
    found["house"] = own.house(scratch, size.idle_s)
    found["backlog"] = backlogs(size, scratch)
    return found


def backlogs(size: Size, scratch: places.Scratch) -> dict[str, dict[str, float]]:
    """Return medians by backlog. Short backlogs run before and after the long one, so that a slow disk affects both."""
    told: dict[int, list[dict[str, float]]] = {jobs: [] for jobs in size.backlogs}
    for turn in range(max(size.backlogs.values())):
        for jobs, times in size.backlogs.items():
            if turn < times:
                told[jobs].append(own.backlog(scratch, jobs))
                tell(f"backlog of {jobs:,}: {told[jobs][-1]['steady']:,.0f} jobs/s")
    return {
        str(jobs): {key: results.figure([one[key] for one in found]).median for key in found[0]}
        for jobs, found in told.items()
    }


def vars_of(figure: results.Figure) -> dict[str, float]:
    return {"median": figure.median, "low": figure.low, "high": figure.high}


# --- reporting -----------------------------------------------------------------------------------------------------


def write(found: results.Results, bars: Sequence[results.Bar]) -> None:
    """Write all results below .build, and the documents only after a full run."""
    put(KEPT, json.dumps(found.to_json(), indent=2) + "\n")
    if not found.full:
        return
    os.makedirs(os.path.join("docs", "images"), exist_ok=True)
    put(os.path.join("docs", "benchmarks.md"), report.markdown(found, bars))
    put(os.path.join("docs", "images", "bench.svg"), report.chart(found))
    if "soak" in found.own:
        put(os.path.join("docs", "images", "soak.svg"), report.curves(found.own["soak"]))


def put(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def judge(found: results.Results, bars: Sequence[results.Bar], *, strict: bool, partial: bool) -> int:
    """Return the exit code. A bar that was not measured counts as missed, unless only a part was requested."""
    missed = [bar for bar in bars if bar.held is False or (bar.held is None and not partial)]
    broken = [entry.name for entry in found.entries if entry.trouble]
    print()
    for bar in missed:
        print(f"MISSED: {bar.what}: wanted {bar.wanted}, found {bar.found}")
    if found.missing:
        print(f"MISSING PEERS: {', '.join(found.missing)}")
    if broken:
        print(f"BROKEN CONTESTANTS: {', '.join(broken)}")
    if not missed:
        print("Every bar that was measured was cleared." if partial else "Every bar was cleared.")
    if names := found.implausible():
        print(f"NOT QUIET: faster end to end than at enqueueing alone, which cannot be: {'; '.join(names)}")
    if "NOT QUIET" in found.machine:
        print(f"NOT QUIET: {found.machine['NOT QUIET']}")
    if not found.full:
        print("Not the full run: no document was written.")
    if not strict:
        return 0
    return 1 if missed or broken or (found.missing and os.environ.get("CI") == "true") else 0


def clear_up(keep: bool) -> None:
    if keep:
        return
    tell("removing the scratch folders, gently (Ctrl-C leaves them to the next run)")
    try:
        removed = places.remove_gently(places.WORK)
    except KeyboardInterrupt:
        tell("left as they are")
    else:
        tell(f"removed {removed:,} files and folders")


if __name__ == "__main__":
    sys.exit(main())
