"""The bench of the worker tests, on every store."""

from worker.conftest import bench as bench
