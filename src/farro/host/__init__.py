"""The operating system, once: durable files, leases, inotify, processes, clock.

Nothing here knows what a job is.
"""
