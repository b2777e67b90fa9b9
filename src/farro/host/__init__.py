"""The operating system: durable files, leases, inotify, processes, clock. Nothing here knows what a job is.

Only this package and farro.sandbox name an operating system (tests/house/test_operating_system.py).
"""
