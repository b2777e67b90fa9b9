"""Air-Executor's view of jobs: named jobs, progress in its words, running one task, and importing its jobs."""
