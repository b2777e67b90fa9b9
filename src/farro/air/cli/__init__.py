"""Commands of Air-Executor: job, status, reset, run-task, import-air."""
