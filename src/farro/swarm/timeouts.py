"""How long a command of a swarm may take before whoever sent it gives it up (seed 003 §8).

The controller's own times, for each component and for the swarm, are held in reconcile. These are longer by a margin:
a controller that lives always ends a command by itself, and only one that says nothing is given up.
"""

from __future__ import annotations

from farro.swarm.order import order
from farro.swarm.plan import SwarmPlan, Timeouts
from farro.swarm.wire.names import Signal

MARGIN_S = 30.0
CONFIG_S = 30.0  # how long a component has to say what it did with an update
STATUS_S = 10.0
HANDSHAKE_S = Timeouts().provision  # a controller is provisioned as a component is


def limit_s(signal: Signal, plan: SwarmPlan | None) -> float:
    """Of a command about a swarm of that plan; None: it has none yet."""
    times = Timeouts() if plan is None else plan.timeouts
    stages = 1 if plan is None else len(order(plan).stages)
    match signal:
        case Signal.CREATE:
            return HANDSHAKE_S
        case Signal.TEMPLATE:  # what is no longer in the plan is stopped first
            return times.ready + (stages + 1) * times.stop + MARGIN_S
        case Signal.START:
            return times.start_total + MARGIN_S
        case Signal.STOP:
            return stages * times.stop + MARGIN_S
        case Signal.REMOVE:
            return (stages + 1) * times.stop + MARGIN_S
        case Signal.CONFIG:
            return CONFIG_S + MARGIN_S
        case Signal.STATUS:
            return STATUS_S
