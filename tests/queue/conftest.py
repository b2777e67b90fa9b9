"""The worker's fixture: a store, a worker's parts and a clock, on every store."""

from worker.conftest import bench as bench
