"""Reconciling and aggregating: a controller's decisions, tried against components of random behaviour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farro.swarm import lifecycle, plan
from farro.swarm.lifecycle import Observation
from farro.swarm.reconcile import CommandGoal, ComponentAction, ReconcileDecision, Target, reconcile
from farro.swarm.wire.messages import Totals

MUTE = "demo-mod was not healthy 20 s after its launch: it never said anything"
TIMES = plan.Timeouts(provision=20, ready=60, start=10, start_total=40, stop=8)


def chain(*roles: str, instances: int = 1) -> plan.SwarmPlan:
    bees = tuple(
        plan.Bee(
            role=role,
            command=("x",),
            instances=instances,
            work=plan.BeeQueues(inputs=(f"q{n}",) if n else (), outputs=(f"q{n + 1}",)),
        )
        for n, role in enumerate(roles)
    )
    return plan.SwarmPlan(id="demo", bees=bees, timeouts=TIMES)


@dataclass
class Behaviour:
    """How a component behaves: seconds until it answers, or never."""

    healthy_after_s: float | None = 1.0
    enables_after_s: float | None = 1.0
    disables_after_s: float | None = 1.0
    dies_at_s: float | None = None


@dataclass
class World:
    """Components, a clock, and a controller that does only what was decided."""

    swarm: plan.SwarmPlan
    habits: dict[str, Behaviour] = field(default_factory=dict)
    now_s: float = 0.0
    seen: dict[str, Observation] = field(default_factory=dict)
    asked: dict[str, tuple[bool, float]] = field(default_factory=dict)
    done: list[ComponentAction] = field(default_factory=list)
    observer: Callable[[ComponentAction], None] = lambda one: None

    def drive(self, target: Target, most_s: float = 200.0) -> ReconcileDecision:
        wanted = CommandGoal(plan=self.swarm, target=target, begun_s=self.now_s)
        self.seen = {name: replace(one, asked_s=None) for name, one in self.seen.items()}  # a new command asks again
        end_s = self.now_s + most_s
        while True:
            self._live()
            verdict = reconcile(wanted, self.seen, self.now_s)
            for one in verdict.do:
                self.observer(one)
                self._do(one)
                self.done.append(one)
            if verdict.done or verdict.failed or self.now_s > end_s:
                return verdict
            self.now_s += 1.0

    def _do(self, one: ComponentAction) -> None:
        found = self.seen.get(one.instance, Observation())
        match one.what:
            case "launch":
                assert not found.launched
                found = Observation(
                    launched=True, alive=True, launched_s=self.now_s, starts=found.starts + 1, enabled=False
                )
            case "enable" | "disable":
                self.asked[one.instance] = (one.what == "enable", self.now_s)
                found = replace(found, asked_s=self.now_s)
            case "force":
                found = replace(found, alive=False, forced=True, enabled=False)
            case "deprovision":
                found = replace(found, launched=False, alive=False)
            case "poll":
                pass  # its health endpoint answers like its status
        self.seen[one.instance] = found

    def _live(self) -> None:
        for name, found in self.seen.items():
            habit = self.habits.get(name, Behaviour())
            if not found.launched or not found.alive:
                continue
            if habit.dies_at_s is not None and self.now_s >= habit.dies_at_s:
                self.seen[name] = replace(found, alive=False, failure="exited with 1 and is not started again")
                continue
            up = habit.healthy_after_s is not None and self.now_s - (found.launched_s or 0) >= habit.healthy_after_s
            if up:
                found = replace(found, healthy=True, reported_s=self.now_s)
                asked_for = self.asked.get(name)
                after_s = habit.enables_after_s if asked_for and asked_for[0] else habit.disables_after_s
                if asked_for is not None and after_s is not None and self.now_s - asked_for[1] >= after_s:
                    found = replace(found, enabled=asked_for[0])
            self.seen[name] = found


def names(done: list[ComponentAction], what: str) -> list[str]:
    return [one.instance for one in done if one.what == what]


def test_a_swarm_is_provisioned_started_stopped_and_removed_in_order() -> None:
    world = World(chain("gen", "mod", "sink"))
    assert world.drive(Target.PROVISIONED).done
    assert names(world.done, "launch") == ["demo-gen", "demo-mod", "demo-sink"]
    assert all(one.enabled is False and one.healthy for one in world.seen.values())
    assert world.drive(Target.ENABLED).done
    assert names(world.done, "enable") == ["demo-gen", "demo-mod", "demo-sink"]
    assert world.drive(Target.DISABLED).done
    assert names(world.done, "disable") == ["demo-sink", "demo-mod", "demo-gen"]
    assert all(one.launched for one in world.seen.values())  # stop is not remove
    assert world.drive(Target.GONE).done
    assert names(world.done, "deprovision") == ["demo-sink", "demo-mod", "demo-gen"]
    assert len(world.done) == len(set(world.done)) or names(world.done, "poll")  # nothing is asked twice


def test_nothing_is_enabled_before_what_it_reads_from() -> None:
    world = World(chain("gen", "mod", "sink", instances=2), habits={"demo-gen-2": Behaviour(enables_after_s=7)})

    def observer(one: ComponentAction) -> None:
        if one.what == "enable" and "gen" not in one.instance:
            before = "gen" if "mod" in one.instance else "mod"
            assert all(world.seen[f"demo-{before}-{number}"].enabled for number in (1, 2)), one

    assert world.drive(Target.PROVISIONED).done
    world.observer = observer
    assert world.drive(Target.ENABLED).done


@pytest.mark.parametrize(
    ("habit", "target", "code", "expected"),
    [
        (Behaviour(healthy_after_s=None), Target.PROVISIONED, "PROVISION_TIMEOUT", MUTE),
        (
            Behaviour(enables_after_s=None),
            Target.ENABLED,
            "START_TIMEOUT",
            "demo-mod was not enabled 10 s after it was",
        ),
        (Behaviour(dies_at_s=1), Target.PROVISIONED, "COMPONENT_FAILED", "demo-mod exited with 1"),
    ],
)
def test_a_failure_removes_nothing(habit: Behaviour, target: Target, code: str, expected: str) -> None:
    world = World(chain("gen", "mod", "sink"), habits={"demo-mod": habit})
    verdict = world.drive(Target.PROVISIONED)
    if target is Target.ENABLED:
        assert verdict.done
        verdict = world.drive(target)
    assert verdict.code == code
    assert verdict.failed is not None
    assert verdict.failed.startswith(expected)
    assert not {one.what for one in world.done} & {"deprovision", "force", "disable"}
    assert all(one.launched for one in world.seen.values())


def test_the_whole_swarm_has_a_time_limit() -> None:
    world = World(chain(*"abcdefgh"), habits={f"demo-{role}": Behaviour(enables_after_s=9) for role in "abcdefgh"})
    assert world.drive(Target.PROVISIONED).done
    verdict = world.drive(Target.ENABLED)
    assert (verdict.code, verdict.failed) == ("START_TIMEOUT", "demo-e was not enabled when the swarm's 40 s were over")


@pytest.mark.parametrize(
    ("habit", "target", "code", "words"),
    [
        (Behaviour(healthy_after_s=None), Target.PROVISIONED, "PROVISION_TIMEOUT", "was not healthy 120 s after"),
        (Behaviour(enables_after_s=None), Target.ENABLED, "START_TIMEOUT", "was not enabled 60 s after"),
        (
            Behaviour(enables_after_s=59),
            Target.ENABLED,
            "START_TIMEOUT",
            "was not enabled when the swarm's 180 s were over",
        ),
    ],
)
def test_without_times_in_its_plan_a_swarm_has_those_of_the_document(
    habit: Behaviour, target: Target, code: str, words: str
) -> None:
    roles = "abcd"
    swarm = replace(chain(*roles), timeouts=plan.Timeouts())
    world = World(swarm, habits={f"demo-{role}": habit for role in roles})
    verdict = world.drive(Target.PROVISIONED)
    if target is Target.ENABLED:
        assert verdict.done
        verdict = world.drive(target)
    assert verdict.code == code
    assert words in str(verdict.failed)


def test_a_component_that_is_started_again_and_again_has_the_time_of_the_swarm_to_become_ready() -> None:
    world = World(
        replace(chain("gen", "mod"), timeouts=plan.Timeouts()), habits={"demo-mod": Behaviour(healthy_after_s=None)}
    )

    def dies_in_time(one: ComponentAction) -> None:
        found = world.seen.get(one.instance)
        if found is not None and found.launched_s is not None and world.now_s - found.launched_s >= 100:
            world.seen[one.instance] = replace(found, launched_s=world.now_s, starts=found.starts + 1)

    world.observer = dies_in_time
    verdict = world.drive(Target.PROVISIONED, most_s=1000)
    why = "demo-mod was not healthy when the swarm's 300 s were over"
    assert (verdict.code, verdict.failed, world.now_s) == ("READY_TIMEOUT", why, 300)
    assert names(world.done, "deprovision") == []


def test_a_component_has_thirty_seconds_to_stop_without_times_in_its_plan() -> None:
    world = World(
        replace(chain("gen"), timeouts=plan.Timeouts()), habits={"demo-gen": Behaviour(disables_after_s=None)}
    )
    assert world.drive(Target.PROVISIONED).done
    assert world.drive(Target.ENABLED).done
    did: list[tuple[str, float]] = []
    begun_s = world.now_s
    world.observer = lambda one: did.append((one.what, world.now_s - begun_s))
    assert world.drive(Target.DISABLED).degraded == ("demo-gen",)
    assert did == [("disable", 0), ("force", 30)]


def test_a_component_that_does_not_stop_is_killed_and_delays_no_other() -> None:
    world = World(chain("gen", "mod", "sink"), habits={"demo-mod": Behaviour(disables_after_s=None)})
    assert world.drive(Target.PROVISIONED).done
    assert world.drive(Target.ENABLED).done
    verdict = world.drive(Target.DISABLED)
    assert (verdict.done, verdict.degraded) == (True, ("demo-mod",))
    assert names(world.done, "force") == ["demo-mod"]
    assert lifecycle.aggregate(world.seen, world.seen, world.now_s).health == "Degraded"
    assert world.drive(Target.GONE).done


def test_a_silent_component_is_polled_over_http() -> None:
    world = World(chain("gen"), habits={"demo-gen": Behaviour(healthy_after_s=5)})
    assert world.drive(Target.PROVISIONED).done
    assert names(world.done, "poll")


habits = st.builds(
    Behaviour,
    healthy_after_s=st.none() | st.floats(0, 30),
    enables_after_s=st.none() | st.floats(0, 15),
    disables_after_s=st.none() | st.floats(0, 15),
    dies_at_s=st.none() | st.floats(0, 60),
)


@settings(max_examples=25)
@given(st.lists(habits, min_size=3, max_size=3), st.lists(st.sampled_from(list(Target)[:3]), min_size=1, max_size=4))
def test_every_command_ends_and_only_remove_deletes(behaviour: list[Behaviour], targets: list[Target]) -> None:
    world = World(chain("gen", "mod", "sink"))
    world.habits = dict(zip(["demo-gen", "demo-mod", "demo-sink"], behaviour, strict=True))
    for target in targets:
        verdict = world.drive(target)
        assert verdict.done or verdict.failed
        assert (verdict.failed is None) == (verdict.code is None)
        if verdict.done and target is Target.ENABLED:
            assert all(one.enabled and one.alive for one in world.seen.values())
        if verdict.done and target is Target.DISABLED:
            assert not any(one.enabled and one.alive for one in world.seen.values())
    assert not names(world.done, "deprovision")
    assert world.drive(Target.GONE).done
    assert not any(one.launched for one in world.seen.values())


# --- the aggregate ---


def test_an_aggregate_is_as_old_as_its_oldest_report() -> None:
    seen = {
        "a": Observation(launched=True, alive=True, reported_s=95.0, healthy=True, enabled=True),
        "b": Observation(launched=True, alive=True, reported_s=80.0, healthy=True, enabled=False),
    }
    expected = lifecycle.aggregate(["a", "b"], seen, now_s=100.0)
    assert (expected.health, expected.reason) == ("Healthy", None)
    assert (expected.watermark_s, expected.max_staleness_s) == (80.0, 20.0)
    assert expected.totals == Totals(total=2, desired=2, healthy=2, running=1, enabled=1)
    later = lifecycle.aggregate(["a", "b"], seen, now_s=111.0)
    assert (later.health, later.reason) == ("Unknown", "b said nothing for 31 s")
    assert (later.totals.healthy, later.totals.running) == (1, 1)  # an old report does not count
    third = lifecycle.aggregate(["a", "b", "c"], seen, now_s=100.0)
    assert (third.health, third.reason, third.watermark_s) == ("Unknown", "c never said anything", None)
    seen["b"] = replace(seen["b"], healthy=False)
    assert lifecycle.aggregate(["a", "b"], seen, now_s=111.0).reason == "b says that it is not healthy"
