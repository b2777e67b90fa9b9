"""/metrics for Prometheus: the queues, the workers, what ended since this server started, and the server itself.

Figures for people are operations.stats; what is counted here comes from the catalog, so that a scrape reads no job.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from farro.errors import FarroError
from farro.web.endpoints import Asked, Bytes, Endpoint, get
from farro.web.errors import Wrong
from farro.web.overview import queue_lines
from farro.web.state import House

KIND = "text/plain; version=0.0.4; charset=utf-8"
_STATES = ("queued", "delayed", "waiting", "in_progress", "succeeded", "failed", "stale", "killed")


class Figures:
    """What prometheus_client asks at each scrape."""

    def __init__(self, house: House) -> None:
        self._house = house

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        house, catalog = self._house, self._house.catalog
        yield GaugeMetricFamily("farro_up", "1 once all jobs are counted", value=float(catalog.ready))
        jobs = GaugeMetricFamily("farro_jobs", "jobs by role and state", labels=["role", "state"])
        caps = GaugeMetricFamily("farro_queue_cap", "how many jobs a role may have", labels=["role"])
        for line in queue_lines(house):
            for state in _STATES:
                jobs.add_metric([line["role"], state], line[state])
            if line["cap"] is not None:
                caps.add_metric([line["role"]], line["cap"])
        yield jobs
        yield caps
        ended = CounterMetricFamily("farro_jobs_ended", "jobs that ended", labels=["role", "status"])
        seconds = CounterMetricFamily("farro_job_seconds", "seconds from creation to end, summed", labels=["role"])
        waited = CounterMetricFamily("farro_job_wait_seconds", "seconds to the first claim, summed", labels=["role"])
        for role, sums in catalog.sums().items():
            for status, count in sums.ended.items():
                ended.add_metric([role, status], count)
            seconds.add_metric([role], sums.seconds)
            waited.add_metric([role], sums.waited)
        yield from (ended, seconds, waited)
        workers = GaugeMetricFamily("farro_workers", "slots of workers", labels=["role", "state"])
        for (role, state), count in self._workers().items():
            workers.add_metric([role, state], count)
        yield workers

    def _workers(self) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for agent in self._house.store.agents():
            if agent.role is not None:
                state = "dead" if not agent.alive else "busy" if agent.jobs else "idle"
                found[agent.role, state] = found.get((agent.role, state), 0) + 1
        return found


def metrics(house: House, asked: Asked) -> Bytes:
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError:
        message = "metrics need prometheus-client; install it with: pip install 'farro[metrics]'"
        raise Wrong(501, "no_metrics", message) from None
    registry = CollectorRegistry(auto_describe=False)
    try:
        registry.register(Figures(house))
        return Bytes(data=generate_latest(registry), kind=KIND)
    except (FarroError, OSError) as error:
        raise Wrong(503, "storage_trouble", str(error)) from error


ENDPOINTS: tuple[Endpoint, ...] = (
    get("/metrics", metrics, "Figures for Prometheus.", kind="text/plain", keep_s=1.0, tag="overview"),
)
