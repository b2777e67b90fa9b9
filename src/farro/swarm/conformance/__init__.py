"""Check whether a trace of the wire keeps the promises of seed 003. The caller captures the trace.

    envelope, key, agree   every message has a known key and a valid body, and both agree
    confirmed              each signal has exactly one distinct confirmation; a status-request has a status-full
    resent                 a message sent again under the same message id has the same content
    correlation            a confirmation echoes its signal; each attempt has its own correlation id
    idempotency            a repeated command gets the stored confirmation, and ev.duplicate
    order, observed        enabled as the work flows, disabled in reverse, each stage after the one before was observed
    namespace              no message is about an unknown swarm, or a component that is in no plan
    status, watermark      status messages have all their fields, with possible values
    handshake              ev.ready.swarm-create comes after the controller's ev.ready.swarm-controller
    state, origin          a success has the state of its signal; only the orchestrator sends lifecycle commands

Messages are ordered by the times that they state, since those of two senders may arrive in another order. So the clocks
of several machines must agree to `skew_s`. [test_a_good_trace_has_no_violations, test_every_mutation_is_found]
"""

from __future__ import annotations

from collections.abc import Iterable

from farro.swarm.conformance import rules
from farro.swarm.conformance.trace import Captured as Captured
from farro.swarm.conformance.trace import TraceIndex, read
from farro.swarm.conformance.trace import Violation as Violation


def check(
    trace: Iterable[Captured], *, complete: bool = True, swarms: Iterable[str] | None = None, skew_s: float = 0.0
) -> list[Violation]:
    """Return all violations in a trace.

    `complete` says that every command had time to end. `swarms` are the known swarms; None allows any.
    """
    decoded, items, wrong = read(trace)
    index = TraceIndex.of(decoded)
    return [
        *wrong,
        *rules.resent(decoded),
        *rules.correlations(index),
        *rules.confirmed(index, complete),
        *rules.idempotency(index, complete),
        *rules.states(index),
        *rules.origins(index),
        *rules.handshakes(decoded, skew_s),
        *rules.namespaces(decoded, items, index, None if swarms is None else set(swarms)),
        *rules.statuses(decoded),
        *rules.orders(index, skew_s),
    ]
