"""The manager: route finished work, decide about stale and failed jobs, start tasks, and run schedules."""
