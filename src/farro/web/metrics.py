"""Export /metrics for Prometheus: queues, workers, and the jobs that ended since this server started.

All counts come from the catalog in memory, so that a scrape reads no job.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from farro.errors import FarroError
from farro.web.endpoints import ApiRequest, RawResponse, Routes, WebState
from farro.web.errors import HttpError
from farro.web.overview import queue_lines

routes = Routes("overview")

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATES = ("queued", "delayed", "waiting", "in_progress", "succeeded", "failed", "stale", "killed")


class MetricsCollector:
    """Collect the metrics at each scrape."""

    def __init__(self, state: WebState) -> None:
        self._state = state

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        state, catalog = self._state, self._state.catalog
        yield GaugeMetricFamily("farro_up", "1 once all jobs are counted", value=float(catalog.ready))
        jobs = GaugeMetricFamily("farro_jobs", "jobs by role and state", labels=["role", "state"])
        caps = GaugeMetricFamily("farro_queue_cap", "how many jobs a role may have", labels=["role"])
        for line in queue_lines(state):
            for job_state in _STATES:
                jobs.add_metric([line["role"], job_state], line[job_state])
            if line["cap"] is not None:
                caps.add_metric([line["role"]], line["cap"])
        yield jobs
        yield caps
        ended = CounterMetricFamily("farro_jobs_ended", "jobs that ended", labels=["role", "status"])
        seconds = CounterMetricFamily("farro_job_seconds", "seconds from creation to end, summed", labels=["role"])
        wait_seconds = CounterMetricFamily(
            "farro_job_wait_seconds", "seconds to the first claim, summed", labels=["role"]
        )
        for role, sums in catalog.sums().items():
            for status, count in sums.ended.items():
                ended.add_metric([role, status], count)
            seconds.add_metric([role], sums.seconds)
            wait_seconds.add_metric([role], sums.waited)
        yield from (ended, seconds, wait_seconds)
        workers = GaugeMetricFamily("farro_workers", "slots of workers", labels=["role", "state"])
        for (role, job_state), count in self._workers().items():
            workers.add_metric([role, job_state], count)
        yield workers

    def _workers(self) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for agent in self._state.store.agents():
            if agent.role is not None:
                job_state = "dead" if not agent.alive else "busy" if agent.jobs else "idle"
                found[agent.role, job_state] = found.get((agent.role, job_state), 0) + 1
        return found


@routes.get("/metrics", "Metrics for Prometheus.", media_type="text/plain", cache_s=1.0)
def show_metrics(state: WebState, request: ApiRequest) -> RawResponse:
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError:
        message = "metrics need prometheus-client; install it with: pip install 'farro[metrics]'"
        raise HttpError(501, "no_metrics", message) from None
    registry = CollectorRegistry(auto_describe=False)
    try:
        registry.register(MetricsCollector(state))
        return RawResponse(data=generate_latest(registry), media_type=MEDIA_TYPE)
    except (FarroError, OSError) as error:
        raise HttpError(503, "storage_trouble", str(error)) from error
