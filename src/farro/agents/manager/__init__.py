"""The manager: route finished work, decide about stale and failed jobs, and run schedules."""
