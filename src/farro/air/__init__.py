"""Air-Executor: named jobs, its status words, and the import of its jobs."""
